//! The module's data type, and the callbacks by which the server uses it.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::context::{Context, Text};
use super::table::{RawDigest, RawIo, RawString, RawType, TypeMethods, functions};

/// A data type. The server may drop a value on its lazy-free thread.
pub trait DataType: Send + Sized + 'static {
    /// Nine characters that identify the type in a dump.
    const NAME: &'static CStr;
    /// The version of the type's encoding in a dump.
    const VERSION: c_int;

    /// Reads a value from a dump; `None` when it is broken.
    fn load(source: &Source<'_>, version: c_int) -> Option<Self>;

    /// Writes a value to a dump.
    fn save(&self, sink: &Sink<'_>);

    /// Writes the commands that create the value to an append-only file.
    fn rewrite(&self, log: &CommandLog<'_>, key: &Text<'_>);

    /// Bytes of the server's memory that the value takes.
    fn memory_bytes(&self) -> usize;

    /// Adds the content to a digest of the keyspace.
    fn digest(&self, digest: &Digest<'_>);

    /// A copy with the same content.
    fn copy(&self) -> Self;
}

/// The registered type.
static TYPE: AtomicPtr<RawType> = AtomicPtr::new(ptr::null_mut());

/// The registered type; null before registration.
pub(super) fn raw_type() -> *mut RawType {
    TYPE.load(Ordering::Relaxed)
}

/// Registers the type. Returns whether the server accepted it.
pub fn register<V: DataType>(context: &Context<'_>) -> bool {
    let methods = TypeMethods {
        version: 4,
        rdb_load: load::<V>,
        rdb_save: save::<V>,
        aof_rewrite: rewrite::<V>,
        mem_usage: memory::<V>,
        digest: digest::<V>,
        free: free::<V>,
        aux_load: ptr::null(),
        aux_save: ptr::null(),
        aux_save_triggers: 0,
        free_effort: ptr::null(),
        unlink: ptr::null(),
        copy: copy::<V>,
        defrag: ptr::null(),
        mem_usage2: ptr::null(),
        free_effort2: ptr::null(),
        unlink2: ptr::null(),
        copy2: ptr::null(),
    };
    // SAFETY: the methods are copied, and match the version that they name.
    let made = unsafe {
        (functions().CreateDataType)(context.raw(), V::NAME.as_ptr(), V::VERSION, &methods)
    };
    TYPE.store(made, Ordering::Relaxed);
    !made.is_null()
}

/// A dump that is being read.
#[derive(Debug)]
pub struct Source<'a> {
    raw: *mut RawIo,
    lifetime: PhantomData<&'a ()>,
}

/// A dump that is being written.
#[derive(Debug)]
pub struct Sink<'a> {
    raw: *mut RawIo,
    lifetime: PhantomData<&'a ()>,
}

/// An append-only file that is being written.
#[derive(Debug)]
pub struct CommandLog<'a> {
    raw: *mut RawIo,
    lifetime: PhantomData<&'a ()>,
}

/// A digest of the keyspace.
#[derive(Debug)]
pub struct Digest<'a> {
    raw: *mut RawDigest,
    lifetime: PhantomData<&'a ()>,
}

/// Bytes read from a dump. They come from the server's allocator.
#[derive(Debug)]
pub struct Loaded {
    start: *mut u8,
    length: usize,
}

impl Loaded {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the server reported this length, and only this value refers to the bytes.
        unsafe { slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the bytes come from the server's allocator, and no reference to them is left.
        unsafe { (functions().Free)(self.start.cast()) };
    }
}

impl Source<'_> {
    fn failed(&self) -> bool {
        // SAFETY: the server is reading this dump.
        unsafe { (functions().IsIOError)(self.raw) != 0 }
    }

    /// The next number, unless the read fails.
    pub fn number(&self) -> Option<u64> {
        // SAFETY: the server is reading this dump; `failed` reports an error.
        let number = unsafe { (functions().LoadUnsigned)(self.raw) };
        (!self.failed()).then_some(number)
    }

    /// The next bytes, unless the read fails.
    pub fn bytes(&self) -> Option<Loaded> {
        let mut length = 0;
        // SAFETY: as above.
        let start = unsafe { (functions().LoadStringBuffer)(self.raw, &mut length) };
        (!start.is_null()).then(|| Loaded { start: start.cast(), length })
    }
}

impl Sink<'_> {
    /// Writes a number.
    pub fn number(&self, number: u64) {
        // SAFETY: the server is writing this dump.
        unsafe { (functions().SaveUnsigned)(self.raw, number) };
    }

    /// Writes bytes.
    pub fn bytes(&self, bytes: &[u8]) {
        // SAFETY: the server is writing this dump, and copies the bytes.
        unsafe { (functions().SaveStringBuffer)(self.raw, bytes.as_ptr().cast(), bytes.len()) };
    }
}

impl CommandLog<'_> {
    /// Writes a command with a key and a value.
    pub fn write(&self, command: &CStr, key: &Text<'_>, value: &[u8]) {
        // SAFETY: `s` takes a string of the server's, `b` a buffer and its length.
        unsafe {
            (functions().EmitAOF)(
                self.raw,
                command.as_ptr(),
                c"sb".as_ptr(),
                key.raw(),
                value.as_ptr(),
                value.len(),
            )
        };
    }
}

impl Digest<'_> {
    /// Adds a value as one element.
    pub fn add(&self, value: &[u8]) {
        let functions = functions();
        // SAFETY: the server is computing this digest, and reads the bytes before the call returns.
        unsafe {
            (functions.DigestAddStringBuffer)(self.raw, value.as_ptr().cast(), value.len());
            (functions.DigestEndSequence)(self.raw);
        }
    }
}

unsafe extern "C" fn load<V: DataType>(io: *mut RawIo, version: c_int) -> *mut c_void {
    let source = Source { raw: io, lifetime: PhantomData };
    V::load(&source, version).map_or(ptr::null_mut(), |value| Box::into_raw(Box::new(value)).cast())
}

unsafe extern "C" fn save<V: DataType>(io: *mut RawIo, value: *mut c_void) {
    // SAFETY: the server hands over a value of this type.
    unsafe { &*value.cast::<V>() }.save(&Sink { raw: io, lifetime: PhantomData });
}

unsafe extern "C" fn rewrite<V: DataType>(io: *mut RawIo, key: *mut RawString, value: *mut c_void) {
    let log = CommandLog { raw: io, lifetime: PhantomData };
    // SAFETY: the server hands over a key that lives as long as this runs, and a value of this type.
    unsafe { (*value.cast::<V>()).rewrite(&log, &Text::from_raw(key)) };
}

unsafe extern "C" fn memory<V: DataType>(value: *const c_void) -> usize {
    // SAFETY: the server hands over a value of this type.
    unsafe { &*value.cast::<V>() }.memory_bytes()
}

unsafe extern "C" fn digest<V: DataType>(digest: *mut RawDigest, value: *mut c_void) {
    let digest = Digest { raw: digest, lifetime: PhantomData };
    // SAFETY: the server hands over a value of this type.
    unsafe { &*value.cast::<V>() }.digest(&digest);
}

unsafe extern "C" fn free<V: DataType>(value: *mut c_void) {
    // SAFETY: the server hands over a value of this type, and forgets it.
    drop(unsafe { Box::from_raw(value.cast::<V>()) });
}

unsafe extern "C" fn copy<V: DataType>(
    _from: *mut RawString,
    _to: *mut RawString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the server hands over a value of this type.
    Box::into_raw(Box::new(unsafe { &*value.cast::<V>() }.copy())).cast()
}
