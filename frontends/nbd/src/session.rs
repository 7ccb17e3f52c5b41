//! The result of the handshake.

use std::sync::Arc;

use spillway_block::Device;

/// The only supported metadata context.
pub const ALLOCATION: &str = "base:allocation";
/// The number of [`ALLOCATION`] in block status replies.
pub const ALLOCATION_ID: u32 = 1;

/// The result of the negotiation between client and server.
#[derive(Clone, Debug)]
pub struct Session {
    /// The export.
    pub device: Arc<dyn Device>,
    /// Whether reads get structured replies.
    pub structured: bool,
    /// Whether the client may request block status.
    pub allocation: bool,
}
