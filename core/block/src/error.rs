//! Errors of requests to a block device.

use core::error::Error as StdError;

use spillway_types::Refusal;

/// The reason why a request to a block device failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request reaches beyond the end of the device.
    #[error("beyond the end of the device")]
    Range,
    /// The store refused a page. For a device with a reservation: its client is frozen for a move, or the pool is gone.
    #[error("the store refused a page: {0:?}")]
    Refused(Refusal),
    /// The device's pool holds a value of this many bytes, not a page. No write to the device stores such a value.
    #[error("the device's pool holds a value of {0} bytes in place of a page")]
    NotAPage(usize),
    /// All copies of this page failed to be read or written.
    #[error("no copy of page {0} could be read or written")]
    NoCopy(u64),
    /// The device's pool or its client is gone.
    #[error("the device is gone")]
    Gone,
    /// Too many requests read the same page at once. A retry can succeed.
    #[error("too many requests read one page")]
    Busy,
    /// The page is stored, but can't be read.
    #[error(transparent)]
    Unreadable(Box<dyn StdError + Send + Sync>),
    /// The device's backend failed.
    #[error(transparent)]
    Failed(Box<dyn StdError + Send + Sync>),
}
