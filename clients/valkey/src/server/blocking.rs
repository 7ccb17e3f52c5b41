//! Clients that wait while a thread of the module's works for them.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::context::{Context, Text};
use super::table::{OK, RawBlockedClient, RawContext, RawString, functions};

/// `REDISMODULE_CTX_FLAGS_DENY_BLOCKING`.
const DENIED: c_int = 1 << 21;

/// What a client waits for.
pub trait Work: Send + Sized + 'static {
    /// Answers for it, in the server's thread. The keys may have changed since the client began to wait.
    ///
    /// # Errors
    /// The answer, when that is an error.
    fn answer(&self, context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String>;
}

/// A client that waits. It goes on when this is finished.
#[derive(Debug)]
pub struct Waiting {
    raw: *mut RawBlockedClient,
}

// SAFETY: the server lets any thread finish it.
unsafe impl Send for Waiting {}

impl Context<'_> {
    /// Lets the client wait, if the command may: not in a script or at EXEC, nor for another module. What it waits for
    /// is a `W`.
    pub fn wait<W: Work>(&self) -> Option<Waiting> {
        if self.is_within() || self.flags() & DENIED != 0 {
            return None;
        }
        // SAFETY: the entries are functions of this module's; no time limit of the server's, since the work has one.
        let raw = unsafe {
            (functions().BlockClient)(self.raw(), answer::<W>, ptr::null(), free::<W>, 0)
        };
        (!raw.is_null()).then_some(Waiting { raw })
    }
}

impl Waiting {
    /// Lets the client go on, with what has been done for it.
    pub fn finish<W: Work>(self, work: W) {
        let work = Box::into_raw(Box::new(work)).cast();
        // SAFETY: it is finished once, and the box becomes the server's, which frees it by `free`.
        unsafe { (functions().UnblockClient)(self.raw, work) };
    }
}

unsafe extern "C" fn answer<W: Work>(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    // SAFETY: they are the server's, and live as long as this runs; the work is what `finish` handed over.
    let (context, arguments, work) = unsafe {
        let work = (functions().GetBlockedClientPrivateData)(context).cast::<W>();
        (Context::from_raw(context), super::register::texts(arguments, count), &*work)
    };
    if let Err(error) = work.answer(&context, arguments) {
        context.reply_error(&error);
    }
    OK
}

unsafe extern "C" fn free<W: Work>(_: *mut RawContext, work: *mut c_void) {
    // SAFETY: the server hands over what `finish` gave it, once.
    drop(unsafe { Box::from_raw(work.cast::<W>()) });
}
