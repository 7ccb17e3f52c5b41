//! Commands that run under another name: the filter that renames them on arrival, and calls of the server's own
//! commands.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use super::context::{Context, OwnText, Text};
use super::keyspace::strings_written;
use super::permission::{Asker, denied, permits};
use super::table::{RawFilter, RawReply, RawString, functions};

/// `REDISMODULE_CMDFILTER_NOSELF`: the filter does not see the module's own calls.
const NOT_OF_THE_MODULE: c_int = 1;
/// `REDISMODULE_REPLY_ERROR`.
const ERROR: c_int = 1;

/// A command that has just arrived, before the server looks it up.
#[derive(Debug)]
pub struct Arrival {
    raw: *mut RawFilter,
}

impl Arrival {
    /// The number of arguments, the command name included.
    pub fn count(&self) -> usize {
        // SAFETY: the filter runs on this command now.
        unsafe { (functions().CommandFilterArgsCount)(self.raw) as usize }
    }

    /// The id of the client that sent it; `None` on Redis 7.0, which does not report it.
    pub fn client(&self) -> Option<u64> {
        // SAFETY: the filter runs on this command now.
        functions().CommandFilterGetClientId.map(|ask| unsafe { ask(self.raw) })
    }

    fn raw_arguments(&self) -> Vec<*mut RawString> {
        // SAFETY: the filter runs on this command now, and the index is in range.
        let argument = |at| unsafe { (functions().CommandFilterArgGet)(self.raw, at as c_int) };
        (0..self.count()).map(argument).collect()
    }

    /// An argument; empty where there is none.
    pub fn argument(&self, at: usize) -> &[u8] {
        // SAFETY: the filter runs on this command now; the server returns null for an index out of range.
        let raw = unsafe { (functions().CommandFilterArgGet)(self.raw, at as c_int) };
        if raw.is_null() {
            return &[];
        }
        // SAFETY: the argument lives as long as the command, which outlives `self`.
        unsafe { &*std::ptr::from_ref(Text::from_raw(raw).bytes()) }
    }

    /// Whether the ACL rules permit this user to run the command.
    pub fn is_permitted(&self, asker: &Asker) -> bool {
        permits(asker, self.raw_arguments())
    }
}

/// A name to give to commands.
#[derive(Debug)]
pub struct Name(OwnText);

// SAFETY: the reference count changes only in the server's main thread, which runs the filter and frees shared strings.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

impl Name {
    /// Makes a name of these bytes.
    pub fn new(name: &[u8]) -> Self {
        Self(OwnText::new(name))
    }
}

/// Returns the name to run a command under, or `None` to leave it alone.
pub type Rename = fn(&Arrival) -> Option<&'static Name>;

static RENAME: OnceLock<Rename> = OnceLock::new();

/// Calls `rename` for every command that arrives, also from scripts. Returns whether the server accepts the filter.
pub fn register_filter(context: &Context<'_>, rename: Rename) -> bool {
    RENAME.get_or_init(|| rename);
    // SAFETY: the callback is a function of this module, which is never unloaded.
    let filter =
        unsafe { (functions().RegisterCommandFilter)(context.raw(), filter, NOT_OF_THE_MODULE) };
    !filter.is_null()
}

unsafe extern "C" fn filter(raw: *mut RawFilter) {
    let arrival = Arrival { raw };
    let Some(name) = RENAME.get().and_then(|rename| rename(&arrival)) else { return };
    let functions = functions();
    // SAFETY: the server gets a reference of its own to the name, and frees the argument that it replaces.
    unsafe {
        (functions.RetainString)(std::ptr::null_mut(), name.0.text().raw());
        (functions.CommandFilterArgReplace)(raw, 0, name.0.text().raw());
    }
}

/// Most bytes of a string that the server can store as a number.
const NUMBER_BYTES_MAX: usize = 20;

/// How a command is propagated to replicas and the append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// As the server propagates it.
    AsItIs,
    /// Under the module's name, whose effect does not depend on where the value lies.
    UnderOurName,
    /// The same, but only if the server reports that a string was written: the command may change nothing.
    UnderOurNameIfWritten,
    /// Not at all: it changes nothing.
    Never,
}

/// The value that a command sets, if it is so short that the server may store it as a number. The server does that only
/// with a string that nothing else references.
fn short_value<'a>(native: &CStr, arguments: &'a [Text<'a>]) -> Option<&'a Text<'a>> {
    let sets = matches!(native.to_bytes(), b"set" | b"getset" | b"append");
    arguments.get(1).filter(|value| sets && value.bytes().len() <= NUMBER_BYTES_MAX)
}

impl Context<'_> {
    /// Runs one of the server's commands in place of the module's, as the user `asker`, and forwards the reply.
    ///
    /// # Errors
    /// The error reply, when the server refuses to run it.
    pub fn forward(
        &self,
        asker: &Asker,
        native: &CStr,
        arguments: &[Text<'_>],
        told: Told,
    ) -> Result<(), String> {
        let before = strings_written();
        // SAFETY: errno is this thread's own; the server sets it when it refuses to run a command.
        unsafe { *libc::__errno_location() = 0 };
        let reply = self.call_native(*asker == Asker::Trusted, native, arguments, told);
        if reply.is_null() {
            let error = std::io::Error::last_os_error();
            return Err(format!("ERR {} can't be carried out: {error}", native.to_string_lossy()));
        }
        // SAFETY: the reply belongs to this call, and is freed once, after the server has forwarded it.
        unsafe {
            let failed = (functions().CallReplyType)(reply) == ERROR;
            if failed && std::io::Error::last_os_error().raw_os_error() == Some(libc::EACCES) {
                let mut length = 0;
                let said = (functions().CallReplyStringPtr)(reply, &mut length);
                let said = if said.is_null() {
                    &[][..]
                } else {
                    std::slice::from_raw_parts(said.cast(), length)
                };
                let line = denied(native, said);
                (functions().FreeCallReply)(reply);
                return Err(line);
            }
            (functions().ReplyWithCallReply)(self.raw(), reply);
            (functions().FreeCallReply)(reply);
            let written = match told {
                Told::UnderOurName => true,
                Told::UnderOurNameIfWritten => strings_written() != before,
                Told::AsItIs | Told::Never => false,
            };
            if written && !failed {
                (functions().ReplicateVerbatim)(self.raw());
            }
        }
        Ok(())
    }

    fn call_native(
        &self,
        trusted: bool,
        native: &CStr,
        arguments: &[Text<'_>],
        told: Told,
    ) -> *mut RawReply {
        let mut raw: Vec<*mut RawString> = arguments.iter().map(Text::raw).collect();
        let call = functions().Call;
        if let Some(value) = short_value(native, arguments) {
            // s: a string; b: bytes, from which the server makes a string of its own, stored as a number where
            // possible. The other letters are explained below.
            let format = match (trusted, told == Told::AsItIs) {
                (true, true) => c"!sbv0E",
                (true, false) => c"sbv0E",
                (false, true) => c"!sbv0EC",
                (false, false) => c"sbv0EC",
            };
            let (bytes, rest) = (value.bytes(), &mut raw[2..]);
            // SAFETY: the arguments match the format, and live until the call returns.
            return unsafe {
                call(
                    self.raw(),
                    native.as_ptr(),
                    format.as_ptr(),
                    arguments[0].raw(),
                    bytes.as_ptr(),
                    bytes.len(),
                    rest.as_mut_ptr(),
                    rest.len(),
                )
            };
        }
        // v: a list; 0: the client's version of RESP; E: return errors as replies; C: run as the user; !: propagate.
        let format = match (trusted, told == Told::AsItIs) {
            (true, true) => c"!v0E",
            (true, false) => c"v0E",
            (false, true) => c"!v0EC",
            (false, false) => c"v0EC",
        };
        // SAFETY: `v` takes a list of strings and its length, which live until the call returns.
        unsafe { call(self.raw(), native.as_ptr(), format.as_ptr(), raw.as_mut_ptr(), raw.len()) }
    }
}

impl Context<'_> {
    /// Whether filters learn the client of a command: not on Redis 7.0.
    pub fn tells_clients_to_filters(&self) -> bool {
        functions().CommandFilterGetClientId.is_some()
    }
}

/// The share of `maxmemory` in use; 0 without a limit.
pub fn memory_used() -> f32 {
    // SAFETY: the call has no arguments.
    unsafe { (functions().GetUsedMemoryRatio)() }
}

/// `maxmemory`, bytes: 0 without a limit. `None` if it can't be read.
pub fn memory_limit(context: &Context<'_>) -> Option<u64> {
    let reply = context.call(c"CONFIG", &[b"GET", b"maxmemory"])?;
    std::str::from_utf8(reply.part(1)?.bytes()?).ok()?.parse().ok()
}

/// Whether the server has paused, so that commands which have arrived may wait.
pub fn is_paused() -> bool {
    // SAFETY: the call has no arguments.
    unsafe { (functions().AvoidReplicaTraffic)() != 0 }
}
