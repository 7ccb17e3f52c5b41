//! A lender in this process that can fail, stall, forge, replay and forget.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use spillway_fanout::{
    FanOut, Holder, Lender, Loss, Page, PageOutcome, Report, Settings, SlabLocation,
};
use spillway_types::Key;

pub const SLAB_BYTES: u64 = 1 << 20;
pub const PAGES_PER_SLAB: u64 = SLAB_BYTES / 4096;

/// What a slow lender takes for each call.
const SLOW: Duration = Duration::from_millis(5);
const VERY_SLOW: Duration = Duration::from_millis(60);

/// What a lender does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It answers nothing; what it was sent is stored.
    LostAnswers,
    /// It answers nothing, and does nothing.
    Dead,
    /// As dead, but only the deadline ends a call.
    Stalled,
    /// It breaks its word: a call does not end before [`Fake::let_go`], and is carried out then.
    Stuck,
    /// What it gives has a bit flipped.
    Forging,
    /// It gives what it was sent first under a key.
    Replaying,
    /// It gives another page.
    MixingUp,
    /// It has forgotten all.
    Emptied,
    /// It takes nothing.
    Full,
    /// It takes a while for each call.
    Slow,
    /// It takes longer for each call than any reader waits before it asks the other copy.
    VerySlow,
    /// It answers reads alone.
    Unwritable,
}

#[derive(Debug, Default)]
struct Stored {
    first: HashMap<Key, Page>,
    last: HashMap<Key, Page>,
}

#[derive(Debug)]
pub struct Fake {
    stored: Mutex<Stored>,
    fault: Mutex<Fault>,
    /// Nothing may come any more.
    pub fenced: AtomicBool,
    pub touched_behind_fence: AtomicBool,
    pub calls: AtomicUsize,
    /// Calls that are stuck.
    pub stuck: AtomicUsize,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            stored: Mutex::default(),
            fault: Mutex::new(Fault::None),
            fenced: AtomicBool::new(false),
            touched_behind_fence: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
        })
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    pub fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    /// Pages that it has.
    pub fn pages(&self) -> usize {
        self.stored.lock().unwrap().last.len()
    }

    /// Whether anything that it has holds these bytes.
    pub fn sees(&self, bytes: &[u8]) -> bool {
        let stored = self.stored.lock().unwrap();
        stored.last.values().any(|page| page.0.windows(bytes.len()).any(|part| part == bytes))
    }

    /// Begins a call; whether it is answered.
    fn begin(&self, deadline: Instant) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.fenced.load(Ordering::SeqCst) {
            self.touched_behind_fence.store(true, Ordering::SeqCst);
        }
        match self.fault() {
            Fault::Stalled => {
                thread::sleep(deadline.saturating_duration_since(Instant::now()));
                false
            }
            Fault::Stuck => {
                self.stuck.fetch_add(1, Ordering::SeqCst);
                while self.fault() == Fault::Stuck {
                    thread::sleep(Duration::from_millis(1));
                }
                self.stuck.fetch_sub(1, Ordering::SeqCst);
                true
            }
            Fault::Dead => false,
            Fault::Slow => {
                thread::sleep(SLOW);
                true
            }
            Fault::VerySlow => {
                thread::sleep(VERY_SLOW);
                true
            }
            _ => true,
        }
    }
}

impl Lender for Fake {
    fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome], deadline: Instant) {
        let answers = self.begin(deadline);
        let fault = self.fault();
        let mut stored = self.stored.lock().unwrap();
        for ((key, page), outcome) in keys.iter().zip(pages).zip(outcomes) {
            *outcome = match fault {
                _ if !answers => PageOutcome::Lost,
                Fault::Full => PageOutcome::Refused,
                Fault::Unwritable => PageOutcome::Lost,
                _ => {
                    stored.first.entry(*key).or_insert_with(|| page.clone());
                    stored.last.insert(*key, page.clone());
                    if fault == Fault::LostAnswers { PageOutcome::Lost } else { PageOutcome::Done }
                }
            };
        }
    }

    fn get(
        &self,
        keys: &[Key],
        pages: &mut [Page],
        outcomes: &mut [PageOutcome],
        deadline: Instant,
    ) {
        let answers = self.begin(deadline);
        let fault = self.fault();
        let stored = self.stored.lock().unwrap();
        for ((key, page), outcome) in keys.iter().zip(pages).zip(outcomes) {
            let found = match fault {
                Fault::Replaying => stored.first.get(key),
                Fault::MixingUp => stored.last.values().next(),
                Fault::Emptied => None,
                _ => stored.last.get(key),
            };
            *outcome = match found {
                _ if !answers || fault == Fault::LostAnswers => PageOutcome::Lost,
                None => PageOutcome::Missing,
                Some(found) => {
                    page.0 = found.0;
                    page.0[77] ^= u8::from(fault == Fault::Forging);
                    PageOutcome::Done
                }
            };
        }
    }

    fn flush(&self, keys: &[Key], outcomes: &mut [PageOutcome], deadline: Instant) {
        let answers = self.begin(deadline);
        let mut stored = self.stored.lock().unwrap();
        for (key, outcome) in keys.iter().zip(outcomes) {
            if answers {
                stored.last.remove(key);
            }
            *outcome = if answers { PageOutcome::Done } else { PageOutcome::Lost };
        }
    }
}

/// A lender and the holder around it.
#[derive(Clone)]
pub struct Host {
    pub fake: Arc<Fake>,
    pub holder: Arc<Holder>,
}

pub fn host(number: u64) -> Host {
    let fake = Fake::new();
    let holder = Holder::lender(number, fake.clone()).unwrap();
    Host { fake, holder }
}

pub fn place(host: &Host, slab: u32) -> Option<SlabLocation> {
    Some(SlabLocation { holder: host.holder.clone(), slab })
}

/// Settings of a device that does not wait for last copies, and that gives up a copy whose holder does not answer.
pub fn settings(timeout: Duration) -> Settings {
    Settings {
        slab_bytes: SLAB_BYTES,
        request_timeout: timeout,
        last_copy_wait: Duration::ZERO,
        stall_max: Duration::ZERO,
        ..Settings::default()
    }
}

/// A device of slabs; slab `n` has its copies as slab `n` of those hosts.
pub fn device(slabs: Vec<[Option<SlabLocation>; 2]>, timeout: Duration) -> FanOut {
    FanOut::open(settings(timeout), 1, slabs, |_| {}).unwrap()
}

/// The losses that a device has told.
pub type Losses = Arc<Mutex<Vec<Loss>>>;

/// A device that keeps its losses.
pub fn losses_of(settings: Settings, slabs: Vec<[Option<SlabLocation>; 2]>) -> (FanOut, Losses) {
    let losses = Losses::default();
    let told = losses.clone();
    let tell = move |report| {
        if let Report::Loss(loss) = report {
            told.lock().unwrap().push(loss);
        }
    };
    (FanOut::open(settings, 1, slabs, tell).unwrap(), losses)
}
