//! What guests leave unused of the section pool serves the page store, until one of them needs it.
//!
//! The store is lent only as much as it could give back at any time: values that can neither be dropped nor go to its disk have
//! to fit into its own capacity, with room to spare.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use spillway_sections::{Backing, Borrower, Pool};
use spillway_store::{Scratch, Store};
use spillway_types::Size;

use crate::capacity::LENT_TIMES_MAX;
use crate::config::Error;
use crate::memory::Room;

/// How often the loan is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// So long a guest waits for what it takes back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);
/// So long nothing more is lent after a guest took some back: the next one need not wait.
const REST: Duration = Duration::from_secs(10);
/// So many threads of the store send pages to its disk: one alone waits for each write.
const SHRINKERS: usize = 8;
/// Until a store that did not give all back by itself is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// A look that has to take memory back goes on at the next one.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// A loan to the store.
#[derive(Debug)]
pub struct Loan {
    /// Which knows the loan as its borrower.
    pool: Weak<Pool>,
    store: Arc<Store>,
    room: Room,
    /// Held while the loan changes.
    state: Mutex<LoanPause>,
}

#[derive(Debug)]
struct LoanPause {
    /// Until when nothing more is lent.
    rests_until: Instant,
    /// Until when the store is not asked without need.
    keeps_until: Instant,
    /// Why nothing is lent, as it was said last.
    said: Option<Refused>,
}

/// Why the store is lent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// Too much in it could go nowhere.
    Fixed,
    /// It did not give back what a guest asked for.
    Kept,
}

/// Checks that a pool of this memory can lend as much.
///
/// # Errors
/// The pool has its memory from the host whether guests use it or not.
pub fn check(backing: Backing, lent_bytes: u64) -> Result<(), Error> {
    if lent_bytes > 0 && backing != Backing::Tmpfs {
        return Err(Error::new(
            "sections.lend: sections.dir lies on hugetlbfs, whose unused pages nobody else can use: give \"0\", or a tmpfs",
        ));
    }
    Ok(())
}

impl Loan {
    /// Of a pool to a store. What the store holds beyond its own capacity counts as lent from now on, also where nothing more is
    /// to be lent. None where nothing is lent.
    ///
    /// # Errors
    /// [`check`] fails.
    pub fn new(
        pool: &Arc<Pool>,
        store: &Arc<Store>,
        room: Room,
    ) -> Result<Option<Arc<Self>>, Error> {
        check(pool.backing(), room.lent_bytes)?;
        let over_bytes = store.memory_bytes().saturating_sub(room.own_bytes);
        if pool.backing() != Backing::Tmpfs || (room.lent_bytes == 0 && over_bytes == 0) {
            return Ok(None);
        }
        pool.note_lent(over_bytes);
        store.set_capacity(room.own_bytes, over_bytes);
        let state =
            LoanPause { rests_until: Instant::now(), keeps_until: Instant::now(), said: None };
        let (its, state) = (Arc::downgrade(pool), Mutex::new(state));
        let loan = Arc::new(Self { pool: its, store: store.clone(), room, state });
        pool.set_borrower(loan.clone());
        Ok(Some(loan))
    }

    fn state(&self) -> MutexGuard<'_, LoanPause> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends more or less, as what guests and the store have wants it. `ready_bytes` are to be left for guests.
    pub fn look(&self, pool: &Pool, ready_bytes: u64) {
        let mut state = self.state();
        let lent_bytes = pool.lent_bytes();
        let fixed_bytes = self.store.fixed_bytes();
        // What is set aside can't leave either, and is never more than it was when it was asked for.
        let own_bytes = self.room.own_bytes.saturating_sub(self.store.reserved_bytes());
        let is_fixed = is_fixed(fixed_bytes, own_bytes, lent_bytes > 0);
        self.say_whether_fixed(&mut state, is_fixed, fixed_bytes);
        let usage = pool.usage();
        let all_ready: u64 =
            usage.guests.values().map(spillway_sections::GuestUsage::ready_bytes).sum();
        let unused_bytes = usage.free_bytes.saturating_sub(all_ready);
        let room_bytes = unused_bytes.saturating_sub(ready_bytes.saturating_sub(all_ready));
        let most_bytes = self.room.lent_bytes.min(own_bytes.saturating_mul(LENT_TIMES_MAX));
        let wanted_bytes = if is_fixed { 0 } else { room_bytes.min(most_bytes) };
        let wanted_bytes = wanted_bytes - wanted_bytes % pool.section_bytes();
        if wanted_bytes < lent_bytes {
            if Instant::now() >= state.keeps_until
                && !self.lower(pool, wanted_bytes, Instant::now() + LOOK_MAX)
            {
                state.keeps_until = Instant::now() + RETRY;
            }
        } else if wanted_bytes > lent_bytes && Instant::now() >= state.rests_until {
            let lent_bytes = pool.lend(wanted_bytes);
            self.store.set_capacity(self.room.own_bytes, lent_bytes);
            tracing::debug!("the store is lent {} of the section pool", Size(lent_bytes));
        }
    }

    /// Whether nothing is lent, and nothing will be.
    fn is_over(&self, pool: &Pool) -> bool {
        self.room.lent_bytes == 0 && pool.lent_bytes() == 0
    }

    fn say_whether_fixed(&self, state: &mut LoanPause, is_fixed: bool, fixed_bytes: u64) {
        match (is_fixed, state.said) {
            (true, Some(Refused::Fixed)) => {}
            (true, _) => {
                tracing::warn!(
                    "the store is lent nothing of the section pool: {} in it could go nowhere if a guest needed the memory: \
                     values that are no pages (docs/guests.md), or pages that store.disk has no room for",
                    Size(fixed_bytes)
                );
                state.said = Some(Refused::Fixed);
            }
            (false, Some(Refused::Fixed)) => {
                tracing::info!("the store may be lent memory of the section pool again");
                state.said = None;
            }
            (false, _) => {}
        }
    }

    /// Has the store hold no more than `lent_bytes` beyond its own, as far as it comes until then. What it still holds stays lent.
    /// To be called with the state locked. Says whether it came so far.
    fn lower(&self, pool: &Pool, lent_bytes: u64, until: Instant) -> bool {
        let own_bytes = self.room.own_bytes;
        self.store.set_capacity(own_bytes, lent_bytes);
        // One alone may come to its end before the others.
        let shrink = || {
            self.store.shrink(until, &mut Scratch::new());
        };
        thread::scope(|scope| {
            for _ in 1..SHRINKERS {
                // With fewer it takes longer.
                let _ = thread::Builder::new().spawn_scoped(scope, shrink);
            }
            shrink();
        });
        let has_shrunk = self.store.memory_bytes() <= self.store.capacity_bytes();
        let kept_bytes = if has_shrunk {
            lent_bytes
        } else {
            // What it has reached stays its bound: others put meanwhile.
            self.store.memory_bytes().saturating_sub(own_bytes).clamp(lent_bytes, pool.lent_bytes())
        };
        self.store.set_capacity(own_bytes, kept_bytes);
        pool.lend(kept_bytes);
        has_shrunk
    }
}

impl Borrower for Loan {
    fn give_back(&self, bytes: u64) {
        // It asks itself.
        let Some(pool) = self.pool.upgrade() else { return };
        let mut state = self.state();
        let began = Instant::now();
        let before_bytes = pool.lent_bytes();
        self.lower(&pool, before_bytes.saturating_sub(bytes), began + GIVE_BACK_MAX);
        state.rests_until = Instant::now() + REST;
        let came_bytes = before_bytes.saturating_sub(pool.lent_bytes());
        if came_bytes >= bytes.min(before_bytes) {
            tracing::info!(
                "the store gave {} back to the section pool in {} ms",
                Size(came_bytes),
                began.elapsed().as_millis()
            );
            state.said = state.said.filter(|said| *said != Refused::Kept);
        } else if state.said != Some(Refused::Kept) {
            tracing::error!(
                "a guest asked for {} that the store was lent, and has {} after {} ms: the rest can go nowhere, or \
                 store.disk is slow",
                Size(bytes),
                Size(came_bytes),
                began.elapsed().as_millis()
            );
            state.said = Some(Refused::Kept);
        }
    }
}

/// Whether too much in the store could go nowhere: more than three quarters of its own capacity beside what is set aside, or half
/// of it where nothing is lent yet.
const fn is_fixed(fixed_bytes: u64, own_bytes: u64, is_lent: bool) -> bool {
    fixed_bytes > if is_lent { own_bytes / 4 * 3 } else { own_bytes / 2 }
}

/// The thread that looks at a loan. It ends when this is dropped.
#[derive(Debug)]
pub struct Lender {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lender {
    /// Starts it. `ready_bytes` says what is to be left for guests.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(
        loan: Arc<Loan>,
        pool: Arc<Pool>,
        ready_bytes: impl Fn() -> u64 + Send + 'static,
    ) -> anyhow::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = ends.clone();
        let run = move || {
            while !seen.load(Ordering::Acquire) && !loan.is_over(&pool) {
                loan.look(&pool, ready_bytes());
                thread::park_timeout(LOOK);
            }
        };
        let thread = thread::Builder::new().name("loan".into()).spawn(run);
        Ok(Self { ends, thread: Some(thread.context("can't start to lend to the store")?) })
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic ends the daemon before.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
