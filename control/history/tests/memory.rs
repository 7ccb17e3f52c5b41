//! The memory of a history is that of the samples that it has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spillway_history::{Bounds, ClientSample, History, ObservedClient, StoreLevels};
use spillway_types::{ClientId, Statistics};

static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: it only counts, and hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SAMPLES: usize = 3600;
/// A sample of the store, which has its place from the beginning.
const STORE_BYTES: usize = 100;
/// A node of the tree of clients.
const NODE_BYTES: usize = 4096;

/// Adds samples of the clients that `ids` names for the number of each; the bytes of all allocations afterwards.
fn record(
    history: &mut History,
    samples: usize,
    ids: impl Fn(u64) -> std::ops::Range<u64>,
) -> usize {
    for _ in 0..samples {
        let clients = ids(history.newest()).map(|id| ObservedClient {
            id: ClientId(id),
            name: "somebody",
            statistics: Statistics::default(),
        });
        let clients: Vec<_> = clients.collect();
        history.record(0, StoreLevels::default(), clients.into_iter());
    }
    BYTES.load(Ordering::Relaxed)
}

/// One test, because other threads would count as well.
#[test]
fn it_grows_until_it_is_full_and_no_more() {
    let before = BYTES.load(Ordering::Relaxed);
    let mut history = History::new(Bounds::default());

    let full = record(&mut history, SAMPLES, |_| 0..8);
    let most = SAMPLES * (8 * size_of::<ClientSample>() + STORE_BYTES) + NODE_BYTES;
    assert!(full - before <= most, "{} bytes, and at most {most} are needed", full - before);
    // Past the bound in samples times clients.
    assert_eq!(record(&mut history, 20 * SAMPLES, |_| 0..8), full, "it grew once it was full");

    // Each sample has another client.
    let passing = |number| 1000 + number..1008 + number;
    let of_passing = record(&mut history, 2 * SAMPLES, passing);
    let again = record(&mut history, 20 * SAMPLES, passing);
    assert!(
        again <= of_passing + NODE_BYTES,
        "clients that came and went: {again} bytes after {of_passing}"
    );

    // What others took is free once their samples are gone.
    record(&mut history, SAMPLES, |_| 0..100);
    let few = record(&mut history, 2 * SAMPLES, |_| 0..8);
    assert!(few <= full, "{few} bytes with 8 clients again, {full} when there were no others yet");
}
