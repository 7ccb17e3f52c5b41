//! What a lender sees of sealed pages: equal bytes never look equal, however often they are written.

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use spillway_block::{Data, Device, Request};
use spillway_fanout::{FanOut, Holder, Lender, Page, PageOutcome, SlabLocation};
use spillway_types::Key;
use support::settings;

const THREADS: u64 = 4;
const ROUNDS: u64 = 40;
const BATCH: u64 = 32;

/// A lender that keeps the first bytes of each page that it was sent.
#[derive(Debug, Default)]
struct Collector {
    seen: Mutex<HashSet<[u8; 32]>>,
}

impl Lender for Collector {
    fn put(&self, _: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], _: Instant) {
        let mut seen = self.seen.lock().unwrap();
        for page in pages {
            seen.insert(page.0[..32].try_into().unwrap());
        }
        outcomes.fill(PageOutcome::Done);
    }

    fn get(&self, _: &[Key], _: &mut [Page], outcomes: &mut [PageOutcome], _: Instant) {
        outcomes.fill(PageOutcome::Missing);
    }

    fn flush(&self, _: &[Key], outcomes: &mut [PageOutcome], _: Instant) {
        outcomes.fill(PageOutcome::Done);
    }
}

#[test]
fn equal_pages_never_look_equal() {
    let lender = Arc::new(Collector::default());
    let holder = Holder::lender(0, lender.clone()).unwrap();
    let slabs = vec![[Some(SlabLocation { holder, slab: 0 }), None]];
    let device = FanOut::open(settings(Duration::from_secs(60)), 1, slabs, |_| {}).unwrap();
    let zeros = [0; 4096];
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (device, zeros) = (&device, &zeros);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let request = |page| {
                        let offset = (thread * BATCH + page) * 4096;
                        Request::new(offset, Data::Write(zeros))
                    };
                    let mut requests: Vec<_> = (0..BATCH).map(request).collect();
                    device.batch(&mut requests);
                    assert!(requests.iter().all(|request| !request.failed.get()));
                }
            });
        }
    });
    let seen = lender.seen.lock().unwrap().len() as u64;
    assert_eq!(seen, THREADS * ROUNDS * BATCH, "a nonce was used twice");
}
