//! The processes of a pager: the program, the tasks, and the one that watches them.

use std::sync::atomic::AtomicU32;

/// Their numbers, in the program's process namespace, and how far their start is.
#[derive(Default)]
pub(crate) struct Processes {
    pub(crate) program: AtomicU32,
    /// The one that the tasks belong to.
    pub(crate) pager: AtomicU32,
    /// The one that watches the pager without a supervisor.
    pub(crate) watcher: AtomicU32,
    /// How many tasks there are.
    pub(crate) tasks: AtomicU32,
    /// Tells that the pager is up: 1, or failed: 2.
    pub(crate) ready: AtomicU32,
}
