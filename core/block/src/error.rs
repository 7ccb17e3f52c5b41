//! What can go wrong with a request to a block device.

use core::error::Error as StdError;

use spillway_types::Refusal;

/// Why a request to a block device was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request reaches beyond the end of the device.
    #[error("beyond the end of the device")]
    Range,
    /// The store refused a page in spite of the reservation: the pool is frozen for a move, or gone.
    #[error("the store refused a page: {0:?}")]
    Refused(Refusal),
    /// Somebody stored a value of so many bytes in the device's pool, which no write of ours does.
    #[error("the device's pool holds a value of {0} bytes in place of a page")]
    NotAPage(usize),
    /// No place that has a copy of the page gave it or took it.
    #[error("no copy of page {0} could be read or written")]
    NoCopy(u64),
    /// The device's pool or its client is gone.
    #[error("the device is gone")]
    Gone,
    /// Too many requests read the same page at once; a later request succeeds.
    #[error("too many requests read one page")]
    Busy,
    /// The page is stored, but its bytes do not come back.
    #[error(transparent)]
    Unreadable(Box<dyn StdError + Send + Sync>),
    /// What lies behind the device failed.
    #[error(transparent)]
    Failed(Box<dyn StdError + Send + Sync>),
}
