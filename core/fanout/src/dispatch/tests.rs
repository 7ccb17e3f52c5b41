//! Tests of dispatch with lenders that stop answering.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use spillway_block::Device;

use super::*;
use crate::write_back::tests::Fake;
use crate::{FanOut, Lender, Page, Settings};

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

#[test]
fn a_lender_that_dies_while_the_file_has_no_room_costs_time_and_no_page() {
    const SLABS: u32 = 8;
    // Pages for which the write-back buffer has room.
    const BUFFER_PAGES: u64 = 1024;
    let fake = Fake::new();
    let file = Holder::pages(Box::new(Arc::clone(&fake))).unwrap();
    let lender = Arc::new(Mortal {
        pages: Mutex::new(vec![Page([0; 4096]); 256 * SLABS as usize]),
        dead: AtomicBool::new(false),
    });
    let holder = Holder::lender(0, lender.clone()).unwrap();
    let place = |holder: &Arc<Holder>, slab| Some(SlabLocation { holder: holder.clone(), slab });
    // The fake file ends inside the fifth slab.
    let slabs = (0..SLABS).map(|slab| [place(&holder, slab), place(&file, slab)]).collect();
    let request_timeout = Duration::from_millis(100);
    let settings = Settings { slab_bytes: 1 << 20, request_timeout, ..Settings::default() };
    let device = FanOut::open(settings, 1, slabs, |_| {}).unwrap();
    fake.hold(true);
    for page in 0..BUFFER_PAGES {
        device.write(page * 4096, &[1; 4096]).unwrap();
    }
    lender.dead.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let writes = scope.spawn(|| device.write(BUFFER_PAGES * 4096, &[2; 4096]));
        thread::sleep(4 * request_timeout);
        fake.hold(false);
        writes.join().unwrap().unwrap();
    });
    let mut page = [0; 4096];
    for (number, value) in [(0, 1), (BUFFER_PAGES - 1, 1), (BUFFER_PAGES, 2)] {
        device.read(number * 4096, &mut page).unwrap();
        assert_eq!(page, [value; 4096]);
    }
    assert_eq!(device.counters().errors, 0);
}
