//! Notifications about keys: strings that commands write, keys of a dump, and when the server loads one.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::context::{Context, Text};
use super::register::subscribe;
use super::table::{Event, OK, RawContext, RawString, functions};

/// A module in each Redis from 8.0 on. It calls no commands, so none arrives while it has a key open.
const BUILT_IN: &[u8] = b"vectorset";
/// `REDISMODULE_NOTIFY_STRING`.
const STRING: c_int = 1 << 3;
/// `REDISMODULE_NOTIFY_EVICTED`.
const EVICTED: c_int = 1 << 9;
/// `REDISMODULE_NOTIFY_LOADED`.
const LOADED: c_int = 1 << 12;
/// `REDISMODULE_NOTIFY_NEW`.
const NEW: c_int = 1 << 14;
/// `REDISMODULE_EVENT_LOADING`.
const EVENT_LOADING: u64 = 3;
/// `REDISMODULE_EVENT_MODULE_CHANGE`.
const EVENT_MODULES: u64 = 9;
/// `REDISMODULE_SUBEVENT_LOADING_ENDED`. The three lower values are kinds of starts; the next is a failure.
const ENDED: u64 = 3;
/// The server setting for keyspace events.
const EVENTS: &[u8] = b"notify-keyspace-events";

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was loaded from a dump, with a value of any type, and is not used yet.
    Loaded,
    /// A command has written its string, and may still use it.
    Written,
    /// The server has deleted it, for lack of memory.
    Evicted,
}

/// A callback for changes of keys.
pub type Observer = fn(&Context<'_>, Change, &Text<'_>);

static OBSERVER: OnceLock<Observer> = OnceLock::new();
/// Whether the server is loading its whole content.
static LOADING: AtomicBool = AtomicBool::new(false);
/// The number of strings that commands have written.
static STRINGS_WRITTEN: AtomicU64 = AtomicU64::new(0);
/// Whether modules were loaded or unloaded since [`modules_changed`] was called last.
static MODULES_CHANGED: AtomicBool = AtomicBool::new(true);

/// Whether the server is loading its whole content. False while a replica loads its next content beside the one that it
/// serves.
pub fn is_loading() -> bool {
    LOADING.load(Ordering::Relaxed)
}

/// The number of strings that commands have written since the module was loaded.
pub fn strings_written() -> u64 {
    STRINGS_WRITTEN.load(Ordering::Relaxed)
}

/// Whether modules were loaded or unloaded since the last call.
pub fn modules_changed() -> bool {
    MODULES_CHANGED.swap(false, Ordering::Relaxed)
}

/// Calls `observer` for changes of keys. Returns whether the server reports them.
pub fn observe(context: &Context<'_>, observer: Observer) -> bool {
    OBSERVER.get_or_init(|| observer);
    // SAFETY: the callbacks are functions of this module, which is never unloaded.
    let told = unsafe {
        (functions().SubscribeToKeyspaceEvents)(context.raw(), STRING | EVICTED | LOADED, on_key)
            == OK
    };
    told && subscribe(context, EVENT_LOADING, on_loading)
        && subscribe(context, EVENT_MODULES, on_modules)
}

unsafe extern "C" fn on_key(
    context: *mut RawContext,
    kind: c_int,
    _event: *const c_char,
    key: *mut RawString,
) -> c_int {
    let change = match kind {
        LOADED => Change::Loaded,
        EVICTED => Change::Evicted,
        _ => Change::Written,
    };
    if change == Change::Written {
        STRINGS_WRITTEN.fetch_add(1, Ordering::Relaxed);
    }
    // A key that is loaded beside the served content can't be opened there.
    if let Some(observer) = OBSERVER.get().filter(|_| change != Change::Loaded || is_loading()) {
        // SAFETY: both pointers are the server's, and live as long as this call.
        unsafe { observer(&Context::from_raw(context), change, &Text::from_raw(key)) };
    }
    OK
}

unsafe extern "C" fn on_loading(context: *mut RawContext, _: Event, kind: u64, _: *mut c_void) {
    // SAFETY: the context is the server's, and lives as long as this call.
    let context = unsafe { Context::from_raw(context) };
    LOADING.store(kind < ENDED && !context.loads_beside(), Ordering::Relaxed);
}

unsafe extern "C" fn on_modules(_: *mut RawContext, _: Event, _: u64, _: *mut c_void) {
    MODULES_CHANGED.store(true, Ordering::Relaxed);
}

impl Context<'_> {
    /// Whether other modules are loaded, besides the one that each Redis 8 has.
    pub fn has_other_modules(&self) -> bool {
        let Some(reply) = self.call(c"MODULE", &[b"LIST"]) else { return true };
        // Each module is a map, flat in this version of the protocol, that begins with its name.
        let name = |at| reply.part(at).and_then(|module| module.part(1)).and_then(|it| it.bytes());
        let others = (0..reply.whole().parts()).filter(|at| name(*at) != Some(BUILT_IN));
        others.count() != 1
    }

    /// Calls `work` without the keyspace event `new`. The server would publish it for each key that it adds, even for
    /// one that existed before.
    pub fn without_new_events<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the call has no arguments.
        if unsafe { (functions().GetNotifyKeyspaceEvents)() } & NEW == 0 {
            return work();
        }
        let reply = self.call(c"CONFIG", &[b"GET", EVENTS]);
        let before = reply.as_ref().and_then(|reply| reply.part(1)).and_then(|part| part.bytes());
        let Some(before) = before else { return work() };
        // Redis 7.0 does not include this class in `A`, which means all others.
        let mut events: Vec<u8> = before.iter().copied().filter(|&class| class != b'n').collect();
        self.call(c"CONFIG", &[b"SET", EVENTS, &events]);
        let done = work();
        events.push(b'n');
        self.call(c"CONFIG", &[b"SET", EVENTS, &events]);
        done
    }
}
