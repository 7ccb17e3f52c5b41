//! The size, block size and identity of a device.

use crate::error::Error;

/// Bytes of a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes, for clients that support nothing else. Each write of part of a page costs a read.
    B512,
    /// 4096 bytes, a page.
    B4096,
}

impl BlockSize {
    /// As a number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// The size, block size and identity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes, a multiple of 4096.
    pub bytes: u64,
    /// The logical block size that frontends announce, if their protocol has one. The device itself accepts any range
    /// of bytes.
    pub block_size: BlockSize,
    /// Names this generation of the device; see [`fresh_uuid`](crate::fresh_uuid).
    pub uuid: u128,
}

impl Geometry {
    /// Checks that a range lies on the device.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        let end = offset.checked_add(bytes).ok_or(Error::Range)?;
        if end > self.bytes { Err(Error::Range) } else { Ok(()) }
    }
}
