//! Packs the store's pages, or moves them to lower tiers, before memory runs out. Takes pages of all
//! clients, whatever their targets.
//!
//! The store wakes this thread when memory is low. A fast writer can fill memory within milliseconds, so a
//! put that finds memory full packs pages itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use spillway_store::{Scratch, Store};

/// Interval at which the store is checked in any case.
const LOOK: Duration = Duration::from_secs(1);
/// Pages between two checks of how much memory is left.
const BATCH_PAGES: usize = 64;
/// If at least one in this many tried pages packs, the thread continues at once.
const WORTH_PART: usize = 16;
/// Otherwise it pauses, first for this long.
const REST_MIN: Duration = Duration::from_millis(4);
/// The longest pause.
const REST_MAX: Duration = Duration::from_secs(1);

/// The thread that packs.
#[derive(Debug)]
pub struct Packing {
    store: Arc<Store>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Packing {
    /// Starts it.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(store: &Arc<Store>) -> anyhow::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let (its, seen) = (Arc::clone(store), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("packing".into())
            .spawn(move || run(&its, &seen))
            .context("can't start to pack")?;
        Ok(Self { store: Arc::clone(store), ends, thread: Some(thread) })
    }
}

impl Drop for Packing {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.store.wake();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic would have ended the daemon earlier.
            let _ = thread.join();
        }
    }
}

fn run(store: &Store, ends: &AtomicBool) {
    let mut scratch = Scratch::new();
    let mut rest = REST_MIN;
    let ended = || ends.load(Ordering::Acquire);
    while !ended() {
        if store.memory_bytes() > store.capacity_bytes() {
            // The store's capacity was reduced.
            store.shrink(Instant::now() + LOOK, &mut scratch);
        }
        let mut worth = true;
        while worth && store.is_short() && !ended() {
            let (moved, incompressible) = store.make_room_ahead(BATCH_PAGES, &mut scratch);
            worth = moved != 0 && moved >= incompressible / WORTH_PART;
        }
        if worth {
            rest = REST_MIN;
            store.wait_low(LOOK);
        } else {
            // Each incompressible page is tried only once, but a writer can keep adding new ones.
            thread::park_timeout(rest);
            rest = (rest * 2).min(REST_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_store::{ClientConfig, Config, Key, PAGE_BYTES, PoolSpec, Put};

    use super::*;

    #[test]
    fn a_capacity_that_became_smaller_is_kept_without_being_asked() {
        let (own_bytes, lent_bytes) = (16 << 20, 32 << 20);
        let store = Arc::new(Store::open(Config::embedded(own_bytes + lent_bytes)).unwrap());
        let client = store.add_client(ClientConfig::default()).unwrap();
        let pool = store.create_pool(client, PoolSpec::EPHEMERAL).unwrap();
        for number in 0..(own_bytes + lent_bytes / 2) / PAGE_BYTES as u64 {
            let mut page = [number as u8 | 1; PAGE_BYTES];
            page[..8].copy_from_slice(&number.to_ne_bytes());
            assert_eq!(store.put(pool, Key::new(number, 0), &page), Put::Stored, "{number}");
        }
        assert!(store.memory_bytes() > own_bytes + lent_bytes / 4);
        // As after a restart, memory is not low: nothing else would wake it.
        store.set_capacity(own_bytes, 0);
        let _packing = Packing::start(&store).unwrap();
        let began = Instant::now();
        while store.memory_bytes() > own_bytes {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", store.memory_bytes());
            thread::sleep(Duration::from_millis(10));
        }
    }
}
