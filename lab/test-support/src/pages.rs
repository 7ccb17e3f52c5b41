//! Pages with known compressibility.

use spillway_types::PAGE_BYTES;

use crate::random;

/// A page that LZ4 can't compress, different for each seed.
pub fn incompressible(seed: impl Into<u64>) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    random::fill(&mut page, seed);
    page
}

/// A page that LZ4 compresses to a little more than `random_bytes`, different for each number: noise, then zeros, then
/// the number.
pub fn compressible(number: impl Into<u64>, random_bytes: usize) -> [u8; PAGE_BYTES] {
    let (number, mut page) = (number.into(), [0; PAGE_BYTES]);
    random::fill(&mut page[..random_bytes], number);
    page[PAGE_BYTES - 4..].copy_from_slice(&(number as u32 | 1 << 31).to_ne_bytes());
    page
}

/// The readable text in every page of [`half_text`].
pub const TEXT: &[u8; 8] = b"spillway";

/// A page that LZ4 compresses to a little more than half, different for each seed: every second word is [`TEXT`].
pub fn half_text(seed: impl Into<u64>) -> [u8; PAGE_BYTES] {
    let mut page = incompressible(seed);
    page.chunks_mut(16).for_each(|words| words[..8].copy_from_slice(TEXT));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_differ_by_seed_even_where_nothing_is_random() {
        assert_ne!(incompressible(1_u32), incompressible(2_u32));
        assert_ne!(half_text(1_u32), half_text(2_u32));
        assert_ne!(compressible(0_u32, 0), compressible(1_u32, 0));
        // No page is same-filled: the last bytes are never zero.
        assert_ne!(compressible(0_u32, 0), [0; PAGE_BYTES]);
    }

    #[test]
    fn so_many_bytes_are_random() {
        let page = compressible(9_u32, 2040);
        assert_eq!(page[..2040], random::noise(9_u32, 2040));
        assert!(page[2040..PAGE_BYTES - 4].iter().all(|byte| *byte == 0));
    }
}
