//! A key of the keyspace.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::slice;

use super::context::{Context, Text};
use super::data_type::{DataType, raw_type};
use super::table::{OK, RawKey, functions};

/// `REDISMODULE_READ`.
const READ: c_int = 1;
/// `REDISMODULE_WRITE`.
const WRITE: c_int = 2;
/// `REDISMODULE_OPEN_KEY_NOTOUCH`.
const UNTOUCHED: c_int = 1 << 16;
/// `REDISMODULE_OPEN_KEY_NONOTIFY`, `_NOSTATS` and `_NOEXPIRE`. Redis 7.0 does not know them and ignores them.
const UNHEARD: c_int = 1 << 17;
const UNCOUNTED: c_int = 1 << 18;
const UNEXPIRED: c_int = 1 << 19;
/// `REDISMODULE_KEYTYPE_STRING`.
const STRING: c_int = 1;
/// `REDISMODULE_KEYTYPE_EMPTY`.
const EMPTY: c_int = 0;

/// An open key. It is closed when dropped.
#[derive(Debug)]
pub struct Key<'a> {
    /// Null for a key that was opened for reading and does not exist.
    raw: *mut RawKey,
    lifetime: PhantomData<&'a ()>,
}

/// The content of a key.
#[derive(Debug)]
pub enum Found<'a, V> {
    /// Nothing.
    Nothing,
    /// A plain string.
    Plain(&'a [u8]),
    /// A value of the module's.
    Ours(&'a V),
    /// A value of another type.
    Other,
}

/// The content of a key, like [`Found`], but with only the length of a plain string.
#[derive(Debug)]
pub enum Kind<'a, V> {
    /// Nothing.
    Nothing,
    /// A plain string of this many bytes.
    Plain(usize),
    /// A value of the module's.
    Ours(&'a V),
    /// A value of another type.
    Other,
}

/// How recently or often a key was used, as the server's eviction policy tracks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Not used for this many milliseconds.
    IdleMs(i64),
    /// Its frequency on the scale of LFU.
    Frequency(i64),
}

impl<'a> Key<'a> {
    /// Opens a key for reading, which counts as a use.
    pub fn read(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        Self::open(context, name, READ)
    }

    /// Opens a key for writing.
    pub fn write(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        Self::open(context, name, READ | WRITE)
    }

    /// Opens a key to move its value. This counts neither as a use nor as a hit or a miss.
    pub fn quiet(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        Self::open(context, name, READ | WRITE | UNTOUCHED)
    }

    /// Opens a key to look at it, like [`Self::quiet`]. On a replica this does not delete an expired key.
    pub fn peek(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        if context.is_replica() {
            Self::open(context, name, READ | UNTOUCHED | UNHEARD | UNCOUNTED)
        } else {
            Self::quiet(context, name)
        }
    }

    /// The same for a key that was just listed. An expired key stays, on servers that support it.
    pub fn peek_listed(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        if context.tells_clients_to_filters() {
            Self::open(context, name, READ | UNTOUCHED | UNHEARD | UNCOUNTED | UNEXPIRED)
        } else {
            Self::peek(context, name)
        }
    }

    fn open(context: &'a Context<'_>, name: &Text<'_>, mode: c_int) -> Self {
        // SAFETY: name and context are the server's.
        let raw = unsafe { (functions().OpenKey)(context.raw(), name.raw(), mode) };
        Self { raw, lifetime: PhantomData }
    }

    /// The content of the key.
    pub fn find<V: DataType>(&self) -> Found<'_, V> {
        // SAFETY: the server accepts null for an empty key.
        match unsafe { (functions().KeyType)(self.raw) } {
            EMPTY => Found::Nothing,
            STRING => {
                let mut length = 0;
                // SAFETY: the key is open and a string; its bytes stay as long as it is not written.
                let start = unsafe { (functions().StringDMA)(self.raw, &mut length, READ) };
                // SAFETY: the server reports this length.
                Found::Plain(unsafe { slice::from_raw_parts(start.cast(), length) })
            }
            // SAFETY: the key is open; the type is null for the server's own types.
            _ if unsafe { (functions().ModuleTypeGetType)(self.raw) } == raw_type() => {
                // SAFETY: a value of this type is a `V` that `DataType` boxed, and it is never modified.
                Found::Ours(unsafe { &*(functions().ModuleTypeGetValue)(self.raw).cast::<V>() })
            }
            _ => Found::Other,
        }
    }

    /// Stores a value of the module. It replaces the previous value and removes its expiry.
    pub fn set<V: DataType>(&mut self, value: V) -> bool {
        let value = Box::into_raw(Box::new(value));
        // SAFETY: the key is open for writing, and the box becomes the server's.
        let set = unsafe { (functions().ModuleTypeSetValue)(self.raw, raw_type(), value.cast()) };
        if set != OK {
            // SAFETY: the server did not accept the box.
            drop(unsafe { Box::from_raw(value) });
        }
        set == OK
    }

    /// Stores a plain string. It replaces the previous value and removes its expiry.
    pub fn set_plain(&mut self, value: &Text<'_>) -> bool {
        // SAFETY: the key is open for writing; the server keeps the string.
        unsafe { (functions().StringSet)(self.raw, value.raw()) == OK }
    }

    /// Makes the server keep the plain string in a block of its own, apart from the key's object. It does the same when
    /// a command changes a string.
    pub fn keep_apart(&mut self) {
        let mut length = 0;
        // SAFETY: the key is open for writing and a string; nothing is written through the returned pointer.
        unsafe { (functions().StringDMA)(self.raw, &mut length, WRITE) };
    }

    /// The kind of content. A plain string keeps its encoding, because its bytes are not accessed.
    pub fn kind<V: DataType>(&self) -> Kind<'_, V> {
        // SAFETY: the server accepts null for an empty key.
        match unsafe { (functions().KeyType)(self.raw) } {
            EMPTY => Kind::Nothing,
            // SAFETY: the key is open.
            STRING => Kind::Plain(unsafe { (functions().ValueLength)(self.raw) }),
            _ => match self.find() {
                Found::Ours(value) => Kind::Ours(value),
                _ => Kind::Other,
            },
        }
    }

    /// How recently or often the key was used.
    pub fn usage(&self) -> Usage {
        let mut figure = -1;
        // SAFETY: the key is open, and the pointer is to a number. A figure that the server does not track stays -1.
        unsafe {
            if (functions().GetLRU)(self.raw, &mut figure) == OK && figure >= 0 {
                return Usage::IdleMs(figure);
            }
            (functions().GetLFU)(self.raw, &mut figure);
        }
        Usage::Frequency(figure)
    }

    /// Sets how recently or often the key was used.
    pub fn set_usage(&mut self, usage: Usage) {
        // SAFETY: the key is open; the server checks the number.
        unsafe {
            match usage {
                Usage::IdleMs(ms) => (functions().SetLRU)(self.raw, ms),
                Usage::Frequency(frequency) => (functions().SetLFU)(self.raw, frequency),
            }
        };
    }

    /// The expiry in milliseconds since 1970; `None` when the key does not expire.
    pub fn expires_ms(&self) -> Option<i64> {
        // SAFETY: the key is open.
        let at = unsafe { (functions().GetAbsExpire)(self.raw) };
        (at >= 0).then_some(at)
    }

    /// Sets the expiry, in milliseconds since 1970.
    pub fn expire_at(&mut self, at_ms: i64) {
        // SAFETY: the key is open for writing. The server refuses this for an empty key.
        unsafe { (functions().SetAbsExpire)(self.raw, at_ms) };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the key is open, and is not used any more.
            unsafe { (functions().CloseKey)(self.raw) };
        }
    }
}
