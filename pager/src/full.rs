//! What is done once memory, or a tier below it, is full.

use std::sync::atomic::AtomicU32;

use spillway_platform::lock::Lock;
use spillway_store::Scratch;

/// The state of a full store.
pub(crate) struct Full {
    /// Set once a tier refused a page, so that the user gets one notice.
    pub(crate) is_told: AtomicU32,
    /// Working memory for faults that find memory full: they pack, and write to the disk tier, one at a time.
    pub(crate) spare: Lock<Option<Scratch>>,
}
