//! Who may look at a ring without pause before it sleeps.
//!
//! A thread that polls answers within a microsecond and keeps a core busy; one that sleeps answers
//! within some ten. So a few threads may poll for a short while, and the clients that poll for their
//! answers find a core free.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Looks at the condition between two looks at the clock.
const LOOKS: u32 = 32;

/// The right to poll, which a limited number of threads has at the same time.
#[derive(Debug)]
pub struct Pollers {
    free: AtomicU32,
    time: Duration,
}

impl Pollers {
    /// At most `most` threads at the same time poll for `time`.
    pub fn new(most: u32, time: Duration) -> Self {
        let most = if time.is_zero() { 0 } else { most };
        Self { free: AtomicU32::new(most), time }
    }

    /// Looks at `there` until it is true, for as long as threads poll; whether it became true.
    pub fn poll(&self, mut there: impl FnMut() -> bool) -> bool {
        let less = |free: u32| free.checked_sub(1);
        if self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return false;
        }
        let start = Instant::now();
        let found = loop {
            if (0..LOOKS).any(|_| {
                core::hint::spin_loop();
                there()
            }) {
                break true;
            }
            if start.elapsed() >= self.time {
                break false;
            }
        };
        self.free.fetch_add(1, Ordering::Relaxed);
        found
    }
}
