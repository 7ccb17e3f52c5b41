//! Errors of decoding and encoding.

/// The reason why bytes can't be decoded, or values can't be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are fewer bytes than the structure has.
    #[error("{got} bytes where {need} are needed")]
    Short {
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        got: usize,
    },
    /// The type of a PDU is unknown, or not allowed from this side.
    #[error("PDU of type {0:#04x} is not expected")]
    PduType(u8),
    /// A field of a PDU has a value that is not allowed. The number is its offset in the header.
    #[error("bad value in the PDU header at offset {0}")]
    PduField(u16),
    /// A PDU is longer than the reader accepts.
    #[error("PDU of {bytes} bytes, at most {limit} are taken")]
    PduLength {
        /// The length of the PDU.
        bytes: usize,
        /// The longest PDU that the reader accepts.
        limit: usize,
    },
    /// The header's digest is not that of the header.
    #[error("header digest is wrong")]
    HeaderDigest,
    /// The data's digest is not that of the data.
    #[error("data digest is wrong")]
    DataDigest,
    /// A field of a structure has a value that is not allowed.
    #[error("bad value of {0}")]
    Field(&'static str),
}
