//! Large values: a thread fetches them while only the client waits, not the server.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use crate::deadline::Deadline;
use crate::error::{Error, WRONG_TYPE};
use crate::server::{Context, Found, Key, Text, Waiting, Work};
use crate::spill::spill;
use crate::value::{SpilledValue, Value};

/// Values of at least this many bytes are fetched on a thread. By the rate in ADR 27, 164 µs for 1 MiB, fetching this
/// much would hold up the server for some 40 µs.
pub const BORDER_BYTES: u64 = 256 << 10;
/// Most clients that wait for a fetch at a time. Further ones are served in the server's thread.
const WAITING_MAX: usize = 64;
/// Threads that fetch.
const THREADS: usize = 2;

/// What to do with a key and its fetched bytes after the reply to the client.
pub type Then = fn(&Context<'_>, &Text<'_>, &[u8]);

/// A value that a client waits for.
struct Fetch {
    value: Arc<SpilledValue>,
    waiting: Waiting,
    then: Option<Then>,
}

/// A fetched value.
struct Fetched {
    value: Arc<SpilledValue>,
    bytes: Result<Vec<u8>, Error>,
    then: Option<Then>,
}

#[derive(Default)]
struct Queue {
    fetches: Mutex<VecDeque<Fetch>>,
    wake: Condvar,
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
            let bytes = fetch.value.read(Deadline::NONE);
            fetch.waiting.finish(Fetched { value: fetch.value, bytes, then: fetch.then });
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
    let (Some(queue), Some(value)) = (QUEUE.get(), value.in_store()) else { return false };
    if value.bytes() < BORDER_BYTES || queue.fetches().len() >= WAITING_MAX {
        return false;
    }
    let Some(waiting) = context.wait::<Fetched>() else { return false };
    queue.fetches().push_back(Fetch { value: Arc::clone(value), waiting, then });
    queue.wake.notify_one();
    true
}

impl Work for Fetched {
    fn answer(&self, context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        let [_, name] = arguments else { return Err("ERR wrong number of arguments".to_owned()) };
        let key = Key::peek(context, name);
        let same =
            |found: &Value| found.in_store().is_some_and(|now| Arc::ptr_eq(now, &self.value));
        match key.find::<Value>() {
            // The fetched bytes are current if the key still has this value: values never change.
            Found::Ours(found) if same(found) => match &self.bytes {
                Ok(bytes) => {
                    context.reply_bytes(bytes);
                    drop(key);
                    if let Some(then) = self.then {
                        then(context, name, bytes);
                    }
                }
                Err(error) => return Err(error.to_string()),
            },
            Found::Ours(found) => {
                let bytes = found.read(spill().deadline()).map_err(|error| error.to_string())?;
                context.reply_bytes(&bytes);
            }
            Found::Plain(bytes) => context.reply_bytes(bytes),
            Found::Nothing => context.reply_null(),
            Found::Other => return Err(WRONG_TYPE.to_owned()),
        }
        Ok(())
    }
}
