//! The write-back buffer in front of a file that is slow, hangs and fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use proptest::prelude::*;
use spillway_test_support::wait;

use super::*;

/// Pages of the file: more than the buffer has room for.
const PAGES: u64 = BUFFER_PAGES as u64 + EXTENT_PAGES * WRITERS as u64;
const LONG: Duration = Duration::from_secs(30);

/// A file in memory. Its writes wait while it is held, and fail while it is broken.
#[derive(Debug)]
pub(crate) struct Fake {
    pages: Mutex<Vec<Page>>,
    held: Mutex<bool>,
    let_go: Condvar,
    broken: AtomicBool,
    /// The thread that wrote each extent first.
    writers: Mutex<HashMap<u64, ThreadId>>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pages: Mutex::new(vec![Page([0; PAGE_BYTES]); PAGES as usize]),
            held: Mutex::new(false),
            let_go: Condvar::new(),
            broken: AtomicBool::new(false),
            writers: Mutex::default(),
        })
    }

    pub(crate) fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.let_go.notify_all();
    }

    /// A byte of each page.
    fn values(&self) -> Vec<u8> {
        self.pages.lock().unwrap().iter().map(|page| page.0[0]).collect()
    }

    fn break_it(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
    }
}

impl super::Pages for Arc<Fake> {
    fn count(&self) -> u64 {
        PAGES
    }

    fn read(&self, first: u64, pages: &mut [Page]) -> io::Result<()> {
        let all = self.pages.lock().unwrap();
        for (at, page) in (first as usize..).zip(pages) {
            page.0 = all[at].0;
        }
        Ok(())
    }

    fn write(&self, first: u64, pages: &[Page]) -> io::Result<()> {
        assert!(pages.len() <= BATCH_PAGES);
        let (extent, this) = (first / EXTENT_PAGES, thread::current().id());
        let writer = *self.writers.lock().unwrap().entry(extent).or_insert(this);
        if writer != this {
            eprintln!("an extent with two writers");
            std::process::abort();
        }
        let mut held = self.held.lock().unwrap();
        while *held {
            held = self.let_go.wait(held).unwrap();
        }
        drop(held);
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut all = self.pages.lock().unwrap();
        for (at, page) in (first as usize..).zip(pages) {
            all[at].0 = page.0;
        }
        Ok(())
    }
}

const PAGE_BYTES: usize = spillway_types::PAGE_BYTES;

fn keys(first: u64, count: usize) -> Vec<Key> {
    (first..).take(count).map(|page| Key::new(0, page as u32)).collect()
}

fn put(
    write_back: &WriteBack,
    first: u64,
    count: usize,
    value: u8,
    limit: Duration,
) -> PageOutcome {
    let (pages, mut outcomes) =
        (vec![Page([value; PAGE_BYTES]); count], vec![PageOutcome::Missing; count]);
    write_back.put(&keys(first, count), &pages, &mut outcomes, Instant::now() + limit);
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]));
    outcomes[0]
}

/// Returns whether there was room at once.
fn put_now(write_back: &WriteBack, first: u64, count: usize, value: u8) -> bool {
    let (pages, mut outcomes) =
        (vec![Page([value; PAGE_BYTES]); count], vec![PageOutcome::Missing; count]);
    let executed = write_back.put_now(&keys(first, count), &pages, &mut outcomes);
    assert!(outcomes.iter().all(|outcome| (*outcome == PageOutcome::Done) == executed));
    executed
}

fn get(write_back: &WriteBack, first: u64, count: usize) -> Vec<u8> {
    let (mut pages, mut outcomes) = (Page::rooms(count), vec![PageOutcome::Missing; count]);
    write_back.get(&keys(first, count), &mut pages, &mut outcomes);
    assert!(outcomes.iter().all(|outcome| *outcome == PageOutcome::Done));
    pages.iter().map(|page| page.0[0]).collect()
}

/// Waits until the file has all pages of the buffer.
fn settle(write_back: &WriteBack) {
    let is_empty = || write_back.shared.buffer().free.len() == BUFFER_PAGES;
    wait::until("the file to have all pages", is_empty);
}

/// Most pages of a step.
const RUN_PAGES: usize = 20;

#[derive(Clone, Debug)]
enum Step {
    Put(u64, usize, u8),
    Get(u64, usize),
    Hold(bool),
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let run = || (0..PAGES - RUN_PAGES as u64, 1..=RUN_PAGES);
    let step = prop_oneof![
        6 => (run(), 1..=255_u8).prop_map(|((first, count), value)| Step::Put(first, count, value)),
        4 => run().prop_map(|(first, count)| Step::Get(first, count)),
        2 => any::<bool>().prop_map(Step::Hold),
        1 => Just(Step::Settle),
    ];
    // All pages of a sequence fit the buffer while the file is held.
    proptest::collection::vec(step, 1..BUFFER_PAGES / RUN_PAGES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_put_last_is_read_and_gets_to_the_file(steps in steps()) {
        let fake = Fake::new();
        let write_back = WriteBack::start(Box::new(Arc::clone(&fake))).unwrap();
        let mut model = vec![0; PAGES as usize];
        for step in steps {
            match step {
                Step::Put(first, count, value) => {
                    prop_assert_eq!(put(&write_back, first, count, value, LONG), PageOutcome::Done);
                    model[first as usize..][..count].fill(value);
                }
                Step::Get(first, count) => {
                    prop_assert_eq!(&get(&write_back, first, count), &model[first as usize..][..count]);
                }
                Step::Hold(held) => fake.hold(held),
                Step::Settle => {
                    fake.hold(false);
                    settle(&write_back);
                    prop_assert_eq!(&fake.values(), &model);
                }
            }
        }
        fake.hold(false);
        settle(&write_back);
        prop_assert_eq!(&fake.values(), &model);
    }
}

#[test]
fn a_file_that_hangs_is_waited_for_until_the_deadline() {
    let fake = Fake::new();
    let write_back = WriteBack::start(Box::new(Arc::clone(&fake))).unwrap();
    fake.hold(true);
    let full = BUFFER_PAGES as u64;
    for first in (0..full).step_by(BATCH_PAGES) {
        assert!(put_now(&write_back, first, BATCH_PAGES, 1));
    }
    assert_eq!(put(&write_back, full, 1, 1, Duration::from_millis(10)), PageOutcome::Lost);
    // A queued page that no writer has taken is overwritten in place.
    assert!(put_now(&write_back, full - 8, 8, 2));
    assert!(!put_now(&write_back, full, 1, 1));
    assert_eq!(put(&write_back, 0, 1, 1, Duration::ZERO), PageOutcome::Lost, "too late");
    thread::scope(|scope| {
        let waits = scope.spawn(|| put(&write_back, full, BATCH_PAGES, 3, LONG));
        fake.hold(false);
        assert_eq!(waits.join().unwrap(), PageOutcome::Done);
    });
    settle(&write_back);
    assert_eq!(get(&write_back, full - 9, 10), [1, 2, 2, 2, 2, 2, 2, 2, 2, 3]);
    assert_eq!(fake.values()[full as usize - 9..][..10], [1, 2, 2, 2, 2, 2, 2, 2, 2, 3]);
}

#[test]
fn a_file_that_fails_takes_nothing_more_and_comes_back() {
    let fake = Fake::new();
    let write_back = WriteBack::start(Box::new(Arc::clone(&fake))).unwrap();
    fake.break_it(true);
    assert_eq!(put(&write_back, 5, 2, 1, LONG), PageOutcome::Done);
    let end = Instant::now() + LONG;
    while put(&write_back, 200, 1, 9, LONG) == PageOutcome::Done {
        assert!(Instant::now() < end, "nobody notices");
    }
    // The buffered pages are still there.
    assert_eq!(get(&write_back, 5, 2), [1, 1]);
    fake.break_it(false);
    settle(&write_back);
    assert_eq!(put(&write_back, 5, 1, 3, LONG), PageOutcome::Done);
    settle(&write_back);
    assert_eq!(fake.values()[4..8], [0, 3, 1, 0]);
}

#[test]
fn a_slot_that_is_used_again_is_with_the_writer_of_its_page() {
    let mut buffer = Buffer::new(PAGES);
    let mut rooms = Page::rooms(BATCH_PAGES);
    let put = |buffer: &mut Buffer, page| {
        buffer.put(&keys(page, 1), &Page::rooms(1), &mut [PageOutcome::Missing]);
    };
    // Extents 0, 4 and 8 have the first writer, extent 1 the second.
    for page in [128, 256, 129] {
        put(&mut buffer, page);
    }
    let run = buffer.take(0, &mut rooms).unwrap();
    assert_eq!((run.first, run.count), (128, 2));
    buffer.written(&run);
    put(&mut buffer, 32);
    assert_eq!(buffer.take(0, &mut rooms).unwrap().first, 256);
    assert!(buffer.take(0, &mut rooms).is_none());
    assert_eq!(buffer.take(1, &mut rooms).unwrap().first, 32);
}
