//! Values of more than 64 KiB. They lie in chunks of whole pages, apart from the record. They are written to the store
//! while they arrive, and sent from it without a copy in between.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use spillway_store::{Begun, Found, Key, LongGet, LongPut, PAGE_BYTES, PageBuf, PoolId, Put};
use spillway_store::{Refusal, Store};

use crate::record::Footer;
use crate::trouble::Trouble;

/// Largest chunk, bytes.
const CHUNK_BYTES_MAX: u64 = spillway_store::VALUE_BYTES_MAX as u64;

/// Bytes of each chunk of a value except the last, which is a little shorter.
const fn chunk_bytes(value_bytes: u64) -> u64 {
    let count = value_bytes.div_ceil(CHUNK_BYTES_MAX);
    value_bytes.div_ceil(count).next_multiple_of(PAGE_BYTES as u64)
}

/// The number of chunks of a value.
fn count(value_bytes: u64) -> u32 {
    value_bytes.div_ceil(chunk_bytes(value_bytes)) as u32
}

/// A value that is arriving. A drop removes its chunks from the store, unless [`Self::keep`] was called.
#[derive(Debug)]
pub struct Chunks {
    store: Arc<Store>,
    pool: PoolId,
    object: u64,
    total: u64,
    missing: u64,
    /// The index of the chunk that is arriving.
    next: u32,
    current: Option<LongPut>,
    /// The reason why the value can't be stored. The rest of its bytes is skipped.
    trouble: Option<Trouble>,
    kept: bool,
}

impl Chunks {
    /// Begins to store a value of `total` bytes as chunks of `object`. `total` exceeds the largest value in a record.
    pub fn begin(store: &Arc<Store>, pool: PoolId, object: u64, total: u64) -> Box<Self> {
        let mut chunks = Box::new(Self {
            store: Arc::clone(store),
            pool,
            object,
            total,
            missing: total,
            next: 0,
            current: None,
            trouble: None,
            kept: false,
        });
        chunks.begin_chunk();
        chunks
    }

    fn begin_chunk(&mut self) {
        let bytes = chunk_bytes(self.total).min(self.missing) as usize;
        let key = Key::new(self.object, self.next);
        match self.store.begin_put(self.pool, key, bytes) {
            Begun::Put(put) => self.current = Some(put),
            // Other values of the client use up its target.
            Begun::Later => self.trouble = Some(Trouble::AtTarget),
            Begun::Refused(reason) => self.trouble = Some(reason.into()),
        }
    }

    /// Bytes that have not arrived yet.
    pub const fn missing(&self) -> u64 {
        self.missing
    }

    /// Stores the next bytes of the value. `bytes` must not be longer than [`Self::missing`].
    pub fn push(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let Some(current) = &mut self.current else {
                self.missing -= bytes.len() as u64;
                return;
            };
            let (now, rest) = bytes.split_at(bytes.len().min(current.missing()));
            current.push(now);
            self.missing -= now.len() as u64;
            bytes = rest;
            if current.missing() == 0 {
                self.end_chunk();
            }
        }
    }

    /// Calls `read` to fill the store's memory for the next bytes. `None` if there is no such memory: call
    /// [`Self::push`] then.
    pub fn read(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let current = self.current.as_mut()?;
        let mut parts: Vec<_> = current.room().map(IoSliceMut::new).collect();
        if parts.is_empty() {
            return None;
        }
        let come = read(&mut parts);
        if let Ok(bytes) = come {
            current.filled(bytes);
            self.missing -= bytes as u64;
            if current.missing() == 0 {
                self.end_chunk();
            }
        }
        Some(come)
    }

    fn end_chunk(&mut self) {
        let Some(current) = self.current.take() else { return };
        match current.publish() {
            Put::Stored => {
                self.next += 1;
                if self.missing > 0 {
                    self.begin_chunk();
                }
            }
            Put::Refused(reason) => self.trouble = Some(reason.into()),
        }
    }

    /// The length of the whole value, bytes.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The object under which the chunks are stored.
    pub const fn object(&self) -> u64 {
        self.object
    }

    /// Checks that the whole value lies in `pool`.
    ///
    /// # Errors
    /// [`Trouble`]: the value is incomplete, was refused, or lies in another pool.
    pub fn finish(&mut self, pool: PoolId) -> Result<(), Trouble> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        if pool != self.pool || self.missing > 0 {
            return Err(Refusal::NoPool.into());
        }
        Ok(())
    }

    /// Leaves the chunks in the store: a record refers to them now.
    pub fn keep(mut self: Box<Self>) {
        self.kept = true;
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if !self.kept {
            for index in 0..self.next {
                self.store.flush(self.pool, Key::new(self.object, index));
            }
        }
    }
}

/// Removes the chunks of a value, if it has any.
pub fn remove(store: &Store, pool: PoolId, footer: &Footer) {
    if footer.chunks != 0 {
        for index in 0..count(footer.value_bytes) {
            store.flush(pool, Key::new(footer.chunks, index));
        }
    }
}

/// The chunks of a value, held in their present state. `None` if one has vanished.
///
/// # Errors
/// [`Trouble`] with the store.
pub fn parts(
    store: &Arc<Store>,
    pool: PoolId,
    footer: &Footer,
) -> Result<Option<Vec<LongGet>>, Trouble> {
    let mut scratch = PageBuf::ZERO;
    let mut parts = Vec::new();
    for index in 0..count(footer.value_bytes) {
        let key = Key::new(footer.chunks, index);
        let found = store.get_long(pool, key, (usize::MAX, PAGE_BYTES), &mut scratch, |_, _| {})?;
        let Found::Long(part) = found else { return Ok(None) };
        parts.push(part);
    }
    let bytes: u64 = parts.iter().map(|part| part.length() as u64).sum();
    Ok((bytes == footer.value_bytes).then_some(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_longer_than_a_page_and_none_too_long() {
        let most = crate::record::VALUE_BYTES_MAX;
        for bytes in [65_537, 16 << 20, (16 << 20) + 1, (48 << 20) - 1, most - 1, most] {
            let (each, count) = (chunk_bytes(bytes), u64::from(count(bytes)));
            let last = bytes - (count - 1) * each;
            assert!(each <= CHUNK_BYTES_MAX && last > PAGE_BYTES as u64 && last <= each, "{bytes}");
        }
    }
}
