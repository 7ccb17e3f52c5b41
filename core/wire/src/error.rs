//! What can be wrong with bytes from outside.

/// Why bytes could not be read, or values not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are fewer bytes than the structure has.
    #[error("{got} bytes where {need} are needed")]
    Short {
        /// Bytes needed.
        need: usize,
        /// Bytes there are.
        got: usize,
    },
    /// A PDU of a type that is not known or may not come from this side.
    #[error("PDU of type {0:#04x} is not expected")]
    PduType(u8),
    /// A field of a PDU has a value that is not allowed; its offset in the header is given.
    #[error("bad value in the PDU header at offset {0}")]
    PduField(u16),
    /// A PDU is longer than the reader takes.
    #[error("PDU of {bytes} bytes, at most {limit} are taken")]
    PduLength {
        /// Bytes it would have.
        bytes: usize,
        /// Bytes that are taken.
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
