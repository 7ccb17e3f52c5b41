//! Pools as the store keeps them: handles, counters and lifetimes.

use spillway_tiers::sync::{AtomicU64, Ordering};
use spillway_tiers::{Table, Zeroed, zeroed_slice};
use spillway_types::{ClientId, Lifetime, PoolId, PoolSpec, Sharing};

use crate::config::ClientConfig;
use crate::error::Error;
use crate::position::SHARDS;
use crate::slot::{CLIENTS_MAX, PREPAID};

/// Handles to pools that a store can have at the same time.
pub(crate) const HANDLES_MAX: usize = 8192;
/// Pools that a store can have at the same time; their numbers are below this.
pub(crate) const POOLS_MAX: usize = HANDLES_MAX;
/// Pools whose counters lie together.
pub(crate) const POOL_GROUP: usize = 16;

/// The meaning of a pool's id, read on every operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The pool's number in the index.
    pub(crate) pool: u16,
    /// The number of the client that acts.
    pub(crate) client: u16,
    pub(crate) ephemeral: bool,
    pub(crate) shared: bool,
    /// The arena's reserve that its frames come from, 0 for none.
    pub(crate) reserve: u16,
}

impl Access {
    /// As the word of a handle.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.pool)
            | u64::from(self.client) << 16
            | u64::from(self.ephemeral) << 32
            | u64::from(self.shared) << 33
            | u64::from(self.reserve) << 34
    }

    /// Of the word of a handle.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self {
            pool: bits as u16,
            client: (bits >> 16) as u16,
            ephemeral: bits >> 32 & 1 != 0,
            shared: bits >> 33 & 1 != 0,
            reserve: (bits >> 34) as u16,
        }
    }

    /// Whether a get takes the value out of the pool.
    pub(crate) const fn consumes(self) -> bool {
        self.ephemeral && !self.shared
    }

    /// Whether the pool is reserved.
    pub(crate) const fn is_reserved(self) -> bool {
        self.reserve != 0
    }

    /// The number of the client that is charged for values.
    pub(crate) const fn payer(self) -> u16 {
        if self.is_reserved() { PREPAID } else { self.client }
    }

    /// The client for which removals of `owner`'s values are counted.
    pub(crate) const fn counted(self, owner: u16) -> u16 {
        if owner == PREPAID { self.client } else { owner }
    }
}

/// Set in the word of an [`Access`], above its fields: the pool is destroyed with the connections that bound
/// it.
pub(crate) const BOUND: u64 = 1 << 50;

/// A handle of a client to a pool.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Handle {
    /// The [`PoolId`], 0 when free.
    pub(crate) id: AtomicU64,
    pub(crate) access: AtomicU64,
    /// Reserved pages.
    pub(crate) reserved_pages: AtomicU64,
    /// The UUID of a shared pool, low half first. Only kept, not looked at.
    pub(crate) uuid: [AtomicU64; 2],
}

impl Handle {
    /// The pool's id and what it stands for, if it is in use.
    pub(crate) fn record(&self) -> Option<(PoolId, Access)> {
        let id = self.id.load(Ordering::Acquire);
        (id != 0).then(|| (PoolId(id), Access::from_bits(self.access.load(Ordering::Relaxed))))
    }

    /// The pool's kind and reserved pages.
    pub(crate) fn spec(&self, access: Access) -> (PoolSpec, u64) {
        let lifetime = if access.ephemeral { Lifetime::Ephemeral } else { Lifetime::Persistent };
        let [low, high] = [0, 1].map(|half: usize| self.uuid[half].load(Ordering::Relaxed));
        let uuid = u128::from(low) | u128::from(high) << 64;
        let sharing = if access.shared { Sharing::Shared { uuid } } else { Sharing::Private };
        (PoolSpec { lifetime, sharing }, self.reserved_pages.load(Ordering::Relaxed))
    }
}

/// Tells whether a pool's id can be that of handle number `place`, and its serial number.
pub(crate) const fn serial_at(id: PoolId, place: usize) -> Option<u64> {
    if id.0 as usize % HANDLES_MAX == place { Some(id.0 / HANDLES_MAX as u64) } else { None }
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for Handle {}

/// A shard's page counts of some pools. Written under the shard's lock.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct PoolShard {
    pub(crate) pages: [AtomicU64; POOL_GROUP],
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for PoolShard {}

impl PoolShard {
    /// How many of these `pools` pools have.
    pub(crate) const fn count(pools: usize) -> usize {
        pools.div_ceil(POOL_GROUP) * SHARDS
    }
}

/// Which pools are ephemeral, by their numbers: a bit for each. Read without a lock.
#[derive(Debug)]
pub(crate) struct Lifetimes(Box<[AtomicU64]>);

impl Lifetimes {
    pub(crate) fn new() -> Self {
        Self(zeroed_slice(POOLS_MAX / 64))
    }

    /// Records the lifetime of a pool that has no values yet. Callers hold the lock of the control
    /// plane.
    pub(crate) fn set(&self, number: u16, lifetime: Lifetime) {
        let word = &self.0[usize::from(number) / 64];
        let others = word.load(Ordering::Relaxed) & !(1 << (number % 64));
        let bit = u64::from(lifetime == Lifetime::Ephemeral) << (number % 64);
        word.store(others | bit, Ordering::Release);
    }

    pub(crate) fn is_ephemeral(&self, number: u16) -> bool {
        self.0[usize::from(number) / 64].load(Ordering::Acquire) >> (number % 64) & 1 != 0
    }
}

/// The handles, read without a lock. A reader that has looked one up checks the id again under the
/// lock of its shard.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) handles: Table<Handle>,
}

impl Pools {
    #[inline]
    pub(crate) fn handle(&self, id: PoolId) -> &Handle {
        &self.handles[id.0 as usize % HANDLES_MAX]
    }

    /// What `id` stands for, if it is in use.
    #[inline]
    pub(crate) fn access(&self, id: PoolId) -> Option<Access> {
        let handle = self.handle(id);
        if id.0 == 0 || handle.id.load(Ordering::Acquire) != id.0 {
            return None;
        }
        let access = Access::from_bits(handle.access.load(Ordering::Acquire));
        // The number may have been reused between the two loads.
        (handle.id.load(Ordering::Relaxed) == id.0).then_some(access)
    }

    /// Pages set aside for the pool of `id`.
    pub(crate) fn reserved_pages(&self, id: PoolId) -> u64 {
        self.handle(id).reserved_pages.load(Ordering::Relaxed)
    }

    /// Whether `id` is still in use.
    #[inline]
    pub(crate) fn is_live(&self, id: PoolId) -> bool {
        self.handle(id).id.load(Ordering::Acquire) == id.0
    }
}

/// A pool in the control plane.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) number: u16,
    pub(crate) spec: PoolSpec,
    /// Its members, in the order of joining.
    pub(crate) members: Vec<(ClientId, PoolId)>,
    /// The arena's reserve that is its own, 0 for none.
    pub(crate) reserve: u16,
    /// Reserved pages.
    pub(crate) reserved_pages: u64,
}

/// Rarely changed state, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// The number of the pool that was made last.
    pub(crate) last_number: u16,
    pub(crate) pools: Vec<Pool>,
    /// Permissions to join shared pools.
    pub(crate) authorised: Vec<(ClientId, u128)>,
    /// Sharing domains that were named, by place.
    domains: Vec<u32>,
}

impl Control {
    /// The number of a client's sharing domain.
    pub(crate) fn domain_of(&mut self, client: usize, config: ClientConfig) -> Result<u16, Error> {
        match config.domain {
            // A client alone is a domain of its own.
            None => Ok(client as u16),
            Some(domain) => Ok(CLIENTS_MAX as u16 + self.domain_place(domain)?),
        }
    }

    /// The place of a sharing domain, which it keeps for good.
    fn domain_place(&mut self, domain: u32) -> Result<u16, Error> {
        if let Some(place) = self.domains.iter().position(|&known| known == domain) {
            return Ok(place as u16);
        }
        if self.domains.len() == CLIENTS_MAX {
            return Err(Error::TableFull);
        }
        self.domains.push(domain);
        Ok(self.domains.len() as u16 - 1)
    }

    /// A number for a new pool: not that of an existing pool nor, if possible, one that was freed
    /// recently. Numbers begin at 1, so that zeroed memory names none.
    pub(crate) fn free_number(&self) -> Result<u16, Error> {
        let taken = |number: &u16| self.pools.iter().any(|pool| pool.number == *number);
        let after = self.last_number + 1..POOLS_MAX as u16;
        let mut numbers = after.chain(1..=self.last_number);
        numbers.find(|number| !taken(number)).ok_or(Error::TableFull)
    }
}
