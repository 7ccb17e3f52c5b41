//! A connection to a blade that is opened on demand, closed when it fails, and opened again.
//!
//! A caller waits at most the timeout. If it gets no answer, the line is *down*: calls fail at once, until
//! [`Carrier::tend`] has found the blade and the run's pool again. `tend` runs outside the path of any page.

use core::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{Timespec, nanosleep};
use rustix::time::{ClockId, clock_gettime};
use spillway_platform::lock::Lock;
use spillway_tiers::blade::{Carried, Carrier, Parcel, Wanted};
use spillway_types::Key;

/// Time between two attempts to reconnect while a caller waits.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Time between two attempts to reconnect while no caller waits, ns.
const TEND_INTERVAL_NS: u64 = 500_000_000;

/// A blade and the run's pool on it.
pub trait Way: Debug + Send + Sync {
    /// The connection's type.
    type Connection: Connection;

    /// Whether a process listens there. A quick check, for attempts in the background.
    fn answers(&self) -> bool;

    /// Connects within the timeout.
    ///
    /// # Errors
    /// Why there is no connection.
    fn connect(&self) -> Result<Self::Connection, NotConnected>;
}

/// Why there is no connection to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotConnected {
    /// The blade does not answer, or does not accept this host.
    NoAnswer,
    /// The blade has no such pool.
    NoPool,
}

/// A connection to a pool. An outcome of [`Carried::Lost`], or false, means that the connection has failed: the
/// timeout has passed, or waiting longer is useless.
pub trait Connection: Debug + Send + Sync {
    /// Stores values.
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]);
    /// Gets the values that are still missing.
    fn get(&self, wanted: &mut [Wanted<'_>]);
    /// Removes values, as [`Carrier::flush`] says.
    fn flush(&self, keys: &[Key]) -> Carried;
    /// Removes an object's values.
    fn flush_object(&self, object: u64) -> bool;
    /// Destroys the pool.
    fn destroy_pool(&self) -> bool;
    /// Keeps the connection alive.
    fn tend(&self);
}

/// The outcome of two removals together.
pub const fn both(one: Carried, other: Carried) -> Carried {
    match (one, other) {
        (Carried::Lost, _) | (_, Carried::Lost) => Carried::Lost,
        (Carried::Done, Carried::Done) => Carried::Done,
        _ => Carried::Refused,
    }
}

/// Removes keys in batches of at most `batch` keys by `remove`, up to a batch that is lost. The outcome of all together.
pub fn in_batches(
    keys: &[Key],
    batch: usize,
    mut remove: impl FnMut(&[Key]) -> Carried,
) -> Carried {
    let mut all = Carried::Done;
    for keys in keys.chunks(batch) {
        all = both(all, remove(keys));
        if all == Carried::Lost {
            break;
        }
    }
    all
}

#[derive(Debug)]
struct LineState<C> {
    connection: Option<Arc<C>>,
    /// Whether a caller is opening a connection. The others wait for it without the lock, up to their own timeout.
    connecting: bool,
}

/// The state of the connection.
enum Found<C> {
    Connection(Arc<C>),
    /// Another caller is connecting.
    Soon,
    Nothing,
}

/// A connection to a blade that is opened on demand, closed when it fails, and opened again.
#[derive(Debug)]
pub struct Line<W: Way> {
    way: W,
    timeout: Duration,
    state: Lock<LineState<W::Connection>>,
    /// Since when the blade is down; 0 while it is not.
    down_since_ns: AtomicU64,
    gone: AtomicBool,
    tend_at_ns: AtomicU64,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl<W: Way> Line<W> {
    /// A line that is not connected yet.
    pub const fn new(way: W, timeout: Duration) -> Self {
        Self {
            way,
            timeout,
            state: Lock::new(LineState { connection: None, connecting: false }),
            down_since_ns: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            tend_at_ns: AtomicU64::new(0),
        }
    }

    /// The connection, opened if there is none.
    fn connection(&self) -> Found<W::Connection> {
        let mut state = self.state.lock();
        if let Some(connection) = &state.connection {
            return Found::Connection(connection.clone());
        }
        if state.connecting {
            return Found::Soon;
        }
        state.connecting = true;
        drop(state);
        let connected = self.way.connect();
        let is_gone = matches!(connected, Err(NotConnected::NoPool));
        self.gone.store(is_gone, Ordering::Release);
        let connection = connected.ok().map(Arc::new);
        let mut state = self.state.lock();
        state.connecting = false;
        state.connection.clone_from(&connection);
        connection.map_or(Found::Nothing, Found::Connection)
    }

    /// Closes a failed connection.
    fn give_up(&self, failed: &Arc<W::Connection>) {
        let mut state = self.state.lock();
        if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, failed)) {
            state.connection = None;
        }
    }

    /// Makes a call on one connection after another, until `make` returns that it was answered or the timeout passes.
    /// An impatient call uses one connection only.
    fn call(&self, patient: bool, mut make: impl FnMut(&W::Connection) -> bool) -> bool {
        if self.is_down() {
            return false;
        }
        let until_ns = now_ns() + self.timeout.as_nanos() as u64;
        loop {
            let found = self.connection();
            if let Found::Connection(connection) = &found {
                if make(connection) {
                    return true;
                }
                self.give_up(connection);
            }
            let waits = (patient || matches!(found, Found::Soon)) && !self.is_gone();
            if !waits || now_ns() >= until_ns {
                let begin = |since_ns| (since_ns == 0).then_some(now_ns());
                let _ = self.down_since_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin);
                return false;
            }
            let _ = nanosleep(&PAUSE);
            if self.is_down() {
                return false;
            }
        }
    }
}

impl<W: Way> Carrier for Line<W> {
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]) {
        outcomes.fill(Carried::Lost);
        // No fault waits for a put, so it is retried. Putting the same value under the same key twice is harmless.
        self.call(true, |connection| {
            connection.put(parcels, outcomes);
            !outcomes.contains(&Carried::Lost)
        });
    }

    fn get(&self, wanted: &mut [Wanted<'_>], patient: bool) {
        self.call(patient, |connection| {
            connection.get(wanted);
            !wanted.iter().any(|one| one.outcome == Carried::Lost)
        });
    }

    fn flush(&self, keys: &[Key]) -> Carried {
        let mut outcome = Carried::Lost;
        self.call(false, |connection| {
            outcome = connection.flush(keys);
            outcome != Carried::Lost
        });
        outcome
    }

    fn flush_object(&self, object: u64) -> bool {
        self.call(false, |connection| connection.flush_object(object))
    }

    fn end_run(&self) -> bool {
        self.call(false, Connection::destroy_pool)
    }

    fn is_down(&self) -> bool {
        self.down_since_ns.load(Ordering::Acquire) != 0
    }

    fn down_ns(&self) -> u64 {
        match self.down_since_ns.load(Ordering::Acquire) {
            0 => 0,
            since_ns => now_ns().saturating_sub(since_ns),
        }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn tend(&self) {
        if !self.is_down() {
            let connection = self.state.lock().connection.clone();
            if let Some(connection) = connection {
                connection.tend();
            }
            return;
        }
        let now_ns = now_ns();
        if now_ns < self.tend_at_ns.load(Ordering::Relaxed) {
            return;
        }
        self.tend_at_ns.store(now_ns + TEND_INTERVAL_NS, Ordering::Relaxed);
        if self.way.answers() && matches!(self.connection(), Found::Connection(_)) {
            self.down_since_ns.store(0, Ordering::Release);
        }
    }

    fn forget_connections(&self) {
        // Its descriptors belong to the parent pager's table.
        std::mem::forget(self.state.lock().connection.take());
    }

    fn descriptors(&self) -> Vec<u64> {
        Vec::new()
    }

    fn reopen(&self, _: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A blade that answers or not.
    #[derive(Debug, Default)]
    struct Reachable(Arc<AtomicBool>);

    impl Way for Reachable {
        type Connection = Self;
        fn answers(&self) -> bool {
            true
        }
        fn connect(&self) -> Result<Self, NotConnected> {
            match self.0.load(Ordering::Relaxed) {
                true => Ok(Self(self.0.clone())),
                false => Err(NotConnected::NoAnswer),
            }
        }
    }

    impl Connection for Reachable {
        fn put(&self, _: &[Parcel<'_>], _: &mut [Carried]) {}
        fn get(&self, _: &mut [Wanted<'_>]) {}
        fn flush(&self, _: &[Key]) -> Carried {
            Carried::Done
        }
        fn flush_object(&self, _: u64) -> bool {
            self.0.load(Ordering::Relaxed)
        }
        fn destroy_pool(&self) -> bool {
            true
        }
        fn tend(&self) {}
    }

    #[test]
    fn it_is_down_from_the_first_call_without_an_answer_until_the_blade_is_found_again() {
        let reachable = Arc::new(AtomicBool::new(true));
        let line = Line::new(Reachable(reachable.clone()), Duration::from_millis(1));
        let since_ns = || line.down_since_ns.load(Ordering::Relaxed);
        assert!(line.flush_object(1) && line.down_ns() == 0);
        reachable.store(false, Ordering::Relaxed);
        assert!(!line.flush_object(1) && line.is_down());
        let first_ns = since_ns();
        line.tend();
        assert!(!line.flush_object(1));
        assert_eq!(since_ns(), first_ns);
        reachable.store(true, Ordering::Relaxed);
        line.tend_at_ns.store(0, Ordering::Relaxed);
        line.tend();
        assert!(!line.is_down() && line.down_ns() == 0);
        reachable.store(false, Ordering::Relaxed);
        assert!(!line.flush_object(1));
        assert!(since_ns() > first_ns, "the next outage begins anew");
    }

    #[test]
    fn what_a_batch_refused_is_not_forgotten_and_a_lost_one_is_the_last() {
        let keys: Vec<_> = (0..5).map(|index| Key::new(1, index)).collect();
        let outcome = |outcomes: [Carried; 3]| {
            let mut batches = Vec::new();
            let all = in_batches(&keys, 2, |keys| {
                batches.push(keys.len());
                outcomes[batches.len() - 1]
            });
            (all, batches)
        };
        let (done, refused, lost) = (Carried::Done, Carried::Refused, Carried::Lost);
        assert_eq!(outcome([done, done, done]), (done, vec![2, 2, 1]));
        assert_eq!(outcome([refused, done, done]), (refused, vec![2, 2, 1]));
        assert_eq!(outcome([refused, lost, done]), (lost, vec![2, 2]));
    }
}
