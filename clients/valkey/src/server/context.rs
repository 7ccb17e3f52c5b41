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

/// Calls `work` with `length` zeros. However many they are, they take no memory.
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
    // SAFETY: the mapping has this length and is readable.
    let done = work(unsafe { slice::from_raw_parts(start.cast(), length) });
    // SAFETY: this function made the mapping, and no reference to it is left.
    let _ = unsafe { munmap(start, length) };
    done
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Information for the operator.
    Notice,
    /// A problem that the operator should look at.
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
    // SAFETY: the server accepts a null context and any thread; the format takes one string.
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
    // SAFETY: the call has no arguments.
    unsafe { (functions().Milliseconds)() }
}

impl Text<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: the string lives as long as `self`.
        let start = unsafe { (functions().StringPtrLen)(self.raw, &mut length) };
        // SAFETY: the server reports this length; strings do not change while the module runs.
        unsafe { slice::from_raw_parts(start.cast(), length) }
    }

    pub(super) const fn raw(&self) -> *mut RawString {
        self.raw
    }

    /// Wraps a string that the server hands to a callback.
    ///
    /// # Safety
    /// The string must live as long as the callback runs.
    pub(super) const unsafe fn from_raw(raw: *mut RawString) -> Self {
        Self { raw, lifetime: PhantomData }
    }
}

/// A string that the module made. It is freed when dropped.
#[derive(Debug)]
pub struct OwnText {
    text: Text<'static>,
}

impl OwnText {
    /// Makes a string with a copy of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: the bytes are copied; a string made without a context is the caller's to free.
        let raw = unsafe {
            (functions().CreateString)(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())
        };
        Self { text: Text { raw, lifetime: PhantomData } }
    }

    /// Makes a string of this many bytes, which `fill` writes. So the value is in memory only once.
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
        // SAFETY: the string has this length, and only this module knows it until it is handed on.
        fill(unsafe { slice::from_raw_parts_mut(start.cast_mut().cast(), found) })?;
        Ok(text)
    }

    /// The string, as a reference like those to the server's strings.
    pub const fn text(&self) -> &Text<'static> {
        &self.text
    }
}

impl Drop for OwnText {
    fn drop(&mut self) {
        // SAFETY: it was made without a context, and no reference to it is left.
        unsafe { (functions().FreeString)(std::ptr::null_mut(), self.text.raw) };
    }
}

impl Context<'_> {
    /// Wraps the context that the server hands to a callback.
    ///
    /// # Safety
    /// The context must be the server's, and valid as long as the callback runs.
    pub(super) const unsafe fn from_raw(raw: *mut RawContext) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    pub(super) const fn raw(&self) -> *mut RawContext {
        self.raw
    }

    /// A context of the module's own, for callbacks that get none. It is never freed.
    pub fn detached(&self) -> Context<'static> {
        // SAFETY: the context is the server's.
        let raw = unsafe { (functions().GetDetachedThreadSafeContext)(self.raw) };
        Context { raw, lifetime: PhantomData }
    }

    /// Replies with an error: a code in capitals, and the reason.
    pub fn reply_error(&self, text: &str) {
        let text = CString::new(text.replace(['\r', '\n', '\0'], " ")).unwrap_or_default();
        // SAFETY: the text ends with a zero.
        unsafe { (functions().ReplyWithError)(self.raw, text.as_ptr()) };
    }

    /// Replies with a simple string.
    pub fn reply_word(&self, word: &CStr) {
        // SAFETY: the word ends with a zero.
        unsafe { (functions().ReplyWithSimpleString)(self.raw, word.as_ptr()) };
    }

    /// Replies with bytes.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: they are copied.
        unsafe {
            (functions().ReplyWithStringBuffer)(self.raw, bytes.as_ptr().cast(), bytes.len())
        };
    }

    /// Replies with a number.
    pub fn reply_number(&self, number: u64) {
        let number = c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
        // SAFETY: the argument is a number.
        unsafe { (functions().ReplyWithLongLong)(self.raw, number) };
    }

    /// Replies with null.
    pub fn reply_null(&self) {
        // SAFETY: the call takes the context alone.
        unsafe { (functions().ReplyWithNull)(self.raw) };
    }

    /// Begins an array reply of this many elements; their replies follow.
    pub fn reply_array(&self, count: usize) {
        // SAFETY: the argument is a number.
        unsafe { (functions().ReplyWithArray)(self.raw, count as c_long) };
    }

    /// Begins a map reply of this many pairs; their replies follow.
    pub fn reply_map(&self, count: usize) {
        // SAFETY: the argument is a number.
        unsafe { (functions().ReplyWithMap)(self.raw, count as c_long) };
    }

    /// Sends a command to replicas and the append-only file instead of the running one.
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

    /// Tells clients that WATCH or track a key that it has changed.
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

    /// The selected database.
    pub fn database(&self) -> c_int {
        // SAFETY: the call takes the context alone.
        unsafe { (functions().GetSelectedDb)(self.raw) }
    }

    /// Selects another database. Returns whether it exists.
    pub fn select(&self, database: c_int) -> bool {
        // SAFETY: the server checks the number.
        unsafe { (functions().SelectDb)(self.raw, database) == OK }
    }

    /// Runs a command of the server; `None` when the server refuses to run it.
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
    /// Events of keys of any type.
    Generic = 1 << 2,
    /// Events of strings.
    String = 1 << 3,
}

/// The reply to a command that the module called.
#[derive(Debug)]
pub struct Reply {
    raw: *mut RawReply,
}

impl Reply {
    /// The whole reply.
    pub const fn whole(&self) -> ReplyPart<'_> {
        ReplyPart { raw: self.raw, lifetime: PhantomData }
    }

    /// An element of an array reply.
    pub fn part(&self, at: usize) -> Option<ReplyPart<'_>> {
        self.whole().part(at)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: the reply is this module's, and no part of it is used any more.
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
    /// The element at an index, if this is an array that has one there.
    pub fn part(self, at: usize) -> Option<Self> {
        // SAFETY: the reply lives; anything but an array returns null.
        let raw = unsafe { (functions().CallReplyArrayElement)(self.raw, at) };
        (!raw.is_null()).then_some(Self { raw, lifetime: PhantomData })
    }

    /// The number of elements.
    pub fn parts(self) -> usize {
        // SAFETY: the reply lives.
        unsafe { (functions().CallReplyLength)(self.raw) }
    }

    /// The bytes, if this is a string.
    pub fn bytes(self) -> Option<&'a [u8]> {
        let mut length = 0;
        // SAFETY: the reply lives; anything but a string returns null.
        let start = unsafe { (functions().CallReplyStringPtr)(self.raw, &mut length) };
        // SAFETY: the server reports this length.
        (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start.cast(), length) })
    }
}
