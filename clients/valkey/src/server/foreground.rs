//! Failing a dump that the server itself writes, not a child of it.
//!
//! The module interface has no way to tell the server that a value can't be saved. In a child the end of the
//! process does. In the server, the limit on the size of files makes the next write of the dump fail: SAVE and
//! SHUTDOWN then answer with an error, the old dump stays, and the server goes on.

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

/// Whether this process writes a dump to a file, and waits for it.
static WRITING: AtomicBool = AtomicBool::new(false);
/// What the limit was before it was lowered; none while it is not.
static BEFORE: Mutex<Option<Rlimit>> = Mutex::new(None);

/// Learns when the server writes a dump itself; whether the server tells.
pub fn listen(context: &Context<'_>) -> bool {
    // SAFETY: the default of this signal ends the process; ignored, a write beyond the limit is an error. No
    // server of these uses the signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    subscribe(context, EVENT_PERSISTENCE, on_persistence)
}

/// Makes the dump that is being written fail. False when none is: what is written goes elsewhere.
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
    // More than one value may fail the same dump.
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
