//! Warns early that memory is about to run out.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use rustix::thread::{Timespec, futex};

use super::Arena;
use crate::budget::Use;

/// Memory is low when less than this part of it can still become frames.
const LOW_PART: u64 = 16;

/// 1 if memory was low since the last check.
#[derive(Debug, Default)]
pub(super) struct Low(AtomicU32);

impl Arena {
    /// Wakes the waiting task if memory is low. Called whenever a lane runs out of frames.
    pub(super) fn check_low(&self) {
        if self.left(Use::Frames) < self.budget.cap() / LOW_PART {
            self.tell_low();
        }
    }

    /// Wakes the task that waits in [`Self::wait_low`], or the next one.
    pub fn tell_low(&self) {
        if self.low.0.load(Ordering::Relaxed) == 0 && self.low.0.swap(1, Ordering::Release) == 0 {
            // Waking cannot fail for a valid address.
            let _ = futex::wake(&self.low.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Waits until memory is low, or was low since the last call, or `wait` is over.
    pub fn wait_low(&self, wait: Duration) {
        let wait = Timespec {
            tv_sec: wait.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        // An interrupted or outdated wait only means that memory is looked at.
        let _ = futex::wait(&self.low.0, futex::Flags::PRIVATE, 0, Some(&wait));
        self.low.0.store(0, Ordering::Relaxed);
    }
}
