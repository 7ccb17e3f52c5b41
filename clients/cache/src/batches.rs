//! Executes batches on threads, for callers that wait on a descriptor.
//!
//! Each thread opens its own cache, so a thread that waits for a slow store delays no other. Each batch is answered
//! even if the store is slow or lost: it fails when its deadline or a call's timeout passes. A lost store is opened
//! again.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::cache::{Cache, Options};
use crate::error::Error;
use crate::get::Get;
use crate::put::Put;

/// Pause before a store that could not be opened is tried again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// Memory of a value, which stays valid until the batch is answered.
pub trait Memory: Send + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to be filled with a value.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// The operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Put values: all or none of them.
    Set,
    /// Get values.
    Get,
    /// Check whether values exist.
    Exists,
    /// Remove values.
    Delete,
}

/// Settings of [`Batches`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Options with which each thread opens its cache. `timeout` is that of a call.
    pub options: Options,
    /// Number of threads, at least one.
    pub threads: usize,
    /// Most waiting batches. Further ones fail at once.
    pub waiting_max: usize,
    /// Longest time that a batch may wait for a thread.
    pub deadline: Duration,
}

/// The answer to a batch.
#[derive(Debug)]
pub struct Completion<M> {
    /// The number from [`Batches::submit`].
    pub id: u64,
    /// The error, also for refused sets.
    pub error: Option<String>,
    /// For each key, whether its value was found, exists, or was removed. None for sets.
    pub found: Option<Vec<bool>>,
    /// The memory that came with the batch.
    pub memory: Vec<M>,
}

#[derive(Debug)]
struct Batch<M> {
    id: u64,
    kind: Kind,
    keys: Vec<Vec<u8>>,
    memory: Vec<M>,
    submitted: Instant,
}

#[derive(Debug)]
struct Shared<M> {
    url: String,
    settings: Settings,
    queue: Mutex<Queue<M>>,
    wakes: Condvar,
    /// Counts the answers that were not taken yet.
    answered: OwnedFd,
}

#[derive(Debug)]
struct Queue<M> {
    waiting: VecDeque<Batch<M>>,
    done: Vec<Completion<M>>,
    last: u64,
    closed: bool,
}

/// Threads that execute batches.
#[derive(Debug)]
pub struct Batches<M: Memory> {
    shared: Arc<Shared<M>>,
    threads: Vec<JoinHandle<()>>,
}

impl<M> Shared<M> {
    fn queue(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a batch.
    fn answer(&self, mut queue: MutexGuard<'_, Queue<M>>, completion: Completion<M>) {
        queue.done.push(completion);
        drop(queue);
        // A full counter is still readable.
        let _ = rustix::io::write(&self.answered, &1_u64.to_ne_bytes());
    }
}

impl<M: Memory> Batches<M> {
    /// Opens the store once for each thread.
    ///
    /// # Errors
    /// As for [`Cache::open`], and if there are no threads or descriptors left.
    pub fn open(url: &str, settings: Settings) -> Result<Self, Error> {
        let io = |error: std::io::Error| Error::Store(error.into());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let answered = eventfd(0, flags).map_err(|errno| io(errno.into()))?;
        let queue = Queue { waiting: VecDeque::new(), done: Vec::new(), last: 0, closed: false };
        // An embedded store belongs to this object: its threads share it.
        let count = if url.starts_with("embed:") { 1 } else { settings.threads.max(1) };
        let caches = (0..count).map(|_| Cache::open(url, &settings.options));
        let caches = caches.collect::<Result<Vec<_>, _>>()?;
        let (queue, wakes) = (Mutex::new(queue), Condvar::new());
        let shared = Arc::new(Shared { url: url.to_owned(), settings, queue, wakes, answered });
        let mut this = Self { shared, threads: Vec::new() };
        for cache in caches {
            let shared = Arc::clone(&this.shared);
            let session = Session { cache: Some(cache), failed: None };
            let thread = thread::Builder::new().name("spillway-batch".into());
            this.threads.push(thread.spawn(move || work(&shared, session)).map_err(io)?);
        }
        Ok(this)
    }

    /// Becomes readable when there are answers.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.answered.as_fd()
    }

    /// Submits a batch and returns its number. Never waits. `memory` is as long as `keys` for sets and gets, otherwise
    /// empty.
    pub fn submit(&self, kind: Kind, keys: Vec<Vec<u8>>, memory: Vec<M>) -> u64 {
        let mut queue = self.shared.queue();
        queue.last += 1;
        let id = queue.last;
        let batch = Batch { id, kind, keys, memory, submitted: Instant::now() };
        let most = self.shared.settings.waiting_max;
        if queue.closed {
            self.shared.answer(queue, batch.fail("the connector is closed".into()));
        } else if queue.waiting.len() >= most {
            let why = format!("{most} batches are waiting already: the store is too slow");
            self.shared.answer(queue, batch.fail(why));
        } else {
            queue.waiting.push_back(batch);
            drop(queue);
            self.shared.wakes.notify_one();
        }
        id
    }

    /// Takes the present answers.
    pub fn drain(&self) -> Vec<Completion<M>> {
        // Nothing to read if another thread took them.
        let _ = rustix::io::read(&self.shared.answered, &mut [0; 8]);
        std::mem::take(&mut self.shared.queue().done)
    }

    /// Fails waiting batches, and ends the threads after their present batch, which takes at most the timeout of a
    /// call.
    pub fn close(&mut self) {
        {
            let mut queue = self.shared.queue();
            queue.closed = true;
            let waiting = std::mem::take(&mut queue.waiting);
            let failed =
                waiting.into_iter().map(|batch| batch.fail("the connector was closed".into()));
            queue.done.extend(failed);
        }
        self.shared.wakes.notify_all();
        for thread in self.threads.drain(..) {
            // A panic ends the process.
            let _ = thread.join();
        }
    }
}

impl<M: Memory> Drop for Batches<M> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<M> Batch<M> {
    /// The answer to a batch of which nothing was executed.
    fn fail(self, why: String) -> Completion<M> {
        let found = (self.kind != Kind::Set).then(|| vec![false; self.keys.len()]);
        Completion { id: self.id, error: Some(why), found, memory: self.memory }
    }
}

/// A thread's connection to the store.
struct Session {
    cache: Option<Cache>,
    /// The time and the reason of the last failure to open the store.
    failed: Option<(Instant, String)>,
}

impl Session {
    /// The cache, opened again if it was lost.
    fn cache(&mut self, url: &str, options: &Options) -> Result<&Cache, String> {
        if self.cache.is_none() {
            if let Some((at, why)) = &self.failed
                && at.elapsed() < REOPEN_PAUSE
            {
                return Err(why.clone());
            }
            match Cache::open(url, options) {
                Ok(cache) => self.cache = Some(cache),
                Err(error) => {
                    self.failed = Some((Instant::now(), error.to_string()));
                    return Err(error.to_string());
                }
            }
        }
        self.cache.as_ref().ok_or_else(String::new)
    }
}

/// The main function of each thread.
fn work<M: Memory>(shared: &Shared<M>, mut session: Session) {
    while let Some(batch) = next(shared) {
        let waited = batch.submitted.elapsed();
        let completion = if waited > shared.settings.deadline {
            let why = format!("no thread had time for it within {:.1} s", waited.as_secs_f64());
            batch.fail(why)
        } else {
            match session.cache(&shared.url, &shared.settings.options) {
                Ok(cache) => {
                    let (completion, lost) = carry_out(cache, batch);
                    if lost {
                        session.cache = None;
                    }
                    completion
                }
                Err(why) => batch.fail(why),
            }
        };
        shared.answer(shared.queue(), completion);
    }
}

/// Waits for the next batch. `None` once the queue is closed.
fn next<M>(shared: &Shared<M>) -> Option<Batch<M>> {
    let mut queue = shared.queue();
    loop {
        if let Some(batch) = queue.waiting.pop_front() {
            return Some(batch);
        }
        if queue.closed {
            return None;
        }
        queue = shared.wakes.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Executes a batch; also returns whether the store was lost.
fn carry_out<M: Memory>(cache: &Cache, batch: Batch<M>) -> (Completion<M>, bool) {
    let Batch { id, kind, keys, mut memory, .. } = batch;
    let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let outcomes: Vec<Result<bool, Error>> = match kind {
        Kind::Set => {
            let puts = names.iter().zip(&memory);
            let puts: Vec<_> =
                puts.map(|(key, memory)| Put { key, value: memory.bytes() }).collect();
            cache.put(&puts)
        }
        Kind::Get => {
            let gets = names.iter().zip(&mut memory);
            let mut gets: Vec<_> =
                gets.map(|(key, memory)| Get { key, room: memory.bytes_mut() }).collect();
            let whole = |got: Option<usize>, get: &Get<'_>| got == Some(get.room.len());
            let got = cache.get(&mut gets);
            got.into_iter().zip(&gets).map(|(got, get)| got.map(|got| whole(got, get))).collect()
        }
        Kind::Exists => cache.exists(&names),
        Kind::Delete => cache.delete(&names),
    };
    let lost = outcomes.iter().any(|one| one.as_ref().is_err_and(Error::is_final));
    let mut error = outcomes.iter().find_map(|one| one.as_ref().err()).map(ToString::to_string);
    let done: Vec<bool> = outcomes.iter().map(|one| matches!(one, Ok(true))).collect();
    let all = done.iter().all(|&done| done);
    if kind == Kind::Set && !all {
        error = error.or_else(|| Some("the store is full: no value of the batch is stored".into()));
        // The caller considers the whole batch failed, and would never remove values of it that were
        // stored.
        let stored = names.iter().zip(&done).filter(|(_, done)| **done);
        cache.delete(&stored.map(|(name, _)| *name).collect::<Vec<_>>());
    }
    let found = (kind != Kind::Set).then_some(done);
    (Completion { id, error, found, memory }, lost)
}
