//! Reserved pools, whose puts are never refused, for devices onto which kernels swap.

use spillway_tiers::sync::Ordering;
use spillway_tiers::uniform_word;
use spillway_types::{ClientId, Key, Lifetime, PAGE_BYTES, PoolId, PoolSpec, Sharing};

use crate::error::Error;
use crate::index::{LEAF_SHIFT, LEAF_SLOTS, LeafKey};
use crate::pool::Pool;
use crate::position::{HandlePosition, SHARDS};
use crate::slot::ValueLocation;
use crate::store::Store;

/// The number of a page of a reserved pool.
const fn page_number(key: Key) -> u64 {
    key.object << 32 | key.index as u64
}

impl Store {
    /// Creates a private persistent pool with `pages` reserved pages. These are the keys with object
    /// 0 and an index below `pages` (of a pool of more than 2^32 pages, the page of number n has
    /// object n >> 32 and index n & 0xffff_ffff). Their puts, of values of up to a page, are refused
    /// while the client is frozen and for no other reason: targets do not apply, and whatever other
    /// clients do, there is a frame. A put to another key is refused as at the target, one of a
    /// longer value for its length.
    ///
    /// Memory is taken from the host at the first write of a page and returned when pages are
    /// flushed, but no other pool can use it before the pool is destroyed. The reservation is part
    /// of the store's own capacity, not of lent memory ([`Self::set_capacity`]). The index of the
    /// pool, about 9 bytes a page, is made at once.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::TableFull`]; [`Error::Unreservable`] for a shared or an
    /// ephemeral pool or one of no pages; [`Error::NoRoom`].
    pub fn create_reserved_pool(
        &self,
        client: ClientId,
        spec: PoolSpec,
        pages: u64,
    ) -> Result<PoolId, Error> {
        let private = spec.sharing == Sharing::Private;
        if !private || spec.lifetime == Lifetime::Ephemeral || pages == 0 {
            return Err(Error::Unreservable);
        }
        let mut control = self.control.lock();
        let (_, entry) = self.client(client)?;
        let number = self.new_number(&control)?;
        let all_bytes =
            self.reserved_pages().saturating_add(pages).saturating_mul(PAGE_BYTES as u64);
        if all_bytes > self.own_bytes() {
            return Err(Error::NoRoom(pages));
        }
        let reserve = self.arena.open_reserve(pages).ok_or(Error::NoRoom(pages))?;
        if !self.make_leaves(number, pages) {
            self.free_reserve(number, reserve);
            return Err(Error::NoRoom(pages));
        }
        let pool = Pool { number, spec, members: Vec::new(), reserve, reserved_pages: pages };
        let made = self.add_pool(&mut control, client, pool);
        if made.is_ok() {
            entry.reserved_pages.fetch_add(pages, Ordering::Relaxed);
        } else {
            self.free_reserve(number, reserve);
        }
        made
    }

    /// Creates the index entries of a reserved pool; false if memory is exhausted.
    fn make_leaves(&self, pool: u16, pages: u64) -> bool {
        let budget = self.budget();
        for first in (0..pages).step_by(LEAF_SLOTS) {
            let key = Key::new(first >> 32, first as u32);
            let at = HandlePosition::new(pool, key, self.seed);
            let count = (pages - first).min(LEAF_SLOTS as u64) as u32;
            let rooted = at.leaf_key.chunk != 0;
            if rooted && !self.join_root(at.leaf_key) {
                return false;
            }
            let made =
                self.shards[at.shard].lock().insert_kept(at.leaf_key, at.hash, count, budget);
            if made.is_none() {
                if rooted {
                    self.leave_root(pool, key.object);
                }
                return false;
            }
        }
        true
    }

    /// Removes the empty leaves of a formerly reserved pool from the index, and frees its frames.
    pub(crate) fn free_reserve(&self, pool: u16, reserve: u16) {
        for shard in 0..SHARDS {
            let mut leaf = 0;
            loop {
                let mut index = self.shards[shard].lock();
                let end = index.leaf_high().min(leaf + LEAF_SLOTS as u32);
                let Some(found) = (leaf..end).find(|&leaf| index.is_of(leaf, pool)) else {
                    if end == index.leaf_high() {
                        break;
                    }
                    leaf = end;
                    continue;
                };
                let LeafKey { object, chunk, .. } = index.key(found);
                index.let_go(found);
                drop(index);
                if chunk != 0 {
                    self.leave_root(pool, object);
                }
                leaf = found + 1;
            }
        }
        self.arena.close_reserve(reserve);
    }

    /// Whether a key is reserved.
    pub(crate) fn is_prepaid(&self, pool: PoolId, at: &HandlePosition) -> bool {
        let key = Key::new(at.leaf_key.object, at.index);
        debug_assert_eq!(key.index >> LEAF_SHIFT, at.leaf_key.chunk);
        key.object <= u64::from(u32::MAX) && page_number(key) < self.pools.reserved_pages(pool)
    }

    /// Puts a value of up to a page into a frame of a reserve.
    pub(crate) fn place_reserved(&self, reserve: u16, value: &[u8]) -> Option<ValueLocation> {
        if let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(value)
            && let Some(word) = uniform_word(page)
        {
            self.uniform_pages.fetch_add(1, Ordering::Relaxed);
            return Some(ValueLocation::Uniform { word });
        }
        let frame = self.arena.store_reserved(reserve, value)?;
        Some(ValueLocation::Raw { frame, length: value.len() as u16, incompressible: false })
    }
}
