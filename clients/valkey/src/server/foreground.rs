//! Makes a dump fail that the server itself writes, rather than a child.
//!
//! The module interface has no way to report that a value can't be saved. A child reports it by ending its process. In
//! the server, a limit on the size of files makes the next write of the dump fail: SAVE and SHUTDOWN then answer with
//! an error, the old dump stays, and the server keeps running.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Context;
use super::register::{EVENT_PERSISTENCE, subscribe};
use super::table::{Event, RawContext};

/// `REDISMODULE_SUBEVENT_PERSISTENCE_SYNC_RDB_START`.
const SYNC_RDB_START: u64 = 2;
/// `REDISMODULE_SUBEVENT_PERSISTENCE_ENDED`.
const ENDED: u64 = 3;
/// `REDISMODULE_SUBEVENT_PERSISTENCE_FAILED`.
const FAILED: u64 = 4;

/// Whether this process is writing a dump to a file, in the foreground.
static WRITING: AtomicBool = AtomicBool::new(false);
/// The limit before it was lowered; `None` while it is not lowered.
static BEFORE: Mutex<Option<Rlimit>> = Mutex::new(None);

/// Subscribes to the server's foreground dumps. Returns whether the server reports them.
pub fn listen(context: &Context<'_>) -> bool {
    // SAFETY: the default action of this signal ends the process. When it is ignored, a write beyond the limit fails
    // with an error instead. None of these servers uses the signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    subscribe(context, EVENT_PERSISTENCE, on_persistence)
}

/// Makes the current dump fail. Returns false when there is no dump: the data is being written elsewhere.
pub fn fail_dump() -> bool {
    if !WRITING.load(Ordering::Relaxed) {
        return false;
    }
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Fsize);
    let maximum = limit.maximum;
    if setrlimit(Resource::Fsize, Rlimit { current: Some(0), maximum }).is_err() {
        return false;
    }
    // Several values may fail during one dump.
    before.get_or_insert(limit);
    true
}

unsafe extern "C" fn on_persistence(_: *mut RawContext, _: Event, kind: u64, _: *mut c_void) {
    match kind {
        SYNC_RDB_START => WRITING.store(true, Ordering::Relaxed),
        ENDED | FAILED => {
            WRITING.store(false, Ordering::Relaxed);
            let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(limit) = before {
                // Raising the soft limit up to the hard one is always allowed.
                let _ = setrlimit(Resource::Fsize, limit);
            }
        }
        _ => {}
    }
}
