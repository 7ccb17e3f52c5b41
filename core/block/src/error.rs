//! What can go wrong with a block device.

use spillway_types::Refusal;

/// Why a request to a block device was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request reaches beyond the end of the device.
    #[error("beyond the end of the device")]
    Range,
    /// The size asked for is zero or no multiple of 4096 bytes.
    #[error("a block device is a multiple of 4096 bytes long, not {0} bytes")]
    Size(u64),
    /// The store refused a page in spite of the reservation: the pool is frozen for a move, or gone.
    #[error("the store refused a page: {0:?}")]
    Refused(Refusal),
    /// Somebody stored a value of so many bytes in the device's pool, which no write of ours does.
    #[error("the device's pool holds a value of {0} bytes in place of a page")]
    NotAPage(usize),
    /// No place that has a copy of the page gave it or took it.
    #[error("no copy of page {0} could be read or written")]
    NoCopy(u64),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] spillway_store::Error),
}
