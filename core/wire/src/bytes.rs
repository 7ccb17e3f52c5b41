//! Little-endian numbers in byte slices. The callers have checked the length.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// Writes `part` at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

/// The first `N` bytes.
pub(crate) fn head<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], crate::Error> {
    bytes.first_chunk().ok_or(crate::Error::Short { need: N, got: bytes.len() })
}

/// The structure that `bytes` begin with.
pub(crate) fn prefix<T>(bytes: &[u8]) -> Result<&T, crate::Error>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let short = crate::Error::Short { need: size_of::<T>(), got: bytes.len() };
    T::ref_from_prefix(bytes).map(|(structure, _)| structure).map_err(|_| short)
}
