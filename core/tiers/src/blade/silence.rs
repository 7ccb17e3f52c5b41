//! How long a page is waited for that only a silent blade has.

use core::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::{Timespec, nanosleep};

use super::{Carrier, now_ns};

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

/// How long values are waited for that only a silent blade may have.
#[derive(Debug)]
pub struct Silence {
    loss_ns: u64,
    stopped: AtomicBool,
}

impl Silence {
    /// Values count as lost when their blade has been down for `loss_timeout`.
    pub const fn new(loss_timeout: Duration) -> Self {
        Self { loss_ns: loss_timeout.as_nanos() as u64, stopped: AtomicBool::new(false) }
    }

    /// Ends all waits, those that begin later too: nobody needs the values any more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Asks each of the silent carriers again by `ask` once it answers. Returns when all has come,
    /// when none of them is left that may have the rest, when they count as lost, or after as long
    /// a wait. Meanwhile it reconnects.
    pub fn wait(&self, mut silent: Silent<'_>, mut ask: impl FnMut(&dyn Carrier) -> Heard) {
        let began_ns = now_ns();
        loop {
            for place in &mut silent {
                let Some(carrier) = *place else { continue };
                if carrier.is_gone() || carrier.down_ns() >= self.loss_ns {
                    *place = None;
                    continue;
                }
                carrier.tend();
                if !carrier.is_down() {
                    match ask(carrier) {
                        Heard::All => return,
                        Heard::NotAll => *place = None,
                        Heard::Silence => {}
                    }
                }
            }
            let is_over = now_ns() - began_ns >= self.loss_ns;
            if is_over || silent.iter().all(Option::is_none) || self.stopped.load(Ordering::Relaxed)
            {
                return;
            }
            let _ = nanosleep(&PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

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
        down_ns: AtomicU64,
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
        fn down_ns(&self) -> u64 {
            self.down_ns.load(Relaxed)
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
    fn a_blade_that_is_down_for_the_loss_timeout_has_lost_its_values() {
        let silence = Silence::new(Duration::from_millis(50));
        let (fresh, old) = (Back::after(u32::MAX), Back::after(u32::MAX));
        old.down_ns.store(50_000_000, Relaxed);
        silence.wait([Some(&fresh), Some(&old)], |_| unreachable!("both are down"));
        assert!(fresh.attempts.load(Relaxed) > 0);
        assert_eq!(old.attempts.load(Relaxed), 0);
    }

    #[test]
    fn who_answers_without_an_end_is_not_waited_for_without_an_end() {
        let (back, silence) = (Back::after(0), Silence::new(Duration::from_millis(50)));
        silence.wait([Some(&back), None], |_| Heard::Silence);
        assert!(back.attempts.load(Relaxed) > 1);
    }

    #[test]
    fn a_wait_ends_when_nobody_needs_the_values() {
        let (back, silence) = (Back::after(u32::MAX), Silence::new(LONG));
        std::thread::scope(|scope| {
            let wait = || silence.wait([Some(&back), None], |_| unreachable!("it is down"));
            let waiting = scope.spawn(wait);
            while back.attempts.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            silence.stop();
            waiting.join().unwrap();
        });
    }
}
