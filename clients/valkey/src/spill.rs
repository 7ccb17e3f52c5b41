//! The module's state: the way to the store, and the values there.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};

use crate::arguments::Arguments;
use crate::discards::Discards;
use crate::error::Error;
use crate::server::{Level, log};
use crate::session::{Extent, Session};

/// Values that are flushed at a time.
const FLUSHES: usize = 256;
/// Values that a put which is refused flushes first, in the server's thread.
const FLUSHES_FOR_ROOM: usize = 64;
/// Time in which values gather before they are flushed together, so that not each of them wakes a thread.
const GATHERING: Duration = Duration::from_millis(5);
/// Time between two attempts to connect, and between two looks at a connection that nobody uses.
const INTERVAL: Duration = Duration::from_millis(500);

static SPILL: OnceLock<Spill> = OnceLock::new();
/// The connection of a child that saves, made there.
static CHILD: OnceLock<Result<Session, Error>> = OnceLock::new();

/// Counters that the operator sees.
#[derive(Debug, Default)]
pub struct Counters {
    /// Values in the store, and their bytes.
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
    path: PathBuf,
    min_bytes: u64,
    deadline: Duration,
    child_limit_bytes: u64,
    session: Mutex<Option<Arc<Session>>>,
    /// The pool's identity, its low and its high half, zero before there is one. A child forked between
    /// the two writes finds no pool of that name, and fails safely.
    identity: [AtomicU64; 2],
    /// Number of the next chunk that is put.
    next: AtomicU64,
    /// Values with lower numbers went with a pool that is gone.
    lost_below: AtomicU64,
    discards: Mutex<Discards>,
    /// Something is to be flushed, or the connection has ended.
    wake: Condvar,
    /// Whether the operator has been told that the store refuses.
    told_refused: AtomicBool,
    /// What happened so far.
    pub counters: Counters,
}

/// The module's state. Whatever the server calls runs after [`start`].
pub fn spill() -> &'static Spill {
    SPILL.get().expect("the server calls the module once it is loaded")
}

/// Starts the module. A store that can't be reached is looked for until it can.
///
/// # Errors
/// In one line, when there is no thread to be had.
pub fn start(arguments: Arguments) -> Result<(), String> {
    let spill = SPILL.get_or_init(|| Spill {
        server: getpid(),
        path: arguments.path,
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
    if let Err(error) = spill.connect() {
        let path = spill.path.display();
        log(
            Level::Warning,
            &format!(
                "{error}: no daemon answers at {path}; values stay in the server until one does"
            ),
        );
    }
    let keeper = thread::Builder::new().name("spillway".into()).spawn(|| spill.keep());
    keeper.map(|_| ()).map_err(|error| format!("no thread: {error}"))
}

/// Tells the module that a child was forked, or has ended.
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

    /// Whether this process is a child of the server's, which saves.
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

    /// Bytes of values that are gone and kept for a child that saves.
    pub fn kept_bytes(&self) -> u64 {
        self.discards().kept_bytes()
    }

    /// Values that are gone and not flushed yet.
    pub fn unflushed(&self) -> u64 {
        self.discards().due() as u64
    }

    /// Puts a value into the store: where it lies, and its checksum. `None` when it is to stay in the server.
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
                    // Whether it took effect is not known.
                    self.discard(extent);
                    self.note(&session, &error);
                    return None;
                }
            }
            // What is to be flushed anyway may make room. The module's thread helps at once.
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

    /// Reads a value into memory of the server's.
    pub fn read(&self, extent: Extent, sum: u64) -> Result<Vec<u8>, Error> {
        let mut value = Vec::new();
        let bytes = usize::try_from(extent.bytes).unwrap_or(usize::MAX);
        value.try_reserve_exact(bytes).map_err(|_| Error::Memory(extent.bytes))?;
        value.resize(bytes, 0);
        self.read_into(extent, sum, &mut value)?;
        Ok(value)
    }

    /// Reads a value into `value`, which has its length.
    pub fn read_into(&self, extent: Extent, sum: u64, value: &mut [u8]) -> Result<(), Error> {
        self.with_session(extent, |session| session.read(extent, sum, value))
    }

    /// Reads a value chunk by chunk. What was taken is right only if there is no error in the end.
    pub fn read_each(
        &self,
        extent: Extent,
        sum: u64,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        self.with_session(extent, |session| session.read_each(extent, sum, take))
    }

    /// Does `read` with the connection of this process.
    fn with_session(
        &self,
        extent: Extent,
        read: impl FnOnce(&Session) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let is_lost = extent.first < self.lost_below.load(Ordering::Acquire);
        if self.in_child() {
            if is_lost {
                return Err(Error::Lost);
            }
            return match self.child() {
                Ok(session) => read(session),
                Err(_) => Err(Error::Away),
            };
        }
        self.counters.fetches.fetch_add(1, Ordering::Relaxed);
        let session =
            if is_lost { Err(Error::Lost) } else { self.session().clone().ok_or(Error::Away) };
        let done = session
            .and_then(|session| read(&session).inspect_err(|error| self.note(&session, error)));
        // One that the store was not even asked for failed as well.
        done.inspect_err(|_| {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// The connection of a child, which takes no lock that a thread of the server may have held over the fork.
    fn child(&self) -> &Result<Session, Error> {
        CHILD.get_or_init(|| Session::connect(&self.path, self.deadline, self.wanted(), false))
    }

    fn wanted(&self) -> Option<u128> {
        let [low, high] = &self.identity;
        let identity = u128::from(low.load(Ordering::Acquire))
            | u128::from(high.load(Ordering::Acquire)) << 64;
        (identity != 0).then_some(identity)
    }

    /// The server has let go of a value. Any thread of the server may say so.
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

    /// Takes note of an error: a connection that has ended is given up, and one whose pool is gone.
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

    /// Flushes at most `most` values; whether there were any, and the store answered.
    fn flush_some(&self, session: &Arc<Session>, most: usize) -> bool {
        let extents = self.discards().take(most);
        if extents.is_empty() {
            return false;
        }
        match session.flush(&extents) {
            Ok(()) => true,
            Err(error) => {
                // First, so that whoever connects again finds them.
                if matches!(error, Error::Away) {
                    self.discards().put_back(extents);
                }
                self.note(session, &error);
                false
            }
        }
    }

    /// Connects, and finds this server's pool again or makes one.
    fn connect(&self) -> Result<(), Error> {
        let wanted = self.wanted();
        let session = Session::connect(&self.path, self.deadline, wanted, true)?;
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
        log(Level::Notice, &format!("connected to the store at {}", self.path.display()));
        Ok(())
    }

    /// What the module's thread does: it flushes, and connects again when the connection has ended.
    fn keep(&self) {
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
                None => {
                    if self.connect().is_ok() {
                        continue;
                    }
                }
            }
            self.rest();
        }
    }

    /// Waits for values to flush, or until it is time to look at everything again.
    fn rest(&self) {
        let discards = self.discards();
        let pause = Pause::after(discards.due(), self.is_connected());
        if pause == Pause::Idle {
            drop(self.wake.wait_timeout(discards, INTERVAL));
        } else {
            drop(discards);
        }
        if pause != Pause::None {
            // Only who is short of room wakes it from this.
            drop(self.wake.wait_timeout(self.discards(), GATHERING));
        }
    }
}

/// What the module's thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// Nothing: there is enough to flush.
    None,
    /// More to flush.
    Gathering,
    /// The first value to flush, or a connection.
    Idle,
}

impl Pause {
    /// What comes after a flush that left so many values.
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
