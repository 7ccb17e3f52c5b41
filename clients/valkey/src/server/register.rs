//! Registration with the server when it loads the module: name, commands, events and INFO.

use std::ffi::{CStr, c_int, c_void};
use std::slice;
use std::sync::OnceLock;

use super::context::{Context, Level, Text, log};
use super::table::{
    CommandInfo, CommandInfoVersion, Event, EventEntry, KeySpec, KeySpecBegin, OK, RawContext,
    RawInfo, RawString, functions, take,
};

/// `REDISMODULE_APIVER_1`.
const API_VERSION: c_int = 1;
/// Redis 7.0.0, in the encoding of `GetServerVersion`.
const OLDEST_SERVER: c_int = 0x0007_0000;
/// The module handles read errors of dumps; only the module signals changed keys; values may be loaded while older ones
/// are served.
const OPTIONS: c_int = 1 | 1 << 1 | 1 << 2;
/// `REDISMODULE_CMD_KEY_RO`, without a permission that it requires.
const KEY_READ_ONLY: u64 = 1;
/// `REDISMODULE_CMD_KEY_NOT_KEY`: the rules for users take it for none. Clusters and tracking find it all the same.
const NO_KEY: u64 = 1 << 8;
/// `REDISMODULE_KSPEC_BS_INDEX`.
const BEGINS_AT_INDEX: c_int = 2;
/// `REDISMODULE_KSPEC_FK_RANGE`.
const ENDS_OF_RANGE: c_int = 2;
/// `REDISMODULE_EVENT_PERSISTENCE`.
pub(super) const EVENT_PERSISTENCE: u64 = 1;
/// `REDISMODULE_EVENT_FORK_CHILD`.
const EVENT_FORK_CHILD: u64 = 13;
/// `REDISMODULE_EVENT_EVENTLOOP`.
const EVENT_LOOP: u64 = 15;
/// `REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP`.
const BEFORE: u64 = 0;
/// `REDISMODULE_SUBEVENT_FORK_CHILD_BORN`.
const BORN: u64 = 0;

/// Runs `load` for the server that calls the module's entry point. Returns the entry point's result. An error becomes
/// one line of the server's log.
///
/// # Safety
/// The arguments must be those of the entry point.
pub unsafe fn within_onload(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
    load: fn(&Context<'_>, &[Text<'_>]) -> Result<(), String>,
) -> c_int {
    // SAFETY: the context is the entry point's.
    if let Err(lacking) = unsafe { take(context) } {
        // Use stderr. The only function known to exist in this server is the one that looks up others; the log function
        // may be missing.
        eprintln!(
            "spillway: the server is too old: it has no {lacking}; Redis 7.0 or later, or Valkey, is needed"
        );
        return 1;
    }
    // SAFETY: the arguments are the entry point's, and live as long as it runs.
    let (context, arguments) = unsafe { (Context::from_raw(context), texts(arguments, count)) };
    match load(&context, arguments) {
        Ok(()) => OK,
        Err(why) => {
            log(Level::Warning, &why);
            1
        }
    }
}

/// The strings that the server passes to a callback.
///
/// # Safety
/// There must be `count` of them, which live as long as the call.
pub(super) unsafe fn texts<'a>(arguments: *mut *mut RawString, count: c_int) -> &'a [Text<'a>] {
    if count == 0 {
        return &[];
    }
    // SAFETY: `Text` is a transparent wrapper of this pointer type, and there are `count` of them.
    unsafe { slice::from_raw_parts(arguments.cast(), count as usize) }
}

/// Registers this as the server's module `name`.
///
/// # Errors
/// A line with the reason.
pub fn attach(context: &Context<'_>, name: &CStr, version: c_int) -> Result<(), String> {
    let functions = functions();
    // SAFETY: the call has no arguments.
    let server = unsafe { (functions.GetServerVersion)() };
    if server < OLDEST_SERVER {
        return Err(format!(
            "server {}.{}.{} is too old; Redis 7.0 or later, or Valkey, is needed",
            server >> 16,
            server >> 8 & 0xff,
            server & 0xff
        ));
    }
    // SAFETY: the name ends with a zero.
    if unsafe { (functions.IsModuleNameBusy)(name.as_ptr()) } != 0 {
        return Err("the module is loaded already".to_owned());
    }
    // SAFETY: the context is the entry point's, and the name ends with a zero; it is copied.
    unsafe {
        (functions.SetModuleAttribs)(context.raw(), name.as_ptr(), version, API_VERSION);
        (functions.SetModuleOptions)(context.raw(), OPTIONS);
    }
    Ok(())
}

/// How many arguments a command takes, its name included.
#[derive(Clone, Copy, Debug)]
pub enum Arity {
    /// This many.
    Exactly(usize),
    /// This many or more.
    AtLeast(usize),
}

impl Arity {
    /// Whether this many are allowed.
    pub const fn allows(self, count: usize) -> bool {
        match self {
            Self::Exactly(wanted) => count == wanted,
            Self::AtLeast(least) => count >= least,
        }
    }
}

/// A command of the module.
pub trait Command {
    /// The name.
    const NAME: &'static CStr;
    /// The server's flags for it.
    const FLAGS: &'static CStr;
    /// Positions of the keys: the first, the last (counted from the end if negative), and the step.
    const KEYS: (c_int, c_int, c_int);
    /// How many arguments it takes.
    const ARITY: Arity;

    /// Runs the command, and replies.
    ///
    /// # Errors
    /// The error reply.
    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String>;
}

/// Registers a command.
///
/// # Errors
/// A line, when the server rejects it.
pub fn register_command<C: Command>(context: &Context<'_>) -> Result<(), String> {
    register_as::<C>(context, C::NAME, C::FLAGS, C::KEYS)
}

/// Registers a command under another name, with its own flags and key positions.
///
/// # Errors
/// A line, when the server rejects it.
pub fn register_as<C: Command>(
    context: &Context<'_>,
    name: &CStr,
    flags: &CStr,
    keys: (c_int, c_int, c_int),
) -> Result<(), String> {
    let (first, last, step) = keys;
    // SAFETY: the texts end with zeros and are copied.
    let status = unsafe {
        (functions().CreateCommand)(
            context.raw(),
            name.as_ptr(),
            command::<C>,
            flags.as_ptr(),
            first,
            last,
            step,
        )
    };
    if status == OK { Ok(()) } else { Err(format!("the server does not take {name:?}")) }
}

/// Registers a command that runs one of the server's own commands, which checks permissions itself. For the keys of
/// this one, the server checks only that the user may name them; if `lets_in`, it checks nothing.
///
/// # Errors
/// A line, when the server rejects it.
pub fn register_for_native<C: Command>(
    context: &Context<'_>,
    name: &CStr,
    flags: &CStr,
    keys: (c_int, c_int, c_int),
    lets_in: bool,
) -> Result<(), String> {
    register_as::<C>(context, name, flags, keys)?;
    let (first, last, step) = keys;
    if first == 0 {
        return Ok(());
    }
    let key_flags = if lets_in { KEY_READ_ONLY | NO_KEY } else { KEY_READ_ONLY };
    // The end counts from the first key, or from the last argument.
    let last_key = if last < 0 { last } else { last - first };
    let specs = [key_spec(key_flags, first, last_key, step), key_spec(0, 0, 0, 0)];
    let version = CommandInfoVersion {
        version: 1,
        history_entry_bytes: 2 * size_of::<usize>(),
        key_spec_bytes: size_of::<KeySpec>(),
        argument_bytes: 0,
    };
    let none = std::ptr::null();
    let info = CommandInfo {
        version: &version,
        summary: none,
        complexity: none,
        since: none,
        history: none.cast(),
        tips: none,
        arity: 0,
        key_specs: specs.as_ptr(),
        arguments: none.cast(),
    };
    // SAFETY: the command is registered, and the description is copied.
    let status = unsafe {
        let made = (functions().GetCommand)(context.raw(), name.as_ptr());
        (functions().SetCommandInfo)(made, &info)
    };
    if status == OK {
        Ok(())
    } else {
        Err(format!("the server does not take the keys of {name:?}"))
    }
}

/// Keys from an index on; the terminator of a list for index 0.
const fn key_spec(flags: u64, index: c_int, last_key: c_int, key_step: c_int) -> KeySpec {
    let (begins, ends) = if index == 0 { (0, 0) } else { (BEGINS_AT_INDEX, ENDS_OF_RANGE) };
    KeySpec {
        notes: std::ptr::null(),
        flags,
        begin_search_type: begins,
        begin: KeySpecBegin { index, others: [0; 3] },
        find_keys_type: ends,
        last_key,
        key_step,
        limit: 0,
    }
}

unsafe extern "C" fn command<C: Command>(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    // SAFETY: the pointers are the server's, and live as long as this call.
    let (context, arguments) = unsafe { (Context::from_raw(context), texts(arguments, count)) };
    if !C::ARITY.allows(arguments.len()) {
        // SAFETY: the call takes the context alone.
        return unsafe { (functions().WrongArity)(context.raw()) };
    }
    if let Err(answer) = C::run(&context, arguments) {
        context.reply_error(&answer);
    }
    OK
}

/// Subscribes to an event. Returns whether the server has it.
pub(super) fn subscribe(context: &Context<'_>, id: u64, entry: EventEntry) -> bool {
    // SAFETY: the event has version 1, and no callback here reads its data.
    unsafe {
        (functions().SubscribeToServerEvent)(context.raw(), Event { id, version: 1 }, entry) == OK
    }
}

/// The callback for forks.
static ON_FORK: OnceLock<fn(bool)> = OnceLock::new();

/// Calls `told` in the server: with true after a fork, with false when the child has ended. Returns whether the server
/// reports forks.
pub fn on_fork(context: &Context<'_>, told: fn(bool)) -> bool {
    let told = *ON_FORK.get_or_init(|| told);
    let _ = told;
    subscribe(context, EVENT_FORK_CHILD, fork_child)
}

unsafe extern "C" fn fork_child(_: *mut RawContext, _: Event, kind: u64, _: *mut c_void) {
    if let Some(told) = ON_FORK.get() {
        told(kind == BORN);
    }
}

/// The callback before the server sleeps.
static BEFORE_SLEEP: OnceLock<fn(&Context<'_>)> = OnceLock::new();

/// Calls `work` each time before the server waits for events, between commands. Returns whether the server supports
/// this.
pub fn before_sleep(context: &Context<'_>, work: fn(&Context<'_>)) -> bool {
    BEFORE_SLEEP.get_or_init(|| work);
    subscribe(context, EVENT_LOOP, event_loop)
}

unsafe extern "C" fn event_loop(raw: *mut RawContext, _: Event, kind: u64, _: *mut c_void) {
    if let (BEFORE, Some(work)) = (kind, BEFORE_SLEEP.get()) {
        // SAFETY: the context is the server's, and lives as long as this call.
        work(&unsafe { Context::from_raw(raw) });
    }
}

/// The module's section of INFO, while it is being written.
#[derive(Debug)]
pub struct InfoSection {
    raw: *mut RawInfo,
}

impl InfoSection {
    /// Adds a number.
    pub fn number(&self, name: &CStr, number: u64) {
        // SAFETY: the name ends with a zero, and the section is being written.
        unsafe { (functions().InfoAddFieldULongLong)(self.raw, name.as_ptr(), number) };
    }
}

/// The callback that writes the section.
static INFORMATION: OnceLock<fn(&InfoSection)> = OnceLock::new();

/// Registers `write` as the writer of the module's section of INFO. Returns whether the server accepts it.
pub fn register_information(context: &Context<'_>, write: fn(&InfoSection)) -> bool {
    INFORMATION.get_or_init(|| write);
    // SAFETY: the callback is a function of this module, which is never unloaded.
    unsafe { (functions().RegisterInfoFunc)(context.raw(), information) == OK }
}

unsafe extern "C" fn information(raw: *mut RawInfo, _crash: c_int) {
    // SAFETY: the server is writing INFO; a null name means the module's own section.
    let wanted = unsafe { (functions().InfoAddSection)(raw, std::ptr::null()) } == OK;
    if let (true, Some(write)) = (wanted, INFORMATION.get()) {
        write(&InfoSection { raw });
    }
}
