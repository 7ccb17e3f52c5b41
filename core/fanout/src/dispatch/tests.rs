//! Tests of dispatch with lenders that stop answering.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use spillway_block::Device;
use spillway_test_support::wait;

use super::*;
use crate::write_back::tests::Fake;
use crate::{FanOut, Lender, Page, Settings, Standing};

/// A lender that stores pages until it is dead; from then on it does not answer.
#[derive(Debug)]
struct Mortal {
    pages: Mutex<Vec<Page>>,
    dead: AtomicBool,
}

impl Mortal {
    fn answer(&self, outcomes: &mut [PageOutcome], deadline: Instant) {
        outcomes.fill(PageOutcome::Done);
        if self.dead.load(Ordering::SeqCst) {
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            outcomes.fill(PageOutcome::Lost);
        }
    }
}

impl Lender for Mortal {
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], deadline: Instant) {
        for (key, page) in keys.iter().zip(pages) {
            self.pages.lock().unwrap()[key.index as usize].0 = page.0;
        }
        self.answer(outcomes, deadline);
    }

    fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [PageOutcome], end: Instant) {
        for (key, page) in keys.iter().zip(pages) {
            page.0 = self.pages.lock().unwrap()[key.index as usize].0;
        }
        self.answer(outcomes, end);
    }

    fn flush(&self, _: &[Key], outcomes: &mut [PageOutcome], deadline: Instant) {
        self.answer(outcomes, deadline);
    }
}

/// Pages for which the write-back buffer has room.
const BUFFER_PAGES: u64 = 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// A device whose slabs have a copy with a lender and one in a file.
struct World {
    device: FanOut,
    lender: Arc<Mortal>,
    file: Arc<Fake>,
}

impl World {
    fn new(stall_max: Duration) -> Self {
        const SLABS: u32 = 8;
        let fake = Fake::new();
        let file = Holder::pages(Box::new(Arc::clone(&fake))).unwrap();
        let lender = Arc::new(Mortal {
            pages: Mutex::new(vec![Page([0; 4096]); 256 * SLABS as usize]),
            dead: AtomicBool::new(false),
        });
        let holder = Holder::lender(0, lender.clone()).unwrap();
        let place =
            |holder: &Arc<Holder>, slab| Some(SlabLocation { holder: holder.clone(), slab });
        // The fake file ends inside the fifth slab.
        let slabs = (0..SLABS).map(|slab| [place(&holder, slab), place(&file, slab)]).collect();
        let settings = Settings {
            slab_bytes: 1 << 20,
            request_timeout: REQUEST_TIMEOUT,
            stall_max,
            ..Settings::default()
        };
        let device = FanOut::open(settings, 1, slabs, |_| {}).unwrap();
        Self { device, lender, file: fake }
    }

    /// Holds the file, and fills the buffer.
    fn fill(&self) {
        self.file.hold(true);
        for page in 0..BUFFER_PAGES {
            self.device.write(page * 4096, &[1; 4096]).unwrap();
        }
    }

    fn verify(&self, pages: &[(u64, u8)]) {
        let mut page = [0; 4096];
        for &(number, value) in pages {
            self.device.read(number * 4096, &mut page).unwrap();
            assert_eq!(page, [value; 4096]);
        }
        assert_eq!(self.device.counters().errors, 0);
    }

    /// The copy in the file of the slab behind those that the buffer has.
    fn file_copy(&self) -> Standing {
        let slab = (BUFFER_PAGES / 256) as u32;
        self.device.places(slab).unwrap()[1].clone().unwrap()
    }
}

#[test]
fn a_lender_that_dies_while_the_file_has_no_room_costs_time_and_no_page() {
    let world = World::new(Settings::default().stall_max);
    world.fill();
    world.lender.dead.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let writes = scope.spawn(|| world.device.write(BUFFER_PAGES * 4096, &[2; 4096]));
        thread::sleep(4 * REQUEST_TIMEOUT);
        world.file.hold(false);
        writes.join().unwrap().unwrap();
    });
    world.verify(&[(0, 1), (BUFFER_PAGES - 1, 1), (BUFFER_PAGES, 2)]);
}

#[test]
fn a_file_that_hangs_gets_what_it_missed_when_it_goes_on() {
    let world = World::new(Duration::from_secs(60));
    world.fill();
    world.device.write(BUFFER_PAGES * 4096, &[2; 4096]).unwrap();
    let copy = world.file_copy();
    assert_eq!((copy.is_lost, copy.behind_pages), (false, 1));
    world.file.hold(false);
    wait::until("the file to have what it missed", || world.file_copy().behind_pages == 0);
    world.lender.dead.store(true, Ordering::SeqCst);
    world.verify(&[(0, 1), (BUFFER_PAGES, 2)]);
}

#[test]
fn a_file_that_hangs_for_too_long_is_given_up() {
    let world = World::new(Duration::from_millis(300));
    world.fill();
    world.device.write(BUFFER_PAGES * 4096, &[2; 4096]).unwrap();
    wait::until("the file to be given up", || world.file_copy().is_lost);
    world.file.hold(false);
    world.verify(&[(0, 1), (BUFFER_PAGES, 2)]);
}
