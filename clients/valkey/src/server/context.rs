//! What a command can do with the server: reply, log, replicate, call.

use std::ffi::{CStr, CString, c_int, c_long, c_longlong};
use std::marker::PhantomData;
use std::slice;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::table::{OK, RawContext, RawReply, RawString, functions};

/// The server, for as long as it calls the module.
#[derive(Debug)]
pub struct Context<'a> {
    raw: *mut RawContext,
    lifetime: PhantomData<&'a ()>,
}

/// A string of the server's, for as long as it calls the module.
#[derive(Debug)]
#[repr(transparent)]
pub struct Text<'a> {
    raw: *mut RawString,
    lifetime: PhantomData<&'a ()>,
}

/// Hands over so many zeros, which take no memory however many they are.
fn with_zeros<T>(length: usize, work: impl FnOnce(&[u8]) -> T) -> T {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    if let Some(zeros) = ZEROS.get(..length) {
        return work(zeros);
    }
    // SAFETY: a fresh mapping of the kernel's choice; reading it maps the page of zeros.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let Ok(start) = start else { return work(&vec![0; length]) };
    // SAFETY: it is mapped, and so long.
    let done = work(unsafe { slice::from_raw_parts(start.cast(), length) });
    // SAFETY: it is this function's, and nobody has it any more.
    let _ = unsafe { munmap(start, length) };
    done
}

/// How loud a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What the operator wants to know.
    Notice,
    /// What the operator should look at.
    Warning,
}

impl Level {
    const fn name(self) -> &'static CStr {
        match self {
            Self::Notice => c"notice",
            Self::Warning => c"warning",
        }
    }
}

/// Writes a line to the server's log, from any thread.
pub fn log(level: Level, line: &str) {
    let line = CString::new(line.replace(['\n', '\0'], " ")).unwrap_or_default();
    // SAFETY: the server takes a null context for the module interface as such, and from any thread; the
    // format takes one string.
    unsafe {
        (functions().Log)(
            std::ptr::null_mut(),
            level.name().as_ptr(),
            c"spillway: %s".as_ptr(),
            line.as_ptr(),
        )
    };
}

/// Milliseconds since 1970, by the server's clock.
pub fn now_ms() -> i64 {
    // SAFETY: it takes nothing.
    unsafe { (functions().Milliseconds)() }
}

impl Text<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: the string lives as long as `self`.
        let start = unsafe { (functions().StringPtrLen)(self.raw, &mut length) };
        // SAFETY: so long the server says that it is; strings are not changed while the module runs.
        unsafe { slice::from_raw_parts(start.cast(), length) }
    }

    pub(super) const fn raw(&self) -> *mut RawString {
        self.raw
    }

    /// A string that the server hands to a callback.
    ///
    /// # Safety
    /// It lives as long as the callback runs.
    pub(super) const unsafe fn from_raw(raw: *mut RawString) -> Self {
        Self { raw, lifetime: PhantomData }
    }
}

/// A string that the module made; it is freed when dropped.
#[derive(Debug)]
pub struct OwnText {
    text: Text<'static>,
}

impl OwnText {
    /// One with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: the bytes are copied; without a context the string is the caller's to free.
        let raw = unsafe {
            (functions().CreateString)(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())
        };
        Self { text: Text { raw, lifetime: PhantomData } }
    }

    /// One of so many bytes, which `fill` writes: the value is in memory once.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn filled<E>(
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let text = with_zeros(length, Self::new);
        let mut found = 0;
        // SAFETY: the string lives.
        let start = unsafe { (functions().StringPtrLen)(text.text.raw, &mut found) };
        // SAFETY: the string is this module's alone until it is handed on, and so long.
        fill(unsafe { slice::from_raw_parts_mut(start.cast_mut().cast(), found) })?;
        Ok(text)
    }

    /// As the server's strings are.
    pub const fn text(&self) -> &Text<'static> {
        &self.text
    }
}

impl Drop for OwnText {
    fn drop(&mut self) {
        // SAFETY: it was made without a context, and nobody uses it any more.
        unsafe { (functions().FreeString)(std::ptr::null_mut(), self.text.raw) };
    }
}

impl Context<'_> {
    /// What the server hands to a callback.
    ///
    /// # Safety
    /// It is the server's, and valid as long as the callback runs.
    pub(super) const unsafe fn from_raw(raw: *mut RawContext) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    pub(super) const fn raw(&self) -> *mut RawContext {
        self.raw
    }

    /// One of the module's own, for where the server hands over none. It lasts for ever.
    pub fn detached(&self) -> Context<'static> {
        // SAFETY: the context is the server's.
        let raw = unsafe { (functions().GetDetachedThreadSafeContext)(self.raw) };
        Context { raw, lifetime: PhantomData }
    }

    /// Answers with an error: a code in capitals, and why.
    pub fn reply_error(&self, text: &str) {
        let text = CString::new(text.replace(['\r', '\n', '\0'], " ")).unwrap_or_default();
        // SAFETY: the text ends with a zero.
        unsafe { (functions().ReplyWithError)(self.raw, text.as_ptr()) };
    }

    /// Answers with a short word.
    pub fn reply_word(&self, word: &CStr) {
        // SAFETY: the word ends with a zero.
        unsafe { (functions().ReplyWithSimpleString)(self.raw, word.as_ptr()) };
    }

    /// Answers with bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: they are copied.
        unsafe {
            (functions().ReplyWithStringBuffer)(self.raw, bytes.as_ptr().cast(), bytes.len())
        };
    }

    /// Answers with a number.
    pub fn reply_number(&self, number: u64) {
        let number = c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
        // SAFETY: it takes a number.
        unsafe { (functions().ReplyWithLongLong)(self.raw, number) };
    }

    /// Answers that there is nothing.
    pub fn reply_null(&self) {
        // SAFETY: it takes nothing.
        unsafe { (functions().ReplyWithNull)(self.raw) };
    }

    /// Answers with so many answers, which follow.
    pub fn reply_array(&self, count: usize) {
        // SAFETY: it takes a number.
        unsafe { (functions().ReplyWithArray)(self.raw, count as c_long) };
    }

    /// Answers with so many pairs of answers, which follow.
    pub fn reply_map(&self, count: usize) {
        // SAFETY: it takes a number.
        unsafe { (functions().ReplyWithMap)(self.raw, count as c_long) };
    }

    /// Sends a command to replicas and the append-only file in place of the one that runs.
    pub fn replicate(&self, command: &CStr, arguments: &[&Text<'_>]) {
        let mut raw: Vec<*mut RawString> = arguments.iter().map(|text| text.raw).collect();
        // SAFETY: `v` takes a list of strings and its length; the server keeps what it needs of them.
        unsafe {
            (functions().Replicate)(
                self.raw,
                command.as_ptr(),
                c"v".as_ptr(),
                raw.as_mut_ptr(),
                raw.len(),
            )
        };
    }

    /// Tells those who watch a key that it is another.
    pub fn signal_modified(&self, key: &Text<'_>) {
        // SAFETY: key and context are the server's.
        unsafe { (functions().SignalModifiedKey)(self.raw, key.raw) };
    }

    /// Publishes a keyspace event.
    pub fn notify(&self, class: NotifyClass, event: &CStr, key: &Text<'_>) {
        // SAFETY: the event ends with a zero; key and context are the server's.
        unsafe {
            (functions().NotifyKeyspaceEvent)(self.raw, class as c_int, event.as_ptr(), key.raw)
        };
    }

    /// The database that commands of this context mean.
    pub fn database(&self) -> c_int {
        // SAFETY: it takes nothing.
        unsafe { (functions().GetSelectedDb)(self.raw) }
    }

    /// Means another database from now on; whether there is one of this number.
    pub fn select(&self, database: c_int) -> bool {
        // SAFETY: the server checks the number.
        unsafe { (functions().SelectDb)(self.raw, database) == OK }
    }

    /// Runs a command of the server's; `None` when it can't be run.
    pub fn call(&self, command: &CStr, arguments: &[&[u8]]) -> Option<Reply> {
        let texts: Vec<OwnText> = arguments.iter().map(|bytes| OwnText::new(bytes)).collect();
        let mut raw: Vec<*mut RawString> = texts.iter().map(|text| text.text.raw).collect();
        // SAFETY: `v` takes a list of strings and its length; they live until the call has ended.
        let reply = unsafe {
            (functions().Call)(
                self.raw,
                command.as_ptr(),
                c"v".as_ptr(),
                raw.as_mut_ptr(),
                raw.len(),
            )
        };
        (!reply.is_null()).then_some(Reply { raw: reply })
    }
}

/// Classes of keyspace events.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum NotifyClass {
    /// Of keys of any type.
    Generic = 1 << 2,
    /// Of strings.
    String = 1 << 3,
}

/// What a command that the module called has answered.
#[derive(Debug)]
pub struct Reply {
    raw: *mut RawReply,
}

impl Reply {
    /// All of it.
    pub const fn whole(&self) -> ReplyPart<'_> {
        ReplyPart { raw: self.raw, lifetime: PhantomData }
    }

    /// A part of an array.
    pub fn part(&self, at: usize) -> Option<ReplyPart<'_>> {
        self.whole().part(at)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: it is this module's, and its parts are not used any more.
        unsafe { (functions().FreeCallReply)(self.raw) };
    }
}

/// A part of a [`Reply`].
#[derive(Clone, Copy, Debug)]
pub struct ReplyPart<'a> {
    raw: *mut RawReply,
    lifetime: PhantomData<&'a Reply>,
}

impl<'a> ReplyPart<'a> {
    /// A part of it, if it is an array that has one there.
    pub fn part(self, at: usize) -> Option<Self> {
        // SAFETY: the reply lives; what is no array has no part.
        let raw = unsafe { (functions().CallReplyArrayElement)(self.raw, at) };
        (!raw.is_null()).then_some(Self { raw, lifetime: PhantomData })
    }

    /// How many parts it has.
    pub fn parts(self) -> usize {
        // SAFETY: the reply lives.
        unsafe { (functions().CallReplyLength)(self.raw) }
    }

    /// Its bytes, if it is a string.
    pub fn bytes(self) -> Option<&'a [u8]> {
        let mut length = 0;
        // SAFETY: the reply lives; what is no string gives null.
        let start = unsafe { (functions().CallReplyStringPtr)(self.raw, &mut length) };
        // SAFETY: so long the server says that it is.
        (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start.cast(), length) })
    }
}
