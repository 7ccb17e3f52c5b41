//! Whether a holder answers, and how fast.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::latency::Latency;

/// The pause before a holder that has stopped answering is tried again, µs: it doubles from the first to the second.
const PROBE_US: (u64, u64) = (10_000, 320_000);

/// What is known of a holder. Times are µs since `began`, and at least 1.
#[derive(Debug)]
pub struct Pulse {
    began: Instant,
    /// Requests in flight that take longer than expected, or that nobody waits for any more.
    overdue: AtomicUsize,
    /// When a request was not answered in time, if none was answered since; else 0.
    stalled_at: AtomicU64,
    /// When a change was not done in time, if none was done since; else 0.
    unwritten_at: AtomicU64,
    /// When it may be tried again, and the pause after that.
    probe_at: AtomicU64,
    probe_pause: AtomicU64,
    pub latency: Latency,
}

impl Pulse {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            overdue: AtomicUsize::new(0),
            stalled_at: AtomicU64::new(0),
            unwritten_at: AtomicU64::new(0),
            probe_at: AtomicU64::new(0),
            probe_pause: AtomicU64::new(PROBE_US.0),
            latency: Latency::new(),
        }
    }

    fn now(&self) -> u64 {
        (self.began.elapsed().as_micros() as u64).max(1)
    }

    /// A request is overdue from now on.
    pub fn begin_overdue(&self) {
        self.overdue.fetch_add(1, Ordering::SeqCst);
    }

    /// An overdue request has ended.
    pub fn end_overdue(&self) {
        self.overdue.fetch_sub(1, Ordering::AcqRel);
    }

    /// A request was not answered in time; whether it was a write or a discard.
    pub fn failed(&self, is_change: bool) {
        if is_change {
            self.left_out();
        }
        let now = self.now();
        let begins = self.stalled_at.compare_exchange(0, now, Ordering::SeqCst, Ordering::Relaxed);
        if begins.is_ok() {
            self.probe_at.store(now + PROBE_US.0, Ordering::Release);
            self.probe_pause.store(2 * PROBE_US.0, Ordering::Release);
        }
    }

    /// A change was not done: it was not answered in time, or not sent because of that.
    pub fn left_out(&self) {
        let since = &self.unwritten_at;
        let _ = since.compare_exchange(0, self.now(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// A request was answered. A stall ends only when no overdue request is left: one may still do what it was sent for.
    pub fn answered(&self, is_change: bool) {
        if is_change && self.unwritten_at.load(Ordering::Acquire) != 0 {
            self.unwritten_at.store(0, Ordering::Release);
        }
        if self.stalled_at.load(Ordering::SeqCst) != 0 && !self.is_overdue() {
            self.stalled_at.store(0, Ordering::SeqCst);
            // One may have become overdue meanwhile.
            if self.is_overdue() {
                let _ = self.stalled_at.compare_exchange(
                    0,
                    self.now(),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                );
            }
        }
    }

    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::SeqCst) != 0
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled_at.load(Ordering::Acquire) != 0
    }

    /// Whether another copy is to be read first.
    pub fn is_slow(&self) -> bool {
        self.is_overdue() || self.is_stalled()
    }

    /// How long it has done no change that it was asked for; zero if it did the last one.
    pub fn unwritten_for(&self) -> Duration {
        let since = self.unwritten_at.load(Ordering::Acquire);
        if since == 0 {
            Duration::ZERO
        } else {
            Duration::from_micros(self.now().saturating_sub(since))
        }
    }

    /// Whether it is time to try whether it answers. If so, the next time is after a pause. One thread calls this.
    pub fn takes_probe(&self) -> bool {
        let now = self.now();
        if self.is_overdue() || now < self.probe_at.load(Ordering::Acquire) {
            return false;
        }
        let pause = self.probe_pause.load(Ordering::Acquire);
        self.probe_at.store(now + pause, Ordering::Release);
        self.probe_pause.store((2 * pause).min(PROBE_US.1), Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_stall_lasts_until_a_request_is_answered_and_none_is_overdue() {
        let pulse = Pulse::new();
        assert!(!pulse.is_slow());
        pulse.begin_overdue();
        assert!(pulse.is_slow() && !pulse.is_stalled());
        pulse.failed(false);
        pulse.answered(false);
        assert!(pulse.is_stalled(), "the overdue request may still do something");
        assert!(!pulse.takes_probe());
        pulse.end_overdue();
        assert!(pulse.is_stalled(), "its end is no answer");
        pulse.answered(false);
        assert!(!pulse.is_slow());
    }

    #[test]
    fn probes_become_rarer_up_to_a_bound() {
        let pulse = Pulse::new();
        let before = pulse.now();
        pulse.failed(false);
        // A busy machine may keep this thread for longer than the pause.
        let probe_at = pulse.probe_at.load(Ordering::Relaxed);
        assert!(probe_at >= before + PROBE_US.0, "it has failed just now");
        pulse.probe_at.store(u64::MAX, Ordering::Relaxed);
        assert!(!pulse.takes_probe());
        let pauses = [20_000, 40_000, 80_000, 160_000, 320_000, 320_000, 320_000];
        for pause_us in pauses {
            assert_eq!(pulse.probe_pause.load(Ordering::Relaxed), pause_us);
            pulse.probe_at.store(0, Ordering::Relaxed);
            assert!(pulse.takes_probe());
        }
    }

    #[test]
    fn a_holder_that_is_read_but_not_written_is_known() {
        let pulse = Pulse::new();
        pulse.failed(false);
        assert!(pulse.unwritten_for().is_zero(), "only a read failed");
        pulse.failed(true);
        pulse.answered(false);
        thread::sleep(Duration::from_millis(1));
        assert!(!pulse.is_stalled() && !pulse.unwritten_for().is_zero());
        pulse.answered(true);
        assert!(pulse.unwritten_for().is_zero());
    }
}
