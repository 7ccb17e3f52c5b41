//! What client and server have agreed on, from the handshake on.

use std::sync::Arc;

use spillway_block::Device;

/// The one metadata context that there is.
pub const ALLOCATION: &str = "base:allocation";
/// The number of [`ALLOCATION`] in block status replies.
pub const ALLOCATION_ID: u32 = 1;

/// What was agreed on.
#[derive(Clone, Debug)]
pub struct Session {
    /// The export.
    pub device: Arc<dyn Device>,
    /// Reads are answered with structured replies.
    pub structured: bool,
    /// Block status may be asked.
    pub allocation: bool,
}
