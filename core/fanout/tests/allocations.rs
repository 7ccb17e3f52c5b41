//! Once it runs, no request allocates: a kernel that swaps onto the device has no memory to give.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_block::{Data, Device, Request};
use spillway_fanout::{
    BackupFile, FanOut, Holder, Lender, Page, PageOutcome, Settings, SlabLocation,
};
use spillway_types::Key;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: it only counts, and hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A lender whose memory is all there. Pages beyond it are lost.
#[derive(Debug)]
struct Array(Mutex<Vec<Page>>);

impl Lender for Array {
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], _: Instant) {
        let mut all = self.0.lock().unwrap();
        for ((key, page), outcome) in keys.iter().zip(pages).zip(outcomes) {
            all[key.index as usize].0 = page.0;
            *outcome = PageOutcome::Done;
        }
    }

    fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [PageOutcome], _: Instant) {
        let all = self.0.lock().unwrap();
        for ((key, page), outcome) in keys.iter().zip(pages).zip(outcomes) {
            page.0 = all[key.index as usize].0;
            *outcome = PageOutcome::Done;
        }
    }

    fn flush(&self, _: &[Key], outcomes: &mut [PageOutcome], _: Instant) {
        outcomes.fill(PageOutcome::Done);
    }
}

const SLAB_BYTES: u64 = 1 << 20;

fn array(number: u64) -> Arc<Holder> {
    let pages = vec![Page([0; 4096]); 2 * (SLAB_BYTES / 4096) as usize];
    Holder::lender(number, Arc::new(Array(Mutex::new(pages)))).unwrap()
}

/// Requests of all kinds, in batches and alone.
fn use_it(device: &FanOut, data: &[u8], rooms: &mut [Vec<u8>]) {
    let mut writes: [Request<'_>; 32] = std::array::from_fn(|at| {
        Request::new(at as u64 * 4096 * 13 % (2 * SLAB_BYTES), Data::Write(data))
    });
    device.batch(&mut writes);
    let mut rooms = rooms.iter_mut();
    let mut reads: [Request<'_>; 32] = std::array::from_fn(|at| {
        let room = rooms.next().unwrap();
        Request::new(at as u64 * 4096 * 13 % (2 * SLAB_BYTES), Data::Read(room))
    });
    device.batch(&mut reads);
    assert!(reads.iter().chain(&writes).all(|request| !request.failed.get()));
    device.write(100, &data[..900]).unwrap();
    device.write_zeroes(5000, 20_000).unwrap();
    device.deallocate(0, 40 * 4096).unwrap();
}

#[test]
fn no_request_allocates() {
    let directory = tempfile::tempdir().unwrap();
    let file = BackupFile::open(&directory.path().join("backup"), 2 * SLAB_BYTES).unwrap();
    let file = Holder::file(file).unwrap();
    let (one, two) = (array(0), array(1));
    let at = |holder: &Arc<Holder>, slab| Some(SlabLocation { holder: holder.clone(), slab });
    let slabs = vec![[at(&one, 0), at(&two, 0)], [at(&two, 1), at(&file, 1)]];
    let settings = Settings { slab_bytes: SLAB_BYTES, ..Settings::default() };
    let device = FanOut::open(settings, 1, slabs, |_| {}).unwrap();
    let (data, mut rooms) = (vec![7; 4096], vec![vec![0; 4096]; 32]);
    // Threads start, and use what they need once.
    loop {
        use_it(&device, &data, &mut rooms);
        let count = ALLOCATIONS.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        if ALLOCATIONS.load(Ordering::Relaxed) == count {
            break;
        }
    }
    let mut round = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..100).for_each(|_| use_it(&device, &data, &mut rooms));
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    // On a busy machine a thread may start later. What a request allocates, it allocates in every round.
    let least = (0..5).map(|_| round()).find(|&count| count == 0);
    assert_eq!(least, Some(0), "each of five rounds allocates");
}
