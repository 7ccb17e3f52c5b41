//! Errors. A refusal or a miss is not an error.

use crate::record::{KEY_BYTES_MAX, Malformed, VALUE_BYTES_MAX};

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store reported an error.
    #[error(transparent)]
    Store(#[from] spillway_client::Error),
    /// The value under a record's key is not a record, or has a later format.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The key is longer than a record can hold.
    #[error("a key of {0} bytes; at most {KEY_BYTES_MAX} are taken")]
    Key(usize),
    /// The value is longer than its parts can hold.
    #[error("a value of {0} bytes; at most {VALUE_BYTES_MAX} are taken")]
    Value(usize),
    /// The buffer is too short for the value.
    #[error("the value has {value_bytes} bytes and the buffer {room_bytes}")]
    Short {
        /// Bytes of the value.
        value_bytes: u64,
        /// Bytes of the buffer.
        room_bytes: usize,
    },
    /// The name of a pool is too long.
    #[error("a pool's name of {0} bytes; 1 to 255 are taken")]
    Name(usize),
}

impl Error {
    /// Whether the connection to the store is lost, so that only opening it again can help.
    pub const fn is_final(&self) -> bool {
        use spillway_client::Error as Store;
        matches!(
            self,
            Self::Store(
                Store::Lost | Store::Timeout | Store::PoolLost | Store::NoPool | Store::Forked
            )
        )
    }
}
