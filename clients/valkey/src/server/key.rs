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
/// `REDISMODULE_OPEN_KEY_NONOTIFY`, `_NOSTATS` and `_NOEXPIRE`, which Redis 7.0 does not know and takes no notice of.
const UNHEARD: c_int = 1 << 17;
const UNCOUNTED: c_int = 1 << 18;
const UNEXPIRED: c_int = 1 << 19;
/// `REDISMODULE_KEYTYPE_STRING`.
const STRING: c_int = 1;
/// `REDISMODULE_KEYTYPE_EMPTY`.
const EMPTY: c_int = 0;

/// A key that is open; it is closed when dropped.
#[derive(Debug)]
pub struct Key<'a> {
    /// Null for a key to read that is not there.
    raw: *mut RawKey,
    lifetime: PhantomData<&'a ()>,
}

/// What is under a key.
#[derive(Debug)]
pub enum Found<'a, V> {
    /// Nothing.
    Nothing,
    /// A plain string of the server's.
    Plain(&'a [u8]),
    /// A value of the module's.
    Ours(&'a V),
    /// A value of another type.
    Other,
}

/// What is under a key, as [`Found`], with the length alone of a plain string.
#[derive(Debug)]
pub enum Kind<'a, V> {
    /// Nothing.
    Nothing,
    /// A plain string of so many bytes.
    Plain(usize),
    /// A value of the module's.
    Ours(&'a V),
    /// A value of another type.
    Other,
}

/// How a key has been used, as the server's policy of eviction has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Not for so many milliseconds.
    IdleMs(i64),
    /// By so much on the scale of LFU.
    Frequency(i64),
}

impl<'a> Key<'a> {
    /// Opens a key to look at it, which counts as use.
    pub fn read(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        Self::open(context, name, READ)
    }

    /// Opens a key to change it.
    pub fn write(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        Self::open(context, name, READ | WRITE)
    }

    /// Opens a key to move its value, which is neither a use of it nor a hit or a miss.
    pub fn quiet(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        Self::open(context, name, READ | WRITE | UNTOUCHED)
    }

    /// Looks at what is under a key, as [`Self::quiet`]. On a replica that leaves a key there that has expired.
    pub fn peek(context: &'a Context<'_>, name: &Text<'_>) -> Self {
        if context.is_replica() {
            Self::open(context, name, READ | UNTOUCHED | UNHEARD | UNCOUNTED)
        } else {
            Self::quiet(context, name)
        }
    }

    /// The same of a key that was listed a moment ago: one that has expired stays, where the server knows how.
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

    /// What is under it.
    pub fn find<V: DataType>(&self) -> Found<'_, V> {
        // SAFETY: the server takes null for a key that is empty.
        match unsafe { (functions().KeyType)(self.raw) } {
            EMPTY => Found::Nothing,
            STRING => {
                let mut length = 0;
                // SAFETY: the key is open and a string; its bytes stay as long as it is not written.
                let start = unsafe { (functions().StringDMA)(self.raw, &mut length, READ) };
                // SAFETY: so long the server says that it is.
                Found::Plain(unsafe { slice::from_raw_parts(start.cast(), length) })
            }
            // SAFETY: the key is open; for other types this is null.
            _ if unsafe { (functions().ModuleTypeGetType)(self.raw) } == raw_type() => {
                // SAFETY: a value of this type is a `V` that `DataType` boxed, and nobody changes it.
                Found::Ours(unsafe { &*(functions().ModuleTypeGetValue)(self.raw).cast::<V>() })
            }
            _ => Found::Other,
        }
    }

    /// Puts a value of the module's under it. What was there goes, and so does its time to live.
    pub fn set<V: DataType>(&mut self, value: V) -> bool {
        let value = Box::into_raw(Box::new(value));
        // SAFETY: the key is open to be written, and the box becomes the server's.
        let set = unsafe { (functions().ModuleTypeSetValue)(self.raw, raw_type(), value.cast()) };
        if set != OK {
            // SAFETY: the server did not take it.
            drop(unsafe { Box::from_raw(value) });
        }
        set == OK
    }

    /// Puts a plain string under it. What was there goes, and so does its time to live.
    pub fn set_plain(&mut self, value: &Text<'_>) -> bool {
        // SAFETY: the key is open to be written; the server keeps the string.
        unsafe { (functions().StringSet)(self.raw, value.raw()) == OK }
    }

    /// Lets the server keep its plain string apart from the key's object, as it does once a command has changed it.
    pub fn keep_apart(&mut self) {
        let mut length = 0;
        // SAFETY: the key is open to be written and a string; nothing is written through what is given.
        unsafe { (functions().StringDMA)(self.raw, &mut length, WRITE) };
    }

    /// What is under it, without a plain string's bytes, which stay as they are encoded.
    pub fn kind<V: DataType>(&self) -> Kind<'_, V> {
        // SAFETY: the server takes null for a key that is empty.
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

    /// How it has been used.
    pub fn usage(&self) -> Usage {
        let mut figure = -1;
        // SAFETY: the key is open, and there is room for a number; the one that the server does not keep stays -1.
        unsafe {
            if (functions().GetLRU)(self.raw, &mut figure) == OK && figure >= 0 {
                return Usage::IdleMs(figure);
            }
            (functions().GetLFU)(self.raw, &mut figure);
        }
        Usage::Frequency(figure)
    }

    /// Sets how it has been used.
    pub fn set_usage(&mut self, usage: Usage) {
        // SAFETY: the key is open; the server checks the number.
        unsafe {
            match usage {
                Usage::IdleMs(ms) => (functions().SetLRU)(self.raw, ms),
                Usage::Frequency(frequency) => (functions().SetLFU)(self.raw, frequency),
            }
        };
    }

    /// When it expires, milliseconds since 1970; `None` when it does not.
    pub fn expires_ms(&self) -> Option<i64> {
        // SAFETY: the key is open.
        let at = unsafe { (functions().GetAbsExpire)(self.raw) };
        (at >= 0).then_some(at)
    }

    /// Lets it expire at a time.
    pub fn expire_at(&mut self, at_ms: i64) {
        // SAFETY: the key is open to be written. Of a key that is empty the server refuses it.
        unsafe { (functions().SetAbsExpire)(self.raw, at_ms) };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: it is open, and nobody uses it any more.
            unsafe { (functions().CloseKey)(self.raw) };
        }
    }
}
