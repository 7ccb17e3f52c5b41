//! Pages filled with one 32-bit word, which need no frame.

use spillway_types::PAGE_BYTES;

/// The 32-bit word that fills all of `page`, if one does.
///
/// A page that is not uniform almost always differs in its first words, so it costs two loads.
#[inline]
pub fn uniform_word(page: &[u8; PAGE_BYTES]) -> Option<u32> {
    let (words, _) = page.as_chunks::<8>();
    let first = u64::from_ne_bytes(words[0]);
    let word = first as u32;
    if first != u64::from(word) << 32 | u64::from(word)
        || u64::from_ne_bytes(words[1]) != first
        || u64::from_ne_bytes(words[PAGE_BYTES / 8 - 1]) != first
    {
        return None;
    }
    // Compare the page with itself shifted by a word: wide compares, early exit.
    (page[..PAGE_BYTES - 8] == page[8..]).then_some(word)
}

/// Fills `page` with `word`.
pub fn fill_word(page: &mut [u8], word: u32) {
    let bytes = word.to_ne_bytes();
    if bytes[1..] == bytes[..3] {
        page.fill(bytes[0]);
        return;
    }
    for chunk in page.chunks_mut(4) {
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_fills_a_page_and_any_other_byte_breaks_it() {
        for word in [0, 0x0101_0101, 0xdead_beef] {
            let mut page = [1_u8; PAGE_BYTES];
            fill_word(&mut page, word);
            assert_eq!(uniform_word(&page), Some(word));
            for at in [0, 7, 8, 15, 16, 2048, 4087, 4088, 4095] {
                let mut other = page;
                other[at] ^= 1;
                assert_eq!(uniform_word(&other), None, "byte {at} of a page of {word:#x}");
            }
        }
    }

    #[test]
    fn eight_byte_patterns_are_not_uniform() {
        let mut page = [0_u8; PAGE_BYTES];
        for chunk in page.chunks_mut(8) {
            chunk.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert_eq!(uniform_word(&page), None);
    }
}
