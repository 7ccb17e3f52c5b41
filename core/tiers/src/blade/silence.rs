//! How long a page is waited for that only a silent blade has.

use std::time::Duration;

use rustix::thread::{Timespec, nanosleep};

use super::{Carrier, now_ns};
use crate::sync::{AtomicU64, Ordering};

/// Pause between two looks at whether a blade answers again.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Blade and mirror, those that did not answer.
pub type Silent<'a> = [Option<&'a dyn Carrier>; 2];

/// What a carrier answered to a request for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// All that was wanted.
    All,
    /// An answer, but not all that was wanted: it has no more.
    NotAll,
    /// Nothing.
    Silence,
}

/// Counts for how long values were missing that a silent blade may have. After the loss timeout
/// nobody waits for them, until a blade answers again.
#[derive(Debug)]
pub struct Silence {
    loss_ns: u64,
    /// When such a value was missing first, ns; 0 while there is none.
    since_ns: AtomicU64,
}

impl Silence {
    /// No silence yet.
    pub const fn new(loss_timeout: Duration) -> Self {
        Self { loss_ns: loss_timeout.as_nanos() as u64, since_ns: AtomicU64::new(0) }
    }

    /// Records that a blade has answered.
    pub fn end(&self) {
        if self.since_ns.load(Ordering::Relaxed) != 0 {
            self.since_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Asks each of the silent carriers again by `ask` once it answers. Returns when all has come,
    /// when none of them is left that may have the rest, or when they count as lost. Meanwhile it
    /// reconnects.
    pub fn wait(&self, mut silent: Silent<'_>, mut ask: impl FnMut(&dyn Carrier) -> Heard) {
        while silent.iter().any(Option::is_some) && self.lasts() {
            for place in &mut silent {
                let Some(carrier) = *place else { continue };
                carrier.tend();
                if carrier.is_gone() {
                    *place = None;
                } else if !carrier.is_down() {
                    match ask(carrier) {
                        Heard::All => return self.end(),
                        Heard::NotAll => *place = None,
                        Heard::Silence => {}
                    }
                }
            }
            if silent.iter().any(Option::is_some) {
                let _ = nanosleep(&PAUSE);
            }
        }
    }

    /// Whether the silence, which begins now if there was none, is shorter than the loss timeout.
    fn lasts(&self) -> bool {
        let now_ns = now_ns();
        let begin = |since_ns| (since_ns == 0).then_some(now_ns);
        let begun = self.since_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begin);
        now_ns.saturating_sub(begun.err().unwrap_or(now_ns)) < self.loss_ns
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    use spillway_types::Key;

    use super::super::{Carried, Parcel, Wanted};
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// A blade that is back after some attempts to reconnect.
    #[derive(Debug, Default)]
    struct Back {
        after: u32,
        attempts: AtomicU32,
        gone: AtomicBool,
    }

    impl Back {
        fn after(after: u32) -> Self {
            Self { after, ..Self::default() }
        }
    }

    impl Carrier for Back {
        fn put(&self, _: &[Parcel<'_>], _: &mut [Carried]) {}
        fn get(&self, _: &mut [Wanted<'_>], _: bool) {}
        fn flush(&self, _: &[Key]) -> Carried {
            Carried::Lost
        }
        fn flush_object(&self, _: u64) -> bool {
            false
        }
        fn end_run(&self) -> bool {
            false
        }
        fn is_down(&self) -> bool {
            self.attempts.load(Relaxed) < self.after
        }
        fn is_gone(&self) -> bool {
            self.gone.load(Relaxed)
        }
        fn tend(&self) {
            self.attempts.fetch_add(1, Relaxed);
        }
        fn forget_connections(&self) {}
        fn descriptors(&self) -> Vec<u64> {
            Vec::new()
        }
        fn reopen(&self, _: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_does_not_answer_is_asked_once_it_does() {
        let (back, silence) = (Back::after(5), Silence::new(LONG));
        let asked = Cell::new(0);
        silence.wait([Some(&back), None], |_| {
            asked.set(asked.get() + 1);
            if asked.get() < 3 { Heard::Silence } else { Heard::All }
        });
        assert_eq!((back.attempts.load(Relaxed), asked.get()), (7, 3));
    }

    #[test]
    fn an_answer_without_the_rest_ends_the_wait_for_that_one_only() {
        let (first, mirror) = (Back::after(2), Back::after(4));
        let silence = Silence::new(LONG);
        let asked = Cell::new(0);
        silence.wait([Some(&first), Some(&mirror)], |_| {
            asked.set(asked.get() + 1);
            Heard::NotAll
        });
        assert_eq!(asked.get(), 2);
        assert_eq!((first.attempts.load(Relaxed), mirror.attempts.load(Relaxed)), (2, 4));
    }

    #[test]
    fn nobody_waits_for_a_pool_that_is_gone_nor_where_nobody_is_silent() {
        let (back, silence) = (Back::after(u32::MAX), Silence::new(LONG));
        back.gone.store(true, Relaxed);
        silence.wait([Some(&back), None], |_| unreachable!("it has nothing"));
        silence.wait([None, None], |_| unreachable!("there is nobody"));
    }

    #[test]
    fn the_loss_timeout_runs_once_for_all_values_and_anew_after_an_answer() {
        let silence = Silence::new(Duration::from_millis(50));
        let wait = || {
            let back = Back::after(u32::MAX);
            silence.wait([Some(&back), None], |_| unreachable!("it is down"));
            back.attempts.load(Relaxed)
        };
        assert!(wait() > 0);
        assert_eq!(wait(), 0, "others have waited long enough");
        silence.end();
        assert!(wait() > 0);
    }
}
