//! What a command is executed with.

use crate::controller::Controller;
use crate::target::Target;

/// What a command is executed with, besides the state of its queue.
pub(crate) struct Context<'a> {
    pub(crate) target: &'a Target,
    pub(crate) controller: &'a Controller,
    pub(crate) now_ms: u64,
}
