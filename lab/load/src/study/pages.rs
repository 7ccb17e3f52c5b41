//! The cache's values: rendered pages and fragments of a wiki, by key and version.
//!
//! The paper's facts about its trace (section 6): 11.6 million requests to 809,272 keys, 6.4 KB on average. It gives
//! neither the distribution of the sizes nor of the popularity.

use anyhow::{Result, ensure};
use clap::Args;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal, Zipf};

use crate::values::{Corpus, mix};

/// The paper's keys and requests.
const PAPER_KEYS: f64 = 809_272.0;
const PAPER_REQUESTS: f64 = 11.6e6;
/// Requests that do not follow a miss: all except the first store of each key.
const ASKED: f64 = PAPER_REQUESTS - PAPER_KEYS;
/// The paper's average size of a value, bytes.
pub const MEAN_BYTES: f64 = 6400.0;
/// Spread of the sizes. Sizes of web objects are products of many factors, thus log-normal. With a spread of 1, half of
/// the values are below 3.9 KB, and one in a hundred is above 40 KB.
const SIGMA: f64 = 1.0;
/// A value contains key and version, and is not larger than memcached's chunk of 512 KiB.
const LEAST_BYTES: f64 = 64.0;
const MOST_BYTES: f64 = 500_000.0;
/// The paper's 2.4 million page views became 11.6 million requests. One request of each view is for the page itself (an
/// assumption). The others are for objects that many pages share, such as messages.
const PAGE_SHARE: f64 = 2.4e6 / ASKED;
/// The paper gives no mix of requests. But it gives a latency of 1 ms at 6 GB, where everything fits, with 10 ms for a
/// miss and 0.1 ms for a hit. So 9.1 % of the gets miss, which are the first gets of each key: there are 8.9 million
/// gets. The other requests that do not follow a miss are stores. They store objects that many pages share, so these
/// are already in the cache.
const EDIT_SHARE: f64 = 1.0 - PAPER_KEYS / 0.091 / ASKED;
/// One key in this many is shared, with the usual skew of caches.
const SHARED_EVERY: u64 = 100;
const SHARED_ZIPF: f64 = 0.99;
/// Skew of the pages: much less than that of all requests.
const PAGE_ZIPF: f64 = 0.6;
/// Existing keys for each key that occurs in the trace; the paper counts the keys that occurred.
const KEYS_PER_SEEN: f64 = 1.25;
const HEAD_BYTES: usize = 16;

/// The trace. The same options give the same trace.
#[derive(Args, Clone, Copy, Debug)]
pub struct Trace {
    /// Keys and requests as a fraction of the paper's 809,272 and 11.6 million.
    #[arg(long)]
    pub scale: f64,
    /// The seed of keys, sizes, popularity and due times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Connections. Each has its own keys, so that it knows what it last wrote.
    #[arg(long, default_value_t = 16)]
    pub connections: u64,
}

impl Trace {
    /// Refuses options without a trace.
    ///
    /// # Errors
    /// The scale or the number of connections is out of range.
    pub fn checked(self) -> Result<Self> {
        ensure!(self.scale > 0.0 && self.scale <= 1.0, "--scale {}: not in (0, 1]", self.scale);
        let most = self.keys() / 16;
        ensure!(
            (1..=most).contains(&self.connections),
            "--connections {}: not 1 to {most}, a sixteenth of the keys",
            self.connections
        );
        Ok(self)
    }

    /// The number of keys that can occur.
    pub fn keys(&self) -> u64 {
        (PAPER_KEYS * KEYS_PER_SEEN * self.scale) as u64
    }

    /// Requests of each connection in the whole trace, without the stores that follow a miss.
    pub fn requests_of_connection(&self) -> u64 {
        (ASKED * self.scale) as u64 / self.connections
    }

    /// Bytes of a key's value. They do not change with its version.
    pub fn length_of(&self, key: u64) -> usize {
        let mut random = SmallRng::seed_from_u64(mix(!key ^ self.seed << 32));
        let mean_of_log = MEAN_BYTES.ln() - SIGMA * SIGMA / 2.0;
        let sizes = LogNormal::new(mean_of_log, SIGMA).expect("SIGMA is finite");
        sizes.sample(&mut random).clamp(LEAST_BYTES, MOST_BYTES) as usize
    }

    /// Writes the value of `key` in `version` into `out`: its head, then text or random bytes, so that half of the
    /// values compress.
    pub fn make(&self, corpus: &Corpus, key: u64, version: u64, out: &mut Vec<u8>) {
        let body = self.length_of(key) - HEAD_BYTES;
        let mut random = SmallRng::seed_from_u64(mix(key ^ version << 40 ^ self.seed << 24));
        out.clear();
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        if mix(key ^ self.seed) & 1 == 0 {
            let places = (corpus.text.len() - body) as u64;
            let at = (random.next_u64() % places) as usize;
            out.extend_from_slice(&corpus.text[at..at + body]);
        } else {
            out.resize(HEAD_BYTES + body, 0);
            random.fill_bytes(&mut out[HEAD_BYTES..]);
        }
    }
}

/// A connection's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads the page of this rank. After a miss, stores it: by add if `adds`, else by set.
    Get { rank: usize, adds: bool },
    /// Stores a new version of the object of this rank.
    Edit { rank: usize },
}

impl Request {
    /// The rank of the object.
    pub const fn rank(self) -> usize {
        match self {
            Self::Get { rank, .. } | Self::Edit { rank } => rank,
        }
    }
}

/// The endless requests of a connection.
pub struct Requests {
    shared: Zipf<f64>,
    pages: Zipf<f64>,
    shared_keys: usize,
    random: SmallRng,
}

impl Requests {
    /// The requests of connection `connection`.
    pub fn new(trace: &Trace, connection: u64) -> Result<Self> {
        let keys = keys_of(trace, connection).len();
        let shared_keys = keys.div_ceil(SHARED_EVERY as usize);
        let seed = mix(trace.seed << 20 ^ connection);
        Ok(Self {
            shared: Zipf::new(shared_keys as f64, SHARED_ZIPF)?,
            pages: Zipf::new((keys - shared_keys) as f64, PAGE_ZIPF)?,
            shared_keys,
            random: SmallRng::seed_from_u64(seed),
        })
    }

    fn shared(&mut self) -> usize {
        self.shared.sample(&mut self.random) as usize - 1
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let kind: f64 = self.random.random();
        if kind < EDIT_SHARE {
            return Some(Request::Edit { rank: self.shared() });
        }
        let adds = self.random.random_bool(0.5);
        let rank = if kind < EDIT_SHARE + PAGE_SHARE {
            self.shared_keys + self.pages.sample(&mut self.random) as usize - 1
        } else {
            self.shared()
        };
        Some(Request::Get { rank, adds })
    }
}

/// The keys of a connection by rank: first those that pages share, then the most popular pages. A key's popularity is
/// independent of its number, and so of the place of its value.
pub fn keys_of(trace: &Trace, connection: u64) -> Vec<u64> {
    let mut keys: Vec<_> = (connection..trace.keys()).step_by(trace.connections as usize).collect();
    keys.shuffle(&mut SmallRng::seed_from_u64(mix(trace.seed << 40 ^ connection)));
    keys
}

#[cfg(test)]
pub const TEST: Trace = Trace { scale: 1.0 / 16.0, seed: 1, connections: 16 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_papers_mean() {
        let keys = TEST.keys();
        let bytes: usize = (0..keys).map(|key| TEST.length_of(key)).sum();
        let mean = bytes as f64 / keys as f64;
        assert!((mean / MEAN_BYTES - 1.0).abs() < 0.02, "{mean} bytes on average");
        let below = (0..keys).filter(|key| TEST.length_of(*key) < 3882).count() as f64;
        assert!((below / keys as f64 - 0.5).abs() < 0.01, "half are below the median");
    }

    #[test]
    fn values_are_of_seed_key_and_version() {
        let corpus = Corpus::load().unwrap();
        let made = |trace: &Trace, key, version| {
            let mut out = Vec::new();
            trace.make(&corpus, key, version, &mut out);
            assert_eq!(out.len(), trace.length_of(key));
            out
        };
        for key in 0..100 {
            assert_eq!(made(&TEST, key, 1), made(&TEST, key, 1));
            assert_ne!(made(&TEST, key, 1), made(&TEST, key, 2));
            assert_ne!(made(&TEST, key, 1), made(&Trace { seed: 2, ..TEST }, key, 1));
        }
    }

    #[test]
    fn requests_are_of_the_seed() {
        let some = |trace: &Trace, connection| -> Vec<_> {
            Requests::new(trace, connection).unwrap().take(1000).collect()
        };
        assert_eq!(some(&TEST, 3), some(&TEST, 3));
        assert_ne!(some(&TEST, 3), some(&TEST, 4));
        assert_ne!(some(&TEST, 3), some(&Trace { seed: 2, ..TEST }, 3));
        assert_eq!(keys_of(&TEST, 3), keys_of(&TEST, 3));
    }

    #[test]
    fn a_sixth_of_the_requests_edit_and_half_of_the_misses_add() {
        let some: Vec<_> = Requests::new(&TEST, 0).unwrap().take(100_000).collect();
        let edits = some.iter().filter(|it| matches!(it, Request::Edit { .. })).count();
        assert!((17_000..18_000).contains(&edits), "{edits}");
        let adds = some.iter().filter(|it| matches!(it, Request::Get { adds: true, .. })).count();
        assert!((40_000..42_500).contains(&adds), "{adds}");
    }

    #[test]
    fn bad_options_are_refused() {
        for scale in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(Trace { scale, ..TEST }.checked().is_err(), "{scale}");
        }
        for connections in [0, TEST.keys()] {
            assert!(Trace { connections, ..TEST }.checked().is_err(), "{connections}");
        }
        assert!(TEST.checked().is_ok());
    }
}
