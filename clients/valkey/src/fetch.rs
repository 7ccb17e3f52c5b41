//! Large values: a thread fetches them while only the client waits, not the server.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use crate::deadline::Deadline;
use crate::error::{Error, WRONG_TYPE};
use crate::server::{Context, Found, Key, Text, Waiting, Work};
use crate::spill::spill;
use crate::transparent::pressure::has_room_for;
use crate::value::{SpilledValue, Value};

/// Values of at least this many bytes together are fetched on a thread. By the rate in ADR 27, 164 µs for 1 MiB, fetching
/// this much would hold up the server for some 40 µs.
pub const BORDER_BYTES: u64 = 256 << 10;
/// Most clients that wait for a fetch at a time. Further ones are served in the server's thread.
const WAITING_MAX: usize = 64;
/// Most bytes of commands with several keys that are fetched or wait for their answer. Beyond it, or if `maxmemory` has
/// no room for them, such a command is carried out in the server's thread. There only one at a time takes memory, and
/// nothing is evicted for it.
const MANY_BYTES_MAX: u64 = 64 << 20;
/// Threads that fetch.
const THREADS: usize = 2;

/// Replies to a client with what was fetched, or returns the error reply. It gets the command's arguments.
type Answer = dyn Fn(&Context<'_>, &[Text<'_>], &Fetched) -> Result<(), String> + Send;

/// What to do with a key and its fetched bytes after the reply to the client.
pub type Then = fn(&Context<'_>, &Text<'_>, &[u8]);

/// What a client waits for.
struct Fetch {
    values: Vec<Option<Arc<SpilledValue>>>,
    waiting: Waiting,
    answer: Box<Answer>,
}

/// The fetched values of a command, by the place of their keys among its keys.
pub struct Fetched {
    values: Vec<Option<Arc<SpilledValue>>>,
    /// Those of the values that there are. Each is taken once.
    bytes: Result<Vec<Cell<Vec<u8>>>, Error>,
}

/// What a client waited for.
struct Done {
    fetched: Fetched,
    answer: Box<Answer>,
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.many_bytes.fetch_sub(many_bytes(&self.fetched.values), Ordering::Relaxed);
        }
    }
}

/// Reads the values that there are. A single one is read chunk by chunk: other threads use the connection in between.
fn read(values: &[Option<Arc<SpilledValue>>], deadline: Deadline) -> Result<Vec<Vec<u8>>, Error> {
    if let [Some(value)] = values {
        return value.read(deadline).map(|bytes| vec![bytes]);
    }
    let places: Vec<_> = values.iter().flatten().map(|value| value.place()).collect();
    spill().read_many(&places, deadline)
}

/// Number of bytes of values of several keys; 0 for a single key.
fn many_bytes(values: &[Option<Arc<SpilledValue>>]) -> u64 {
    let bytes = values.iter().flatten().map(|value| value.bytes());
    if values.len() > 1 { bytes.sum() } else { 0 }
}

#[derive(Default)]
struct Queue {
    fetches: Mutex<VecDeque<Fetch>>,
    wake: Condvar,
    /// Bytes of commands with several keys that are fetched or wait for their answer.
    many_bytes: AtomicU64,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

impl Queue {
    fn fetches(&self) -> MutexGuard<'_, VecDeque<Fetch>> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut fetches = self.fetches();
            let fetch = loop {
                match fetches.pop_front() {
                    Some(fetch) => break fetch,
                    None => {
                        fetches = self.wake.wait(fetches).unwrap_or_else(PoisonError::into_inner)
                    }
                }
            };
            drop(fetches);
            // Only the client waits, so only each chunk has a deadline, not the value.
            let bytes = read(&fetch.values, Deadline::NONE);
            let bytes = bytes.map(|bytes| bytes.into_iter().map(Cell::new).collect());
            let fetched = Fetched { values: fetch.values, bytes };
            fetch.waiting.finish(Done { fetched, answer: fetch.answer });
        }
    }
}

/// Starts the threads.
///
/// # Errors
/// A line, when a thread can't be started.
pub fn start() -> Result<(), String> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    let queue = QUEUE.get_or_init(Queue::default);
    (0..THREADS).try_for_each(|_| {
        let thread = thread::Builder::new().name("spillway-fetch".into()).spawn(|| queue.work());
        thread.map(|_| ()).map_err(|error| format!("no thread: {error}"))
    })
}

/// Makes the client of a GET wait for a value, if it is large and the client may block.
pub fn wait_for(context: &Context<'_>, value: &Value, then: Option<Then>) -> bool {
    let answer = move |context: &Context<'_>, arguments: &[Text<'_>], fetched: &Fetched| {
        answer_get(context, arguments, fetched, then)
    };
    wait_for_all(context, std::iter::once(value.in_store()), answer)
}

/// Makes a client wait for values, if they are large together and the client may block. Then `answer` replies.
pub fn wait_for_all<'a>(
    context: &Context<'_>,
    values: impl Iterator<Item = Option<&'a Arc<SpilledValue>>> + Clone,
    answer: impl Fn(&Context<'_>, &[Text<'_>], &Fetched) -> Result<(), String> + Send + 'static,
) -> bool {
    let Some(queue) = QUEUE.get() else { return false };
    let bytes: u64 = values.clone().flatten().map(|value| value.bytes()).sum();
    if bytes < BORDER_BYTES || queue.fetches().len() >= WAITING_MAX {
        return false;
    }
    let values: Vec<_> = values.map(Option::<&Arc<_>>::cloned).collect();
    let many = many_bytes(&values);
    // Only the server's thread adds.
    let all = queue.many_bytes.load(Ordering::Relaxed) + many;
    if many > 0 && (all > MANY_BYTES_MAX || !has_room_for(context, all)) {
        return false;
    }
    let Some(waiting) = context.wait::<Done>() else { return false };
    queue.many_bytes.fetch_add(many, Ordering::Relaxed);
    queue.fetches().push_back(Fetch { values, waiting, answer: Box::new(answer) });
    queue.wake.notify_one();
    true
}

impl Work for Done {
    fn answer(&self, context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        (self.answer)(context, arguments, &self.fetched)
    }
}

impl Fetched {
    /// Takes the fetched bytes of each key that still has the value that was fetched: they are current, because values
    /// never change. `now` is the value of each key.
    ///
    /// # Errors
    /// Why they can't be read, if a key still has its value.
    pub fn take_current(
        &self,
        now: &[Option<&Arc<SpilledValue>>],
    ) -> Result<Vec<Option<Vec<u8>>>, &Error> {
        type Pair<'a> = (&'a Option<Arc<SpilledValue>>, &'a Option<&'a Arc<SpilledValue>>);
        let is_same = |(was, now): Pair<'_>| {
            was.as_ref().zip(*now).is_some_and(|(was, now)| Arc::ptr_eq(was, now))
        };
        let bytes = match &self.bytes {
            Ok(bytes) => bytes,
            Err(error) if self.values.iter().zip(now).any(is_same) => return Err(error),
            Err(_) => return Ok(vec![None; now.len()]),
        };
        let mut bytes = bytes.iter();
        let of = |(was, now)| {
            let fetched = Option::as_ref(was).and_then(|_: &Arc<SpilledValue>| bytes.next());
            fetched.filter(|_| is_same((was, now))).map(Cell::take)
        };
        Ok(self.values.iter().zip(now).map(of).collect())
    }
}

/// Replies to a GET.
fn answer_get(
    context: &Context<'_>,
    arguments: &[Text<'_>],
    fetched: &Fetched,
    then: Option<Then>,
) -> Result<(), String> {
    let [_, name] = arguments else { return Err("ERR wrong number of arguments".to_owned()) };
    let key = Key::peek(context, name);
    match key.find::<Value>() {
        Found::Ours(found) => {
            let current =
                fetched.take_current(&[found.in_store()]).map_err(|error| error.to_string())?;
            if let [Some(bytes)] = &current[..] {
                context.reply_bytes(bytes);
                drop(key);
                if let Some(then) = then {
                    then(context, name, bytes);
                }
            } else {
                let bytes = found.read(spill().deadline()).map_err(|error| error.to_string())?;
                context.reply_bytes(&bytes);
            }
        }
        Found::Plain(bytes) => context.reply_bytes(bytes),
        Found::Nothing => context.reply_null(),
        Found::Other => return Err(WRONG_TYPE.to_owned()),
    }
    Ok(())
}
