//! Inspects stored values without copying them: which indexes are in use, how a value ends.

use std::sync::Arc;

use spillway_types::{Key, PoolId};

use crate::error::Error;
use crate::get::{PinnedValue, Value};
use crate::long::LongGet;
use crate::position::HandlePosition;
use crate::store::Store;

impl Value<'_> {
    /// Bytes of the value; 0 if there is none.
    pub fn length(&self) -> usize {
        match &self.held {
            PinnedValue::Miss => 0,
            PinnedValue::Short(length) | PinnedValue::Raw(_, length) => *length,
            PinnedValue::Small(cell) => cell.len(),
            PinnedValue::Large(large) => large.length(),
            PinnedValue::Packed(_)
            | PinnedValue::Uniform(_)
            | PinnedValue::Disk(_)
            | PinnedValue::Blade(_) => spillway_types::PAGE_BYTES,
        }
    }

    /// The last part of a value, where it lies: all of one that is shorter than a page, of a longer one
    /// what is beyond its whole pages. Empty for a value of whole pages, which may be packed or on disk.
    pub fn tail(&self) -> &[u8] {
        match &self.held {
            PinnedValue::Raw(frame, length) if *length < spillway_types::PAGE_BYTES => {
                &frame[..*length]
            }
            PinnedValue::Small(cell) => cell,
            PinnedValue::Large(large) => large.rest(),
            _ => &[],
        }
    }

    /// Shows a value that lies in memory as it is, in parts with their offsets: its whole pages in their order,
    /// its tail at any time. One of a whole page, which may be packed or on disk, is not shown.
    pub fn each_part(&self, mut take: impl FnMut(usize, &[u8])) {
        match &self.held {
            PinnedValue::Large(large) => large.show(&mut take),
            _ => take(0, self.tail()),
        }
    }
}

impl Store {
    /// Which of the indexes 0 to 63 of an object are in use, as bits. Nothing is counted.
    pub fn used_indexes(&self, pool: PoolId, object: u64) -> u64 {
        let Some(access) = self.access(pool) else { return 0 };
        let at = HandlePosition::new(access.pool, Key::new(object, 0), self.seed);
        let index = self.shards[at.shard].lock();
        if !self.pools.is_live(pool) {
            return 0;
        }
        index.find(at.leaf_key, at.hash).map_or(0, |leaf| index.used(leaf))
    }

    /// Like [`Store::look_up`], for maintenance of the pool: counts nothing, and does not make the value
    /// the most recent.
    ///
    /// # Errors
    /// As for [`Store::look_up`].
    pub fn inspect(&self, pool: PoolId, key: Key) -> Result<Value<'_>, Error> {
        let held = self.hold(pool, key, usize::MAX, false)?;
        Ok(Value { store: self, pool, key, room: usize::MAX, held })
    }

    /// Like [`Store::inspect`], but the value also stays in a private ephemeral pool. For the beginning of a value that
    /// is too long for its reader.
    ///
    /// # Errors
    /// As for [`Store::look_up`].
    pub fn inspect_kept(&self, pool: PoolId, key: Key) -> Result<Value<'_>, Error> {
        let held = self.hold_kept(pool, key)?;
        Ok(Value { store: self, pool, key, room: usize::MAX, held })
    }

    /// Has a long value of more than `short` bytes, which was looked up, leave in parts. Any other is given back.
    ///
    /// # Errors
    /// The value, when it is not so long.
    pub fn leave_in_parts<'a>(
        self: &'a Arc<Self>,
        value: Value<'a>,
        short: usize,
    ) -> Result<LongGet, Value<'a>> {
        let pool = value.pool;
        value.into_large(short).map(|pin| self.leaving(pool, pin))
    }
}
