//! Commands that are carried out under another name: the filter that renames them as they arrive, and calls of the
//! server's own.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use super::context::{Context, OwnText, Text};
use super::keyspace::strings_written;
use super::permission::{Asker, denied, permits};
use super::table::{RawFilter, RawReply, RawString, functions};

/// `REDISMODULE_CMDFILTER_NOSELF`: what the module itself calls is not filtered.
const NOT_OF_THE_MODULE: c_int = 1;
/// `REDISMODULE_REPLY_ERROR`.
const ERROR: c_int = 1;

/// A command that arrives.
#[derive(Debug)]
pub struct Arrival {
    raw: *mut RawFilter,
}

impl Arrival {
    /// How many arguments it has, its name included.
    pub fn count(&self) -> usize {
        // SAFETY: the filter is called with it now.
        unsafe { (functions().CommandFilterArgsCount)(self.raw) as usize }
    }

    /// The client that it comes from, where the server tells: Redis 7.0 does not.
    pub fn client(&self) -> Option<u64> {
        // SAFETY: the filter is called with it now.
        functions().CommandFilterGetClientId.map(|ask| unsafe { ask(self.raw) })
    }

    fn raw_arguments(&self) -> Vec<*mut RawString> {
        // SAFETY: the filter is called with it now, and it has so many.
        let argument = |at| unsafe { (functions().CommandFilterArgGet)(self.raw, at as c_int) };
        (0..self.count()).map(argument).collect()
    }

    /// An argument that it has.
    pub fn argument(&self, at: usize) -> &[u8] {
        // SAFETY: the filter is called with it now, and the server gives null for what is not there.
        let raw = unsafe { (functions().CommandFilterArgGet)(self.raw, at as c_int) };
        if raw.is_null() {
            return &[];
        }
        // SAFETY: the argument lives as long as the command, which outlives `self`.
        unsafe { &*std::ptr::from_ref(Text::from_raw(raw).bytes()) }
    }

    /// Whether a user may have the command carried out.
    pub fn is_permitted(&self, asker: &Asker) -> bool {
        permits(asker, self.raw_arguments())
    }
}

/// A name that commands are given.
#[derive(Debug)]
pub struct Name(OwnText);

// SAFETY: its count of users is changed by the server's main thread alone, which runs the filter and frees what
// others use as well.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

impl Name {
    /// One with these bytes.
    pub fn new(name: &[u8]) -> Self {
        Self(OwnText::new(name))
    }
}

/// Says what a command is carried out as.
pub type Rename = fn(&Arrival) -> Option<&'static Name>;

static RENAME: OnceLock<Rename> = OnceLock::new();

/// Lets `rename` see every command that arrives, also those of scripts; whether the server takes it.
pub fn register_filter(context: &Context<'_>, rename: Rename) -> bool {
    RENAME.get_or_init(|| rename);
    // SAFETY: the entry is a function of this module's, which stays.
    let filter =
        unsafe { (functions().RegisterCommandFilter)(context.raw(), filter, NOT_OF_THE_MODULE) };
    !filter.is_null()
}

unsafe extern "C" fn filter(raw: *mut RawFilter) {
    let arrival = Arrival { raw };
    let Some(name) = RENAME.get().and_then(|rename| rename(&arrival)) else { return };
    let functions = functions();
    // SAFETY: the server gets a use of its own of the name, and frees the argument that it replaces.
    unsafe {
        (functions.RetainString)(std::ptr::null_mut(), name.0.text().raw());
        (functions.CommandFilterArgReplace)(raw, 0, name.0.text().raw());
    }
}

/// Most bytes of a string that the server keeps as a number.
const NUMBER_BYTES_MAX: usize = 20;

/// How a command of the server's is told to replicas and the append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// As the server tells it.
    AsItIs,
    /// Under the module's name for it, which means the same on any state.
    UnderOurName,
    /// The same, if it writes a string, which the server tells: it may find that nothing changes.
    UnderOurNameIfWritten,
    /// Not at all: it changes nothing.
    Never,
}

/// The value that a command sets, if it is so short that the server may keep it as a number: that it does only with a
/// string that nobody else has.
fn short_value<'a>(native: &CStr, arguments: &'a [Text<'a>]) -> Option<&'a Text<'a>> {
    let sets = matches!(native.to_bytes(), b"set" | b"getset" | b"append");
    arguments.get(1).filter(|value| sets && value.bytes().len() <= NUMBER_BYTES_MAX)
}

impl Context<'_> {
    /// Carries out a command of the server's in place of the module's, as the user who asked, and answers as it does.
    ///
    /// # Errors
    /// The answer, when it can't be carried out.
    pub fn forward(
        &self,
        asker: &Asker,
        native: &CStr,
        arguments: &[Text<'_>],
        told: Told,
    ) -> Result<(), String> {
        let before = strings_written();
        // SAFETY: it is this thread's own; the server says by it why it carries nothing out.
        unsafe { *libc::__errno_location() = 0 };
        let reply = self.call_native(*asker == Asker::Trusted, native, arguments, told);
        if reply.is_null() {
            let error = std::io::Error::last_os_error();
            return Err(format!("ERR {} can't be carried out: {error}", native.to_string_lossy()));
        }
        // SAFETY: the reply is this call's, and is freed once, after the server has passed it on.
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
            // s: a string; b: bytes, of which the server makes a string of its own, and of that a number if it is one.
            // The others are as below.
            let format = match (trusted, told == Told::AsItIs) {
                (true, true) => c"!sbv0E",
                (true, false) => c"sbv0E",
                (false, true) => c"!sbv0EC",
                (false, false) => c"sbv0EC",
            };
            let (bytes, rest) = (value.bytes(), &mut raw[2..]);
            // SAFETY: what the format names follows: all of it lives until the call has ended.
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
        // v: a list; 0: the client's version of RESP; E: errors are replies; C: as the user; !: told to replicas.
        let format = match (trusted, told == Told::AsItIs) {
            (true, true) => c"!v0E",
            (true, false) => c"v0E",
            (false, true) => c"!v0EC",
            (false, false) => c"v0EC",
        };
        // SAFETY: `v` takes a list of strings and its length, which live until the call has ended.
        unsafe { call(self.raw(), native.as_ptr(), format.as_ptr(), raw.as_mut_ptr(), raw.len()) }
    }
}

impl Context<'_> {
    /// Whether a filter is told which client a command comes from: Redis 7.0 does not.
    pub fn tells_clients_to_filters(&self) -> bool {
        functions().CommandFilterGetClientId.is_some()
    }
}

/// Which part of the server's limit on memory is used; 0 where there is none.
pub fn memory_used() -> f32 {
    // SAFETY: it takes nothing.
    unsafe { (functions().GetUsedMemoryRatio)() }
}

/// Whether commands that arrived may wait before they are carried out.
pub fn is_paused() -> bool {
    // SAFETY: it takes nothing.
    unsafe { (functions().AvoidReplicaTraffic)() != 0 }
}
