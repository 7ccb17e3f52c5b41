//! Load that checks every answer against what it knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spillway_client::{Get, Key, Pool, Put, Store};

/// Keys that a thread uses.
const KEYS: u32 = 2000;
/// What a refused put costs.
const DISK: Duration = Duration::from_millis(1);

/// What a thread knows of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The version that was acknowledged last; 0 is none.
    sure: u64,
    /// What was under way when the daemon died; it may have happened or not.
    maybe: Option<u64>,
}

/// The value of a version of a key: of any length, and of its own content all over.
fn value_of(thread: u64, index: u32, version: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(thread << 56 ^ u64::from(index) << 40 ^ version);
    let length = match version % 4 {
        0 => rng.random_range(1..200),
        1 => rng.random_range(4097..20_000),
        _ => 4096,
    };
    let mut value = vec![0; length];
    if version.is_multiple_of(3) {
        value.fill(version as u8);
    } else {
        rng.fill(&mut value[..]);
    }
    value
}

/// A thread of load, with what it knows of its keys.
pub struct Worker {
    thread: u64,
    keys: HashMap<u32, Known>,
    version: u64,
    rng: StdRng,
}

impl Worker {
    /// Knows nothing yet.
    pub fn new(thread: u64, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ thread);
        Self { thread, keys: HashMap::new(), version: 0, rng }
    }

    /// Works until the connection ends. Every answer is checked against what is known.
    pub fn work(&mut self, store: &dyn Store, pool: Pool, stop: &AtomicBool) {
        let mut buffer = vec![0; 32 << 10];
        while !stop.load(Ordering::Relaxed) {
            let index = self.rng.random_range(0..KEYS);
            let key = Key::new(self.thread, index);
            let known = self.keys.entry(index).or_default();
            match self.rng.random_range(0..10) {
                0..6 => {
                    self.version += 1;
                    let value = value_of(self.thread, index, self.version);
                    known.maybe = Some(self.version);
                    match store.put(pool, key, &value) {
                        Ok(Put::Stored) => *known = Known { sure: self.version, maybe: None },
                        // After a refusal the old value is gone too, and the new one goes to a disk.
                        Ok(Put::Refused(_)) => {
                            *known = Known::default();
                            thread::sleep(DISK);
                        }
                        Err(_) => return,
                    }
                }
                6 => {
                    known.maybe = Some(0);
                    match store.flush(pool, key) {
                        Ok(_) => *known = Known::default(),
                        Err(_) => return,
                    }
                }
                _ => match store.get(pool, key, &mut buffer) {
                    Ok(got) => self.check(index, got, &buffer),
                    Err(_) => return,
                },
            }
        }
    }

    fn check(&mut self, index: u32, got: Get, buffer: &[u8]) {
        let known = self.keys.entry(index).or_default();
        let is = |version: u64| match got {
            Get::Miss => version == 0,
            Get::Hit(length) => {
                version != 0 && buffer[..length] == value_of(self.thread, index, version)
            }
            Get::Short(length) => panic!("a value of {length} bytes, which nobody stored"),
        };
        if known.maybe.is_some_and(is) {
            *known = Known { sure: known.maybe.unwrap_or_default(), maybe: None };
        } else {
            assert!(is(known.sure), "thread {} key {index}: {known:?}, got {got:?}", self.thread);
            known.maybe = None;
        }
    }

    /// How many keys hold a value.
    pub fn known(&self) -> usize {
        self.keys.values().filter(|known| known.sure != 0).count()
    }

    /// Reads everything that is known.
    pub fn verify(&mut self, store: &dyn Store, pool: Pool) {
        let mut buffer = vec![0; 32 << 10];
        let mut indexes: Vec<_> = self.keys.keys().copied().collect();
        indexes.sort_unstable();
        for index in indexes {
            let got = store.get(pool, Key::new(self.thread, index), &mut buffer).unwrap();
            self.check(index, got, &buffer);
        }
    }
}
