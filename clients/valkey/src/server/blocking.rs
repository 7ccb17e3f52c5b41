//! Blocked clients: one of the module's threads works for them meanwhile.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::context::{Context, Text};
use super::table::{OK, RawBlockedClient, RawContext, RawString, functions};

/// `REDISMODULE_CTX_FLAGS_DENY_BLOCKING`.
const DENIED: c_int = 1 << 21;

/// Work that a blocked client waits for.
pub trait Work: Send + Sized + 'static {
    /// Replies to the client, in the server's thread. The keys may have changed since the client was blocked.
    ///
    /// # Errors
    /// The error reply.
    fn answer(&self, context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String>;
}

/// A blocked client. [`Self::finish`] unblocks it.
#[derive(Debug)]
pub struct Waiting {
    raw: *mut RawBlockedClient,
}

// SAFETY: the server allows any thread to unblock it.
unsafe impl Send for Waiting {}

impl Context<'_> {
    /// Blocks the client until [`Waiting::finish`] gets a `W`. `None` if the command may not block: in a script, at
    /// EXEC or for another module.
    pub fn wait<W: Work>(&self) -> Option<Waiting> {
        if self.is_within() || self.flags() & DENIED != 0 {
            return None;
        }
        // SAFETY: the callbacks are functions of this module. The server sets no timeout, because the work has one.
        let raw = unsafe {
            (functions().BlockClient)(self.raw(), answer::<W>, ptr::null(), free::<W>, 0)
        };
        (!raw.is_null()).then_some(Waiting { raw })
    }
}

impl Waiting {
    /// Unblocks the client, and hands the finished work to its callback.
    pub fn finish<W: Work>(self, work: W) {
        let work = Box::into_raw(Box::new(work)).cast();
        // SAFETY: a client is unblocked once, and the box becomes the server's, which frees it by `free`.
        unsafe { (functions().UnblockClient)(self.raw, work) };
    }
}

unsafe extern "C" fn answer<W: Work>(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    // SAFETY: the pointers are the server's, and live as long as this call; the work is what `finish` handed over.
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
