//! The form of a key in the store: a record of its value, its name and a footer.
//!
//! ```text
//! record:  value | fill | key | footer                       stored under { hash of the key, a free index }
//! chunks:  the pages of a value of more than 64 KiB, in parts of at most 16 MiB: the record has no value then
//! ```
//!
//! The footer is last, so that the value begins at a page. The data that is read most often lies together in the
//! record's tail ([`spillway_store::Value::tail`]).

use spillway_store::{PAGE_BYTES, Value};
use twox_hash::XxHash3_64;

/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 40;
/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value that lies in its record, bytes.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Objects with this bit hold chunks; those without it hold records.
pub const CHUNKS_BIT: u64 = 1 << 63;
/// The object of the mark that tells the number of a pool's database.
pub const MARK_OBJECT: u64 = u64::MAX;

/// The data of a key beside its name and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// Bytes of the value.
    pub value_bytes: u64,
    /// The time at which the key expires, milliseconds since 1970; 0 for never.
    pub expires_ms: u64,
    /// The version of the record. Of two records of one key the one with the higher version counts.
    pub version: u64,
    /// The object with the value's chunks; 0 if the value lies in the record.
    pub chunks: u64,
    /// Bytes of the key.
    pub key_bytes: u32,
}

impl Footer {
    /// The stored form: the fields, and a checksum over them and the key.
    pub fn encode(&self, key: &[u8]) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        for (at, field) in
            [self.value_bytes, self.expires_ms, self.version, self.chunks].iter().enumerate()
        {
            bytes[at * 8..][..8].copy_from_slice(&field.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&self.key_bytes.to_le_bytes());
        let sum = checksum(&bytes[..36], key);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a footer at the end of `tail`. [`Record::is_of`] verifies its checksum.
    pub fn decode(tail: &[u8]) -> Option<Self> {
        let bytes: &[u8; FOOTER_BYTES] = tail.last_chunk()?;
        let field = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at * 8..][..8]);
            u64::from_le_bytes(word)
        };
        let key_bytes = u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]);
        Some(Self {
            value_bytes: field(0),
            expires_ms: field(1),
            version: field(2),
            chunks: field(3),
            key_bytes,
        })
    }

    /// Bytes of the value that lie in the record.
    pub const fn inline_bytes(&self) -> usize {
        if self.chunks == 0 { self.value_bytes as usize } else { 0 }
    }

    /// Whether the key has expired.
    pub const fn is_over(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && now_ms >= self.expires_ms
    }
}

fn checksum(fields: &[u8], key: &[u8]) -> u32 {
    let seed = XxHash3_64::oneshot(fields);
    XxHash3_64::oneshot_with_seed(seed, key) as u32
}

/// The offset of the key in a record. The footer lies behind the record's whole pages; so does the key, unless it is
/// very long. The length of a record is never a multiple of the page size.
pub const fn key_offset(inline_bytes: usize, key_bytes: usize) -> usize {
    let behind = key_bytes + FOOTER_BYTES;
    if behind < PAGE_BYTES {
        let over = inline_bytes % PAGE_BYTES;
        return match over + behind < PAGE_BYTES {
            true => inline_bytes,
            false => inline_bytes + PAGE_BYTES - over,
        };
    }
    let over = (inline_bytes + key_bytes) % PAGE_BYTES;
    match over + FOOTER_BYTES < PAGE_BYTES {
        true => inline_bytes,
        // The key ends at the end of a page.
        false => inline_bytes + PAGE_BYTES - over,
    }
}

/// A record that was looked up.
#[derive(Debug)]
pub struct Record<'a> {
    /// The footer of the record.
    pub footer: Footer,
    value: Value<'a>,
}

impl<'a> Record<'a> {
    /// Parses a stored value. `None` if it is no record.
    pub fn read(value: Value<'a>) -> Option<Self> {
        let footer = Footer::decode(value.tail())?;
        let key_bytes = footer.key_bytes as usize;
        let inline = footer.chunks != 0 || footer.value_bytes <= INLINE_BYTES_MAX as u64;
        if key_bytes > KEY_BYTES_MAX || !inline || footer.value_bytes > VALUE_BYTES_MAX {
            return None;
        }
        let length = key_offset(footer.inline_bytes(), key_bytes) + key_bytes + FOOTER_BYTES;
        (length == value.length()).then_some(Self { footer, value })
    }

    /// Calls `take` with the key. `None` if the record's checksum is wrong.
    pub fn with_key<R>(&self, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (tail, key_bytes) = (self.value.tail(), self.footer.key_bytes as usize);
        let mut long = Vec::new();
        let key = match tail.len().checked_sub(key_bytes + FOOTER_BYTES) {
            Some(at) => &tail[at..at + key_bytes],
            None => {
                long.resize(key_bytes, 0);
                let begin = key_offset(self.footer.inline_bytes(), key_bytes);
                self.value.each_part(|at, part| {
                    let from = begin.max(at);
                    let to = (begin + key_bytes).min(at + part.len());
                    if from < to {
                        long[from - begin..to - begin].copy_from_slice(&part[from - at..to - at]);
                    }
                });
                &long
            }
        };
        let noted = u32::from_le_bytes(*tail.last_chunk()?);
        let fields = &tail[tail.len() - FOOTER_BYTES..][..36];
        (checksum(fields, key) == noted).then(|| take(key))
    }

    /// Whether this is the record of `key`.
    pub fn is_of(&self, key: &[u8]) -> bool {
        self.footer.key_bytes as usize == key.len()
            && self.with_key(|own| own == key).unwrap_or(false)
    }

    /// Appends bytes `from` to `to` of the value in the record to `out`.
    pub fn copy(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        let tail = self.value.tail();
        let pages = self.value.length() - tail.len();
        if pages == 0 {
            return out.extend_from_slice(&tail[from..to]);
        }
        let mut take = |at: usize, part: &[u8]| {
            let (first, last) = (from.max(at), to.min(at + part.len()));
            if first < last {
                out.extend_from_slice(&part[first - at..last - at]);
            }
        };
        self.value.each_part(|at, part| {
            if at < pages {
                take(at, part);
            }
        });
        take(pages, tail);
    }
}

/// Fills `part` with the bytes from offset `at` of consecutive segments, and with zeros beyond their end.
pub fn copy_segments(segments: &[&[u8]], at: usize, part: &mut [u8]) {
    let (mut at, mut filled) = (at, 0);
    for segment in segments {
        if at >= segment.len() {
            at -= segment.len();
            continue;
        }
        let bytes = (segment.len() - at).min(part.len() - filled);
        part[filled..filled + bytes].copy_from_slice(&segment[at..at + bytes]);
        filled += bytes;
        at = 0;
        if filled == part.len() {
            return;
        }
    }
    part[filled..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_footer_lies_behind_whole_pages_and_no_record_is_a_page() {
        for inline in (0..3 * PAGE_BYTES).step_by(7).chain([4095, 4096, 4097, 65_536]) {
            for key in [0, 1, 16, 4000, 4055, 4056, 4057, 4096, 8192 - 40, 8192 - 39, 65_536] {
                let at = key_offset(inline, key);
                let over = (at + key + FOOTER_BYTES) % PAGE_BYTES;
                assert!(at >= inline && at < inline + PAGE_BYTES, "{inline} {key}");
                assert!(over >= FOOTER_BYTES, "{inline} {key}: {over} bytes behind the pages");
                if key + FOOTER_BYTES < PAGE_BYTES {
                    assert!(over >= key + FOOTER_BYTES, "{inline} {key}: the key is cut");
                }
            }
        }
    }

    #[test]
    fn a_footer_is_what_was_written() {
        let footer = Footer {
            value_bytes: 5,
            expires_ms: 1 << 40,
            version: 7,
            chunks: CHUNKS_BIT | 3,
            key_bytes: 3,
        };
        let bytes = footer.encode(b"key");
        assert_eq!(Footer::decode(&bytes), Some(footer));
        assert_eq!(Footer::decode(&bytes[1..]), None);
        assert_ne!(footer.encode(b"kez"), bytes);
        assert!(footer.is_over(1 << 40) && !footer.is_over((1 << 40) - 1));
    }

    #[test]
    fn segments_stand_one_behind_the_other() {
        let mut part = [9; 6];
        copy_segments(&[b"ab", b"", b"cde"], 1, &mut part);
        assert_eq!(&part, b"bcde\0\0");
    }
}
