//! The values: half of them real text, half random bytes. Key and version determine each value.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Sources of the text that every Debian has: licences, copyright notices, and Perl's library.
const TEXT_SOURCES: [&str; 3] =
    ["/usr/share/common-licenses", "/usr/share/doc", "/usr/lib/x86_64-linux-gnu/perl-base"];
/// Enough text that values rarely share it.
const TEXT_BYTES: usize = 8 << 20;
/// Largest part of a file, so that no file dominates the text.
const FILE_BYTES: usize = 128 << 10;
/// Shortest and longest value, bytes.
const LENGTHS: (u64, u64) = (1000, 8000);
/// Bytes of the key and version before the body of each value.
const HEAD_BYTES: usize = 16;
/// The text's LZ4 ratio is measured by pieces of a page.
const PAGE_BYTES: usize = 4096;

/// Real text.
pub struct Corpus {
    /// The whole text.
    pub text: Vec<u8>,
    /// Size of the text divided by its size under LZ4, page by page.
    pub lz4_ratio: f64,
}

impl Corpus {
    /// Reads text from installed files.
    ///
    /// # Errors
    /// There is too little text.
    pub fn load() -> Result<Self> {
        let mut text = Vec::new();
        for source in TEXT_SOURCES {
            take_text(Path::new(source), &mut text);
        }
        let longest = usize::try_from(LENGTHS.1)?;
        ensure!(text.len() > 16 * longest, "too little text in {}", TEXT_SOURCES.join(", "));
        let (mut before, mut after) = (0, 0);
        let mut packed = vec![0; lz4_flex::block::get_maximum_output_size(PAGE_BYTES)];
        for page in text.chunks_exact(PAGE_BYTES) {
            before += page.len();
            after += lz4_flex::block::compress_into(page, &mut packed)?;
        }
        Ok(Self { text, lz4_ratio: before as f64 / after as f64 })
    }
}

/// Adds the text of a file, or of all files below a folder in the order of their names.
fn take_text(path: &Path, text: &mut Vec<u8>) {
    if text.len() >= TEXT_BYTES {
        return;
    }
    if let Ok(entries) = fs::read_dir(path) {
        let mut inside: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        inside.sort();
        for path in inside {
            take_text(&path, text);
        }
    } else if let Ok(bytes) = fs::read(path) {
        let part = &bytes[..bytes.len().min(FILE_BYTES)];
        if part.iter().all(|byte| *byte >= b' ' || b"\n\t\r\x0c".contains(byte)) {
            text.extend_from_slice(part);
        }
    }
}

/// All values, distributed to connections so that each knows what it last wrote.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// The text of half of the values.
    pub corpus: &'a Corpus,
    /// The number of values.
    pub count: u64,
    /// Connections that share them.
    pub connections: usize,
}

impl<'a> Values<'a> {
    /// As many values as fill `bytes`.
    pub fn new(corpus: &'a Corpus, bytes: u64, connections: usize) -> Self {
        let mut count = 0;
        let mut total = 0;
        while total < bytes {
            total += length_of(count);
            count += 1;
        }
        Self { corpus, count, connections }
    }

    /// Keys of one connection: every `connections`-th.
    pub fn keys_of(&self, connection: usize) -> Vec<u64> {
        (connection as u64..self.count).step_by(self.connections).collect()
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> u64 {
        (0..self.count).map(length_of).sum()
    }

    /// Writes the value of `key` in `version` into `out`.
    pub fn make(&self, key: u64, version: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        let body = usize::try_from(length_of(key)).unwrap_or(usize::MAX) - HEAD_BYTES;
        let mut random = SmallRng::seed_from_u64(mix(key ^ version << 40));
        if is_text(key) {
            let text = &self.corpus.text;
            let places = (text.len() - body) as u64;
            let at = usize::try_from(random.next_u64() % places).unwrap_or(0);
            out.extend_from_slice(&text[at..at + body]);
        } else {
            out.resize(HEAD_BYTES + body, 0);
            random.fill_bytes(&mut out[HEAD_BYTES..]);
        }
    }
}

/// Half of the values are text, independent of their length and connection.
fn is_text(key: u64) -> bool {
    mix(key) & 1 == 0
}

fn length_of(key: u64) -> u64 {
    LENGTHS.0 + mix(!key) % (LENGTHS.1 - LENGTHS.0)
}

/// The finaliser of splitmix64.
pub fn mix(key: u64) -> u64 {
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

/// The description of the values, for the table.
pub fn description(values: &Values<'_>) -> String {
    format!(
        "{} values of {} to {} bytes, {} MiB in all: half random bytes, half text (licences, \
         copyright notices and Perl's library), which LZ4 packs {:.2} to 1 by the page",
        values.count,
        LENGTHS.0,
        LENGTHS.1,
        values.bytes() >> 20,
        values.corpus.lz4_ratio,
    )
}
