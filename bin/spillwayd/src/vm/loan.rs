//! Lends unused memory of the section pool to the page store, until a guest needs it.
//!
//! The store gets only as much as it can return at any time. Values that can neither be dropped nor move to its disk
//! must fit in its own capacity, with some to spare.

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

/// How often the loan is adjusted.
const LOOK: Duration = Duration::from_millis(500);
/// How long a guest waits for lent memory.
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);
/// How long nothing more is lent after a guest took some back, so that the next guest need not
/// wait.
const REST: Duration = Duration::from_secs(10);
/// Threads that send the store's pages to its disk. A single thread would wait for each write.
const SHRINKERS: usize = 8;
/// Pause before a store that did not return everything is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// Time limit of one adjustment. The next one continues it.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// A loan to the store.
#[derive(Debug)]
pub struct Loan {
    /// The pool counts the loan under this borrower.
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
    /// Until when the store is asked only if a guest needs memory.
    keeps_until: Instant,
    /// The last logged reason why nothing is lent.
    said: Option<Refused>,
}

/// Why nothing is lent to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// Too many of its values can neither be dropped nor move to its disk.
    Fixed,
    /// It did not return what a guest needed.
    Kept,
}

/// Checks that a pool with memory of this kind can lend this much.
///
/// # Errors
/// The pool holds its host memory whether guests use it or not.
pub fn check(backing: Backing, lent_bytes: u64) -> Result<(), Error> {
    if lent_bytes > 0 && backing != Backing::Tmpfs {
        return Err(Error::new(
            "sections.lend: sections.dir lies on hugetlbfs, whose unused pages can't be used otherwise: set \"0\", or use a tmpfs",
        ));
    }
    Ok(())
}

impl Loan {
    /// A loan of a pool to a store. What the store holds beyond its own capacity counts as lent from now on, even if
    /// nothing more may be lent. None if nothing is lent.
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

    /// Adjusts the loan to the guests' and the store's use. Leaves `ready_bytes` for guests.
    pub fn look(&self, pool: &Pool, ready_bytes: u64) {
        let mut state = self.state();
        let lent_bytes = pool.lent_bytes();
        let fixed_bytes = self.store.fixed_bytes();
        // Reserved pages can't leave either, and their number only falls after it was read.
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
            tracing::debug!("{} of the section pool are lent to the store", Size(lent_bytes));
        }
    }

    /// Whether nothing is lent now or in future.
    fn is_over(&self, pool: &Pool) -> bool {
        self.room.lent_bytes == 0 && pool.lent_bytes() == 0
    }

    fn say_whether_fixed(&self, state: &mut LoanPause, is_fixed: bool, fixed_bytes: u64) {
        match (is_fixed, state.said) {
            (true, Some(Refused::Fixed)) => {}
            (true, _) => {
                tracing::warn!(
                    "no memory of the section pool is lent to the store: {} in it could not leave if a guest needed the memory: \
                     values that are no pages (docs/guests.md), or pages that store.disk has no room for",
                    Size(fixed_bytes)
                );
                state.said = Some(Refused::Fixed);
            }
            (false, Some(Refused::Fixed)) => {
                tracing::info!("memory of the section pool may be lent to the store again");
                state.said = None;
            }
            (false, _) => {}
        }
    }

    /// Shrinks the store to `lent_bytes` beyond its own capacity, as far as the time allows. What it still holds stays
    /// lent. Call it with the state locked. Returns whether the store got that far.
    fn lower(&self, pool: &Pool, lent_bytes: u64, until: Instant) -> bool {
        let own_bytes = self.room.own_bytes;
        self.store.set_capacity(own_bytes, lent_bytes);
        // One thread may end before the others.
        let shrink = || {
            self.store.shrink(until, &mut Scratch::new());
        };
        thread::scope(|scope| {
            for _ in 1..SHRINKERS {
                // With fewer threads it takes longer.
                let _ = thread::Builder::new().spawn_scoped(scope, shrink);
            }
            shrink();
        });
        let has_shrunk = self.store.memory_bytes() <= self.store.capacity_bytes();
        let kept_bytes = if has_shrunk {
            lent_bytes
        } else {
            // The reached size becomes its limit, because clients keep putting values.
            self.store.memory_bytes().saturating_sub(own_bytes).clamp(lent_bytes, pool.lent_bytes())
        };
        self.store.set_capacity(own_bytes, kept_bytes);
        pool.lend(kept_bytes);
        has_shrunk
    }
}

impl Borrower for Loan {
    fn give_back(&self, bytes: u64) {
        // The caller asks again.
        let Some(pool) = self.pool.upgrade() else { return };
        let mut state = self.state();
        let began = Instant::now();
        let before_bytes = pool.lent_bytes();
        self.lower(&pool, before_bytes.saturating_sub(bytes), began + GIVE_BACK_MAX);
        state.rests_until = Instant::now() + REST;
        let came_bytes = before_bytes.saturating_sub(pool.lent_bytes());
        if came_bytes >= bytes.min(before_bytes) {
            tracing::info!(
                "the store returned {} to the section pool in {} ms",
                Size(came_bytes),
                began.elapsed().as_millis()
            );
            state.said = state.said.filter(|said| *said != Refused::Kept);
        } else if state.said != Some(Refused::Kept) {
            tracing::error!(
                "a guest needed {} of the memory lent to the store, and got {} after {} ms: the rest can't leave, or \
                 store.disk is slow",
                Size(bytes),
                Size(came_bytes),
                began.elapsed().as_millis()
            );
            state.said = Some(Refused::Kept);
        }
    }
}

/// Whether too much in the store can't leave: more than three quarters of its own capacity less reserved memory, or
/// half of it if nothing is lent yet.
const fn is_fixed(fixed_bytes: u64, own_bytes: u64, is_lent: bool) -> bool {
    fixed_bytes > if is_lent { own_bytes / 4 * 3 } else { own_bytes / 2 }
}

/// The thread that adjusts a loan. It ends when this is dropped.
#[derive(Debug)]
pub struct Lender {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lender {
    /// Starts it. `ready_bytes` returns how much to leave for guests.
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
            // A panic would have ended the daemon earlier.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
