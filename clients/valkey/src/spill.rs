//! The module's state: the connection to the store, and the values there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};
use spillway_client::Peer;

use crate::arguments::Arguments;
use crate::deadline::Deadline;
use crate::discards::Discards;
use crate::error::Error;
use crate::server::{Level, log};
use crate::session::{Extent, Session};

/// Most values in one flush.
const FLUSHES: usize = 256;
/// Most values that a refused put flushes before it tries again, in the server's thread.
const FLUSHES_FOR_ROOM: usize = 64;
/// Time that deleted values gather before they are flushed together, so that not every one wakes a thread.
const GATHERING: Duration = Duration::from_millis(5);
/// Time between two attempts to connect, and between two checks of an idle connection.
const INTERVAL: Duration = Duration::from_millis(500);

static SPILL: OnceLock<Spill> = OnceLock::new();
/// The connection of a child that saves. The child itself makes it.
static CHILD: OnceLock<Result<Session, Error>> = OnceLock::new();

/// Counters for the operator.
#[derive(Debug, Default)]
pub struct Counters {
    /// Values in the store.
    pub spilled_values: AtomicU64,
    /// Bytes of values in the store.
    pub spilled_bytes: AtomicU64,
    /// Values of the module's type in the server.
    pub inline_values: AtomicU64,
    /// Bytes of values of the module's type in the server.
    pub inline_bytes: AtomicU64,
    /// Values put.
    pub puts: AtomicU64,
    /// Values that the store refused, which stay in the server.
    pub refused: AtomicU64,
    /// Values read.
    pub fetches: AtomicU64,
    /// Reads that failed.
    pub failed: AtomicU64,
    /// Connections to the store that ended.
    pub away: AtomicU64,
}

/// The state of the module.
pub struct Spill {
    server: Pid,
    peer: Peer,
    min_bytes: u64,
    deadline: Duration,
    child_limit_bytes: u64,
    session: Mutex<Option<Arc<Session>>>,
    /// The pool's identity, low and high half; zero before there is one. A child forked between the two writes finds no
    /// pool of that identity, and fails safely.
    identity: [AtomicU64; 2],
    /// Number of the next chunk to put.
    next: AtomicU64,
    /// Values with lower numbers were lost with an earlier pool.
    lost_below: AtomicU64,
    discards: Mutex<Discards>,
    /// Signals that there are values to flush, or that the connection has ended.
    wake: Condvar,
    /// Whether the log has reported that the store refuses values.
    told_refused: AtomicBool,
    /// Counters for the operator.
    pub counters: Counters,
}

/// The module's state. Every callback of the server runs after [`start`].
pub fn spill() -> &'static Spill {
    SPILL.get().expect("the server calls the module once it is loaded")
}

/// Starts the module. While the store can't be reached, a thread keeps trying.
///
/// # Errors
/// A line, when the thread can't be started.
pub fn start(arguments: Arguments) -> Result<(), String> {
    let spill = SPILL.get_or_init(|| Spill {
        server: getpid(),
        peer: arguments.peer,
        min_bytes: arguments.min_bytes.max(1),
        deadline: arguments.deadline,
        child_limit_bytes: arguments.child_limit_bytes,
        session: Mutex::default(),
        identity: Default::default(),
        next: AtomicU64::new(0),
        lost_below: AtomicU64::new(0),
        discards: Mutex::default(),
        wake: Condvar::new(),
        told_refused: AtomicBool::new(false),
        counters: Counters::default(),
    });
    let told = spill.connect().err().map(|error| error.to_string()).unwrap_or_default();
    if !told.is_empty() {
        log(Level::Warning, &format!("{told}; values stay in the server until it is back"));
    }
    let keeper = thread::Builder::new().name("spillway".into()).spawn(|| spill.keep(told));
    keeper.map(|_| ()).map_err(|error| format!("no thread: {error}"))
}

/// Records that a child was forked (`born`), or has ended.
pub fn on_fork(born: bool) {
    let spill = spill();
    let mut discards = spill.discards();
    if born {
        discards.child_born(spill.next.load(Ordering::Relaxed));
    } else {
        discards.child_died();
        spill.wake.notify_one();
    }
}

impl Spill {
    fn discards(&self) -> MutexGuard<'_, Discards> {
        self.discards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process is a child of the server that saves.
    pub fn in_child(&self) -> bool {
        getpid() != self.server
    }

    /// Shorter values stay in the server.
    pub const fn min_bytes(&self) -> u64 {
        self.min_bytes
    }

    /// Whether there is a connection to the store.
    pub fn is_connected(&self) -> bool {
        self.session().is_some()
    }

    /// Bytes of deleted values that the store keeps for a child that saves.
    pub fn kept_bytes(&self) -> u64 {
        self.discards().kept_bytes()
    }

    /// Deleted values that are not flushed yet.
    pub fn unflushed(&self) -> u64 {
        self.discards().due() as u64
    }

    /// Puts a value into the store. Returns its place and its checksum; `None` when the value must stay in the server.
    pub fn put(&self, value: &[u8]) -> Option<(Extent, u64)> {
        let bytes = value.len() as u64;
        if bytes < self.min_bytes || self.kept_bytes() > self.child_limit_bytes {
            return None;
        }
        let session = self.session().clone()?;
        let mut extent = Extent { first: 0, bytes };
        for attempt in 0..2 {
            extent.first = self.next.fetch_add(extent.chunks(), Ordering::Relaxed);
            match session.put(extent, value) {
                Ok(Some(sum)) => {
                    self.counters.puts.fetch_add(1, Ordering::Relaxed);
                    return Some((extent, sum));
                }
                Ok(None) => self.discard(extent),
                Err(error) => {
                    // The put may have taken effect.
                    self.discard(extent);
                    self.note(&session, &error);
                    return None;
                }
            }
            // Flushing deleted values may make room. The module's thread helps at once.
            self.wake.notify_one();
            if attempt == 0 && !self.flush_some(&session, FLUSHES_FOR_ROOM) {
                break;
            }
        }
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        if !self.told_refused.swap(true, Ordering::Relaxed) {
            log(Level::Warning, "the store refuses values; they stay in the server");
        }
        None
    }

    /// When the reads of a command that begins now must have ended.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.deadline)
    }

    /// Reads a value into new memory of the server.
    pub fn read(&self, extent: Extent, sum: u64, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let mut value = extent.buffer()?;
        self.read_into(extent, sum, &mut value, deadline)?;
        Ok(value)
    }

    /// Reads values, each with its checksum, many at a time. If one can't be read, none counts as read.
    pub fn read_many(
        &self,
        values: &[(Extent, u64)],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let Some(oldest) = values.iter().map(|(extent, _)| extent.first).min() else {
            return Ok(Vec::new());
        };
        self.with_session(oldest, values.len(), |session| session.read_many(values, deadline))
    }

    /// Reads a value into `value`, whose length is the value's.
    pub fn read_into(
        &self,
        extent: Extent,
        sum: u64,
        value: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.with_session(extent.first, 1, |session| session.read(extent, sum, value, deadline))
    }

    /// Reads a value chunk by chunk. The chunks are verified only when this returns without an error.
    pub fn read_each(
        &self,
        extent: Extent,
        sum: u64,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        self.with_session(extent.first, 1, |session| session.read_each(extent, sum, take))
    }

    /// Calls `read` with the connection of this process. It reads `count` values; the lowest number of a chunk is
    /// `oldest`.
    fn with_session<T>(
        &self,
        oldest: u64,
        count: usize,
        read: impl FnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let is_lost = oldest < self.lost_below.load(Ordering::Acquire);
        if self.in_child() {
            if is_lost {
                return Err(Error::Lost);
            }
            return match self.child() {
                Ok(session) => read(session),
                Err(_) => Err(Error::Away),
            };
        }
        self.counters.fetches.fetch_add(count as u64, Ordering::Relaxed);
        let session =
            if is_lost { Err(Error::Lost) } else { self.session().clone().ok_or(Error::Away) };
        let done = session
            .and_then(|session| read(&session).inspect_err(|error| self.note(&session, error)));
        // A read that never reached the store counts as failed too.
        done.inspect_err(|_| {
            self.counters.failed.fetch_add(count as u64, Ordering::Relaxed);
        })
    }

    /// The connection of a child. It takes no lock, because a thread of the server may have held one at the fork.
    fn child(&self) -> &Result<Session, Error> {
        CHILD.get_or_init(|| {
            let session = Session::connect(&self.peer, self.deadline, self.wanted(), false);
            session.inspect_err(|error| log(Level::Warning, &error.to_string()))
        })
    }

    fn wanted(&self) -> Option<u128> {
        let [low, high] = &self.identity;
        let identity = u128::from(low.load(Ordering::Acquire))
            | u128::from(high.load(Ordering::Acquire)) << 64;
        (identity != 0).then_some(identity)
    }

    /// Discards a value that the server has deleted. Any thread of the server may call it.
    pub fn discard(&self, extent: Extent) {
        if !self.in_child() {
            let mut discards = self.discards();
            let before = discards.due();
            discards.add(extent);
            let is_first = before == 0 && discards.due() == 1;
            drop(discards);
            if is_first {
                self.wake.notify_one();
            }
        }
    }

    /// Records an error: gives up a connection that has ended, and one whose pool is gone.
    fn note(&self, session: &Arc<Session>, error: &Error) {
        let line = match error {
            Error::Away => {
                "the connection to the store has ended; values there can't be read until it is back"
            }
            Error::NoPool => "this server's pool in the store was destroyed",
            other => return log(Level::Warning, &other.to_string()),
        };
        let mut current = self.session();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            *current = None;
            drop(current);
            self.counters.away.fetch_add(1, Ordering::Relaxed);
            log(Level::Warning, line);
            self.wake.notify_one();
        }
    }

    /// Flushes at most `most` values. Returns whether there were any and the store answered.
    fn flush_some(&self, session: &Arc<Session>, most: usize) -> bool {
        let extents = self.discards().take(most);
        if extents.is_empty() {
            return false;
        }
        match session.flush(&extents) {
            Ok(()) => true,
            Err(error) => {
                // Put them back first, so that the next connection finds them.
                if matches!(error, Error::Away) {
                    self.discards().put_back(extents);
                }
                self.note(session, &error);
                false
            }
        }
    }

    /// Connects, and opens this server's pool or creates one.
    fn connect(&self) -> Result<(), Error> {
        let wanted = self.wanted();
        let session = Session::connect(&self.peer, self.deadline, wanted, true)?;
        let identity = session.identity();
        if wanted != Some(identity) {
            if wanted.is_some() {
                self.lost_below.store(self.next.load(Ordering::Relaxed), Ordering::Release);
                self.discards().forget();
                log(
                    Level::Warning,
                    "the store has no pool of this server's any more: values that lay in it are lost",
                );
            }
            self.identity[0].store(identity as u64, Ordering::Release);
            self.identity[1].store((identity >> 64) as u64, Ordering::Release);
        }
        *self.session() = Some(Arc::new(session));
        log(Level::Notice, &format!("connected to the store at {}", self.peer.path().display()));
        Ok(())
    }

    /// The main loop of the module's thread: flushes, and connects again when the connection has ended. `told` is why
    /// the log says that it can't connect.
    fn keep(&self, mut told: String) {
        let mut looked = Instant::now();
        loop {
            let session = self.session().clone();
            match session {
                Some(session) => {
                    self.flush_some(&session, FLUSHES);
                    if looked.elapsed() >= INTERVAL {
                        looked = Instant::now();
                        if !session.is_there() {
                            self.note(&session, &Error::Away);
                            continue;
                        }
                    }
                }
                None => match self.connect() {
                    Ok(()) => {
                        told.clear();
                        continue;
                    }
                    Err(error) => {
                        let why = error.to_string();
                        if why != told {
                            log(Level::Warning, &why);
                            told = why;
                        }
                    }
                },
            }
            self.rest();
        }
    }

    /// Waits for values to flush, or until the next check is due.
    fn rest(&self) {
        let discards = self.discards();
        let pause = Pause::after(discards.due(), self.is_connected());
        if pause == Pause::Idle {
            drop(self.wake.wait_timeout(discards, INTERVAL));
        } else {
            drop(discards);
        }
        if pause != Pause::None {
            // Only a refused put wakes the thread from this wait.
            drop(self.wake.wait_timeout(self.discards(), GATHERING));
        }
    }
}

/// How long the module's thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// Not at all: there is enough to flush.
    None,
    /// Until more values have gathered.
    Gathering,
    /// Until there is a value to flush, or the connection is due.
    Idle,
}

impl Pause {
    /// The wait after a flush that left `due` values.
    const fn after(due: usize, is_connected: bool) -> Self {
        if !is_connected || due == 0 {
            Self::Idle
        } else if due < FLUSHES {
            Self::Gathering
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_gathers_what_is_less_than_a_batch_and_sleeps_when_there_is_nothing() {
        for (due, is_connected, pause) in [
            (0, true, Pause::Idle),
            (1, true, Pause::Gathering),
            (FLUSHES - 1, true, Pause::Gathering),
            (FLUSHES, true, Pause::None),
            (0, false, Pause::Idle),
            (FLUSHES, false, Pause::Idle),
        ] {
            assert_eq!(Pause::after(due, is_connected), pause, "{due} {is_connected}");
        }
    }
}
