//! The pager of this process, if it is paged, and the mappings that are made before it is there.

use spillway_pager::Pager;
use spillway_tiers::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Mappings made before the constructor ran, at most this many, are managed by it.
const EARLY_MAX: usize = 64;

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());
static BEGUN: AtomicBool = AtomicBool::new(false);
static EARLY: Lock<Early> = Lock::new(Early { ranges: [(0, 0); EARLY_MAX], count: 0 });

struct Early {
    ranges: [(usize, usize); EARLY_MAX],
    count: usize,
}

/// The pager of this process, if it is paged.
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null, or a pager that lives for ever.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}

/// Remembers a mapping that is made before the pager is there.
pub fn remember(start: usize, bytes: usize) {
    let mut early = EARLY.lock();
    if !BEGUN.load(Ordering::Acquire) && early.count < EARLY_MAX {
        let at = early.count;
        early.ranges[at] = (start, bytes);
        early.count += 1;
    }
}

/// Forgets an early mapping that is unmapped again before the pager is there.
pub fn forget_early(start: usize, end: usize) {
    if BEGUN.load(Ordering::Acquire) {
        return;
    }
    let mut early = EARLY.lock();
    for (from, bytes) in &mut early.ranges {
        if *from < end && start < *from + *bytes {
            *bytes = 0;
        }
    }
}

/// Sets the pager of this process, which manages the early mappings from here on.
pub fn set_pager(pager: &'static Pager) {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    let early = EARLY.lock();
    for &(start, bytes) in early.ranges[..early.count].iter().filter(|(_, bytes)| *bytes > 0) {
        let _ = pager.manage(start, bytes);
    }
}

/// No mapping is early from here on.
pub fn end_early() {
    BEGUN.store(true, Ordering::Release);
}
