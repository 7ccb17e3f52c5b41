//! A value of the module's type, in the server or in the store.

use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::server::{
    CommandLog, DataType, Digest, Level, OwnText, Sink, Source, Text, fail_dump, log, now_ms,
};
use crate::session::{CHUNK_BYTES, Extent};
use crate::spill::spill;
use crate::uses::Uses;

/// The largest value that is accepted from a dump: the server's own default bound on strings.
const VALUE_BYTES_MAX: u64 = 512 << 20;
/// A value that was read this often comes back, if there is room.
pub const HOT_USES: u8 = 2;
/// Follows a complete value in a dump.
const WHOLE: u64 = 1;
/// Follows a value that could not be read: loading the dump fails.
const BROKEN: u64 = 0;

/// A value. It never changes.
#[derive(Debug)]
pub enum Value {
    /// In the server's memory.
    Inline(InlineValue),
    /// In the store. Copies of a key share it.
    Spilled(Arc<SpilledValue>),
}

/// Bytes in the server's memory.
#[derive(Debug)]
pub struct InlineValue(Box<[u8]>);

/// A value in the store. The last reference to it discards it.
#[derive(Debug)]
pub struct SpilledValue {
    extent: Extent,
    checksum: u64,
    uses: Uses,
    /// Whether the server had stored this short string apart from its object, as it does once a command has changed it.
    apart: bool,
}

/// Whether a value of the module's type has ever existed.
static ANY_EVER: AtomicBool = AtomicBool::new(false);

/// Whether a value of the module's type has existed since the server started.
pub fn any_ever() -> bool {
    ANY_EVER.load(Ordering::Relaxed)
}

fn count(values: &AtomicU64, bytes: &AtomicU64, length: u64) {
    ANY_EVER.store(true, Ordering::Relaxed);
    values.fetch_add(1, Ordering::Relaxed);
    bytes.fetch_add(length, Ordering::Relaxed);
}

fn uncount(values: &AtomicU64, bytes: &AtomicU64, length: u64) {
    values.fetch_sub(1, Ordering::Relaxed);
    bytes.fetch_sub(length, Ordering::Relaxed);
}

impl Drop for InlineValue {
    fn drop(&mut self) {
        let counters = &spill().counters;
        uncount(&counters.inline_values, &counters.inline_bytes, self.0.len() as u64);
    }
}

impl Drop for SpilledValue {
    fn drop(&mut self) {
        let counters = &spill().counters;
        uncount(&counters.spilled_values, &counters.spilled_bytes, self.extent.bytes);
        spill().discard(self.extent);
    }
}

impl SpilledValue {
    /// The length.
    pub const fn bytes(&self) -> u64 {
        self.extent.bytes
    }

    /// Its place in the store, and its checksum.
    pub const fn place(&self) -> (Extent, u64) {
        (self.extent, self.checksum)
    }

    /// Reads the bytes. Any thread may call it.
    ///
    /// # Errors
    /// Why they can't be read.
    pub fn read(&self, deadline: Deadline) -> Result<Vec<u8>, Error> {
        spill().read(self.extent, self.checksum, deadline)
    }
}

impl Value {
    /// Makes a value of these bytes: in the store if it accepts them, else inline.
    pub fn new(bytes: &[u8]) -> Self {
        Self::spilled(bytes).unwrap_or_else(|| Self::inline(bytes.into()))
    }

    /// Whether a value of this many bytes may move to the store.
    pub fn may_spill(bytes: u64) -> bool {
        bytes >= spill().min_bytes()
    }

    /// Makes a value in the store; `None` if it refuses these bytes.
    pub fn spilled(bytes: &[u8]) -> Option<Self> {
        Self::spilled_string(bytes, false)
    }

    /// The same for a string of the server. `apart`: whether it was stored apart from its key's object.
    pub fn spilled_string(bytes: &[u8], apart: bool) -> Option<Self> {
        let (extent, checksum) = spill().put(bytes)?;
        let counters = &spill().counters;
        count(&counters.spilled_values, &counters.spilled_bytes, extent.bytes);
        Some(Self::Spilled(Arc::new(SpilledValue {
            extent,
            checksum,
            uses: Uses::default(),
            apart,
        })))
    }

    fn inline(bytes: Box<[u8]>) -> Self {
        let counters = &spill().counters;
        count(&counters.inline_values, &counters.inline_bytes, bytes.len() as u64);
        Self::Inline(InlineValue(bytes))
    }

    /// The value in the store, if it is there.
    pub const fn in_store(&self) -> Option<&Arc<SpilledValue>> {
        match self {
            Self::Inline(_) => None,
            Self::Spilled(value) => Some(value),
        }
    }

    /// The length.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(InlineValue(bytes)) => bytes.len() as u64,
            Self::Spilled(value) => value.extent.bytes,
        }
    }

    /// Whether it was a string that the server stored apart from its key's object.
    pub fn was_apart(&self) -> bool {
        matches!(self, Self::Spilled(value) if value.apart)
    }

    /// Counts a use, and returns the number of recent uses. Inline values are not counted.
    pub fn used(&self) -> u8 {
        match self {
            Self::Inline(_) => u8::MAX,
            Self::Spilled(value) => value.uses.add((now_ms() / 1000) as u32),
        }
    }

    /// The bytes.
    ///
    /// # Errors
    /// Why they can't be read.
    pub fn read(&self, deadline: Deadline) -> Result<Cow<'_, [u8]>, Error> {
        match self {
            Self::Inline(InlineValue(bytes)) => Ok(Cow::Borrowed(bytes)),
            Self::Spilled(value) => value.read(deadline).map(Cow::Owned),
        }
    }

    /// The bytes, as a string of the server.
    ///
    /// # Errors
    /// Why they can't be read.
    pub fn text(&self, deadline: Deadline) -> Result<OwnText, Error> {
        match self {
            Self::Inline(InlineValue(bytes)) => Ok(OwnText::new(bytes)),
            Self::Spilled(value) => OwnText::filled(value.extent.bytes as usize, |bytes| {
                spill().read_into(value.extent, value.checksum, bytes, deadline)
            }),
        }
    }

    /// The bytes of an inline value.
    pub const fn inline_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Inline(InlineValue(bytes)) => Some(bytes),
            Self::Spilled(_) => None,
        }
    }

    /// Passes the bytes to `take`, in pieces of at most [`CHUNK_BYTES`].
    fn read_each(&self, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        match self {
            Self::Inline(InlineValue(bytes)) => {
                bytes.chunks(CHUNK_BYTES).for_each(take);
                Ok(())
            }
            Self::Spilled(value) => spill().read_each(value.extent, value.checksum, take),
        }
    }
}

/// Handles a value that can't be read for a save. A child ends, and the server keeps the previous dump. A dump that the
/// server itself writes to a file fails.
fn not_saved(error: &Error) {
    let child = spill().in_child();
    let whose =
        if child { "the child that saves ends" } else { "what is being saved is of no use" };
    log(Level::Warning, &format!("a value can't be saved: {error}; {whose}"));
    if child {
        // End by a signal: then the server removes the child's unfinished file.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    fail_dump();
}

impl DataType for Value {
    const NAME: &'static CStr = c"spillwayv";
    const VERSION: c_int = 0;

    fn load(source: &Source<'_>, version: c_int) -> Option<Self> {
        if version != Self::VERSION {
            log(
                Level::Warning,
                &format!(
                    "a value of spillwayv is of version {version}; this module reads version {}",
                    Self::VERSION
                ),
            );
            return None;
        }
        let length = source.number().filter(|&length| length <= VALUE_BYTES_MAX)? as usize;
        let mut value = Vec::new();
        while value.len() < length {
            let chunk = source.bytes()?;
            let chunk = chunk.bytes();
            if chunk.is_empty() || chunk.len() > (length - value.len()).min(CHUNK_BYTES) {
                return None;
            }
            value.try_reserve_exact((length - value.len()).min(64 * CHUNK_BYTES)).ok()?;
            value.extend_from_slice(chunk);
        }
        if source.number()? != WHOLE {
            return None;
        }
        Some(Self::spilled(&value).unwrap_or_else(|| Self::inline(value.into_boxed_slice())))
    }

    fn save(&self, sink: &Sink<'_>) {
        sink.number(self.bytes());
        let mut saved = 0;
        let read = self.read_each(&mut |chunk| {
            sink.bytes(chunk);
            saved += chunk.len() as u64;
        });
        if let Err(error) = &read {
            not_saved(error);
            if saved < self.bytes() {
                // No piece of a value is empty, so loading fails here.
                sink.bytes(&[]);
            }
        }
        sink.number(if read.is_ok() { WHOLE } else { BROKEN });
    }

    fn rewrite(&self, log: &CommandLog<'_>, key: &Text<'_>) {
        match self.read(Deadline::NONE) {
            Ok(value) => log.write(c"SPILL.SET", key, &value),
            Err(error) => not_saved(&error),
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Inline(InlineValue(bytes)) => bytes.len(),
                Self::Spilled(_) => size_of::<SpilledValue>() + 2 * size_of::<usize>(),
            }
    }

    fn digest(&self, digest: &Digest<'_>) {
        match self.read(Deadline::NONE) {
            Ok(value) => digest.add(&value),
            Err(error) => digest.add(error.to_string().as_bytes()),
        }
    }

    fn copy(&self) -> Self {
        match self {
            Self::Inline(InlineValue(bytes)) => Self::inline(bytes.clone()),
            Self::Spilled(value) => Self::Spilled(Arc::clone(value)),
        }
    }
}
