//! The emulated link of a memory blade: a settable delay, one transfer at a time.
//!
//! The delay model of the disaggregated-memory paper's emulation: each transferred page keeps the
//! link busy for the delay, and the transferring task spins until its page is through.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of the monotonic clock.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A link that carries one page at a time.
#[derive(Debug)]
pub struct Link {
    delay_ns: u64,
    free_at_ns: AtomicU64,
}

impl Link {
    /// A link on which a page takes this long; 0 means no link.
    #[must_use]
    pub const fn new(delay_ns: u64) -> Self {
        Self { delay_ns, free_at_ns: AtomicU64::new(0) }
    }

    /// Waits until `pages` pages are through.
    pub fn transfer(&self, pages: usize) {
        if self.delay_ns == 0 || pages == 0 {
            return;
        }
        let takes_ns = self.delay_ns * pages as u64;
        let now = now_ns();
        let after = |free_at: u64| Some(free_at.max(now) + takes_ns);
        let before = self
            .free_at_ns
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, after)
            .unwrap_or_default();
        let done = before.max(now) + takes_ns;
        while now_ns() < done {
            std::hint::spin_loop();
        }
    }
}
