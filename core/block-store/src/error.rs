//! Errors of a block device over the store.

use spillway_block::Error as BlockError;
use spillway_store::Error as StoreError;

/// The reason why a block device over the store can't be created or opened. Its requests fail with
/// [`spillway_block::Error`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The requested size, in bytes, is zero or not a multiple of 4096.
    #[error("a block device is a multiple of 4096 bytes long, not {0} bytes")]
    Size(u64),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A failure of the store as a failure of the device.
pub(crate) fn of_store(error: StoreError) -> BlockError {
    match error {
        StoreError::NoPool | StoreError::NoClient => BlockError::Gone,
        StoreError::Busy => BlockError::Busy,
        StoreError::Corrupt | StoreError::Disk(_) | StoreError::Gone => {
            BlockError::Unreadable(error.into())
        }
        _ => BlockError::Failed(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_pool_or_client_means_that_the_device_is_gone() {
        for error in [StoreError::NoPool, StoreError::NoClient] {
            assert!(matches!(of_store(error), BlockError::Gone));
        }
        let io = || std::io::Error::other("a bad sector");
        for error in [StoreError::Gone, StoreError::Corrupt, StoreError::Disk(io())] {
            assert!(matches!(of_store(error), BlockError::Unreadable(_)));
        }
        assert!(matches!(of_store(StoreError::Busy), BlockError::Busy));
        assert!(matches!(of_store(StoreError::TableFull), BlockError::Failed(_)));
    }
}
