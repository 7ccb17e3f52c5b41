//! The pager of this process, and the mappings made before the pager exists.

use spillway_pager::Pager;
use spillway_platform::lock::Lock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Most mappings made before the constructor runs that become managed.
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

/// Records a mapping made before the pager exists.
pub fn remember(start: usize, bytes: usize) {
    let mut early = EARLY.lock();
    if !BEGUN.load(Ordering::Acquire) && early.count < EARLY_MAX {
        let at = early.count;
        early.ranges[at] = (start, bytes);
        early.count += 1;
    }
}

/// Forgets early mappings that overlap a range, which was unmapped before the pager exists.
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

/// Sets the pager of this process, which manages the early mappings from now on.
pub fn set_pager(pager: &'static Pager) {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    let early = EARLY.lock();
    for &(start, bytes) in early.ranges[..early.count].iter().filter(|(_, bytes)| *bytes > 0) {
        let _ = pager.manage(start, bytes);
    }
}

/// Ends the recording of early mappings.
pub fn end_early() {
    BEGUN.store(true, Ordering::Release);
}
