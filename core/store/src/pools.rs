//! Creates, joins, leaves and destroys pools.

use spillway_tiers::sync::{AtomicU64, Ordering};
use spillway_tiers::{Table, Use, Zeroed, zeroed_slice};
use spillway_types::{ClientId, Lifetime, PoolId, PoolInfo, PoolSpec, Sharing};

use crate::client::client_number;
use crate::config::ClientConfig;
use crate::error::Error;
use crate::index::{Index, LEAF_SLOTS};
use crate::migrate::Flushed;
use crate::reserved::PREPAID;
use crate::shard::{Removed, SHARDS};
use crate::slot::CLIENTS_MAX;
use crate::store::Store;

/// Handles to pools that a store can have at the same time.
pub(crate) const HANDLES_MAX: usize = 8192;
/// Pools that a store can have at the same time; their numbers are below this.
pub(crate) const POOLS_MAX: usize = HANDLES_MAX;
/// Pools whose counters lie together.
const POOL_GROUP: usize = 16;
/// Leaves looked at while a shard is locked.
const SCAN_LEAVES: u32 = 64;

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
    fn to_bits(self) -> u64 {
        u64::from(self.pool)
            | u64::from(self.client) << 16
            | u64::from(self.ephemeral) << 32
            | u64::from(self.shared) << 33
            | u64::from(self.reserve) << 34
    }

    const fn from_bits(bits: u64) -> Self {
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
const BOUND: u64 = 1 << 50;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Handle {
    /// The [`PoolId`], 0 when free.
    id: AtomicU64,
    access: AtomicU64,
    /// Reserved pages.
    reserved_pages: AtomicU64,
    /// The UUID of a shared pool, low half first. Only kept, not looked at.
    uuid: [AtomicU64; 2],
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
    pages: [AtomicU64; POOL_GROUP],
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
    fn handle(&self, id: PoolId) -> &Handle {
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
    /// Pages set aside.
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
    fn free_number(&self) -> Result<u16, Error> {
        let taken = |number: &u16| self.pools.iter().any(|pool| pool.number == *number);
        let after = self.last_number + 1..POOLS_MAX as u16;
        let mut numbers = after.chain(1..=self.last_number);
        numbers.find(|number| !taken(number)).ok_or(Error::TableFull)
    }
}

impl Store {
    /// What a pool id stands for.
    #[inline]
    pub(crate) fn access(&self, pool: PoolId) -> Option<Access> {
        self.pools.access(pool)
    }

    /// Creates a pool. Joins an existing shared pool with the UUID; a client that joins twice gets
    /// the same id.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Unauthorised`], [`Error::Lifetime`], [`Error::TableFull`].
    pub fn create_pool(&self, client: ClientId, spec: PoolSpec) -> Result<PoolId, Error> {
        let mut control = self.control.lock();
        self.client(client)?;
        if let Sharing::Shared { uuid } = spec.sharing {
            if control.pools.iter().any(|pool| {
                pool.spec.sharing == spec.sharing && pool.spec.lifetime != spec.lifetime
            }) {
                return Err(Error::Lifetime(uuid));
            }
            if let Some(joined) = self.join(&mut control, client, uuid)? {
                return Ok(joined);
            }
        }
        let number = self.new_number(&control)?;
        let pool = Pool { number, spec, members: Vec::new(), reserve: 0, reserved_pages: 0 };
        self.add_pool(&mut control, client, pool)
    }

    /// A number for a new pool, with counters.
    pub(crate) fn new_number(&self, control: &Control) -> Result<u16, Error> {
        let number = control.free_number()?;
        let counters = PoolShard::count(usize::from(number) + 1);
        if !self.pool_shards.grow(counters, self.budget(), Use::Index) {
            return Err(Error::TableFull);
        }
        Ok(number)
    }

    /// Adds a pool, with `client` as its first member.
    pub(crate) fn add_pool(
        &self,
        control: &mut Control,
        client: ClientId,
        pool: Pool,
    ) -> Result<PoolId, Error> {
        let mut pool = pool;
        let id = self.add_member(client, &pool)?;
        pool.members.push((client, id));
        self.lifetimes.set(pool.number, pool.spec.lifetime);
        control.last_number = pool.number;
        control.pools.push(pool);
        Ok(id)
    }

    /// Gives a client a handle to a pool. Callers hold the lock of the control plane.
    fn add_member(&self, client: ClientId, pool: &Pool) -> Result<PoolId, Error> {
        let free =
            (0..HANDLES_MAX).find(|&n| self.pools.handles[n].id.load(Ordering::Relaxed) == 0);
        let place = free.ok_or(Error::TableFull)?;
        let id = PoolId(self.tables.next_serial() * HANDLES_MAX as u64 + place as u64);
        let access = Access {
            pool: pool.number,
            client: client_number(client) as u16,
            ephemeral: pool.spec.lifetime == Lifetime::Ephemeral,
            shared: pool.spec.sharing != Sharing::Private,
            reserve: pool.reserve,
        };
        let handle = &self.pools.handles[place];
        handle.reserved_pages.store(pool.reserved_pages, Ordering::Relaxed);
        if let Sharing::Shared { uuid } = pool.spec.sharing {
            let halves = [uuid as u64, (uuid >> 64) as u64];
            handle.uuid.iter().zip(halves).for_each(|(at, half)| at.store(half, Ordering::Relaxed));
        }
        handle.access.store(access.to_bits(), Ordering::Release);
        handle.id.store(id.0, Ordering::Release);
        Ok(id)
    }

    fn join(
        &self,
        control: &mut Control,
        client: ClientId,
        uuid: u128,
    ) -> Result<Option<PoolId>, Error> {
        if !control.authorised.contains(&(client, uuid)) {
            return Err(Error::Unauthorised(uuid));
        }
        let wanted = Sharing::Shared { uuid };
        let Some(at) = control.pools.iter().position(|pool| pool.spec.sharing == wanted) else {
            return Ok(None);
        };
        if let Some(member) = control.pools[at].members.iter().find(|m| m.0 == client) {
            return Ok(Some(member.1));
        }
        let mut pool = control.pools.swap_remove(at);
        let id = self.add_member(client, &pool);
        pool.members.extend(id.iter().map(|&id| (client, id)));
        control.pools.push(pool);
        id.map(Some)
    }

    /// The pools that a client uses, in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn pools(&self, client: ClientId) -> Result<Vec<PoolInfo>, Error> {
        let control = self.control.lock();
        self.client(client)?;
        let its = |pool: &Pool| {
            let (_, id) = *pool.members.iter().find(|member| member.0 == client)?;
            Some(PoolInfo {
                id,
                number: pool.number.into(),
                spec: pool.spec,
                pages: self.pool_pages(pool.number),
                reserved_pages: pool.reserved_pages,
            })
        };
        let mut pools: Vec<PoolInfo> = control.pools.iter().filter_map(its).collect();
        pools.sort_unstable_by_key(|pool| pool.number);
        Ok(pools)
    }

    /// Marks a private pool to be destroyed with the connections that bound it. The mark is kept with the pool, for a
    /// process that takes over the store and does not know the former connections.
    ///
    /// # Errors
    /// [`Error::NoPool`]; [`Error::WrongSharing`] for a shared pool.
    pub fn mark_bound(&self, pool: PoolId) -> Result<(), Error> {
        let _control = self.control.lock();
        let access = self.access(pool).ok_or(Error::NoPool)?;
        if access.shared {
            return Err(Error::WrongSharing);
        }
        let word = &self.pools.handle(pool).access;
        // Handles are written under the lock of the control plane.
        word.store(word.load(Ordering::Relaxed) | BOUND, Ordering::Release);
        Ok(())
    }

    /// The pools that are marked so.
    pub fn bound_pools(&self) -> Vec<PoolId> {
        let _control = self.control.lock();
        let bound = |handle: &Handle| {
            let (id, _) = handle.record()?;
            (handle.access.load(Ordering::Relaxed) & BOUND != 0).then_some(id)
        };
        self.pools.handles.iter().filter_map(bound).collect()
    }

    /// Whether a pool id is in use, at this moment.
    #[inline]
    pub fn has_pool(&self, pool: PoolId) -> bool {
        self.pools.access(pool).is_some()
    }

    /// The unique identity of a pool across all stores and times: the store's random number in the
    /// high half, the pool's id in the low one.
    pub fn identity(&self, pool: PoolId) -> u128 {
        u128::from(self.instance) << 64 | u128::from(pool.0)
    }

    /// Pages of a pool in one shard.
    #[inline]
    pub(crate) fn pool_shard(&self, pool: u16, shard: usize) -> &AtomicU64 {
        let pool = usize::from(pool);
        &self.pool_shards.get(pool / POOL_GROUP * SHARDS + shard).pages[pool % POOL_GROUP]
    }

    fn pool_pages(&self, pool: u16) -> u64 {
        (0..SHARDS).map(|shard| self.pool_shard(pool, shard).load(Ordering::Relaxed)).sum()
    }

    /// Destroys a private pool and all its values.
    ///
    /// # Errors
    /// [`Error::NoPool`]; [`Error::WrongSharing`] for a shared pool.
    pub fn destroy_pool(&self, pool: PoolId) -> Result<(), Error> {
        let mut control = self.control.lock();
        let at = self.pool_place(&control, pool)?;
        if control.pools[at].spec.sharing != Sharing::Private {
            return Err(Error::WrongSharing);
        }
        self.free_pool(&mut control, at);
        Ok(())
    }

    /// Allows a client to join the shared pool of `uuid`, now or later.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn authorise(&self, client: ClientId, uuid: u128) -> Result<(), Error> {
        let mut control = self.control.lock();
        self.client(client)?;
        if !control.authorised.contains(&(client, uuid)) {
            control.authorised.push((client, uuid));
        }
        Ok(())
    }

    /// Revokes the permission. A client that has joined stays a member.
    pub fn revoke(&self, client: ClientId, uuid: u128) {
        self.control.lock().authorised.retain(|&entry| entry != (client, uuid));
    }

    /// Joins an existing shared pool. Joining twice returns the same id.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Unauthorised`], [`Error::NoSharedPool`], [`Error::TableFull`].
    pub fn join_pool(&self, client: ClientId, uuid: u128) -> Result<PoolId, Error> {
        let mut control = self.control.lock();
        self.client(client)?;
        self.join(&mut control, client, uuid)?.ok_or(Error::NoSharedPool(uuid))
    }

    /// Leaves a shared pool. The last one to leave frees it. The client's values are charged to the
    /// earliest remaining member, whatever its target.
    ///
    /// # Errors
    /// [`Error::NoPool`]; [`Error::WrongSharing`] for a private pool.
    pub fn leave_pool(&self, pool: PoolId) -> Result<(), Error> {
        let mut control = self.control.lock();
        let at = self.pool_place(&control, pool)?;
        if control.pools[at].spec.sharing == Sharing::Private {
            return Err(Error::WrongSharing);
        }
        self.leave_shared(&mut control, at, pool);
        Ok(())
    }

    fn leave_shared(&self, control: &mut Control, at: usize, id: PoolId) {
        let pool = &mut control.pools[at];
        let Some(member) = pool.members.iter().position(|member| member.1 == id) else { return };
        if pool.members.len() == 1 {
            self.free_pool(control, at);
            return;
        }
        let (leaver, _) = pool.members.remove(member);
        self.pools.handle(id).id.store(0, Ordering::Release);
        let leaver = client_number(leaver) as u16;
        let successor = client_number(pool.members[0].0) as u16;
        let ephemeral = pool.spec.lifetime == Lifetime::Ephemeral;
        self.scan(pool.number, |index, shard, leaf, at| {
            self.pass_on(index, (shard, leaf, at), leaver, successor, ephemeral);
            None
        });
    }

    /// Moves the charge for a value from `leaver` to `successor`.
    fn pass_on(
        &self,
        index: &mut Index,
        (shard, leaf, at): (usize, u32, u32),
        leaver: u16,
        successor: u16,
        ephemeral: bool,
    ) {
        let slot = index.slot(leaf, at);
        if slot.owner() != leaver {
            return;
        }
        self.unlist(slot, shard, ephemeral);
        let moved = slot.with_owner(successor);
        if slot.listed() {
            self.list(moved, shard, leaf, at, ephemeral);
        }
        let kept = index.set(leaf, at, moved, self.budget());
        debug_assert!(kept, "changing a used slot takes no memory");
        let pages = self.pages_of(slot);
        self.clients[usize::from(successor)].charge_always(pages);
        self.clients[usize::from(leaver)].refund(pages);
    }

    /// Removes a client: its private pools are destroyed, the shared ones left.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn remove_client(&self, client: ClientId) -> Result<(), Error> {
        let mut control = self.control.lock();
        let (_, entry) = self.client(client)?;
        loop {
            let is_its = |pool: &Pool| pool.members.iter().any(|member| member.0 == client);
            let Some(at) = control.pools.iter().position(is_its) else { break };
            let pool = &control.pools[at];
            if pool.spec.sharing == Sharing::Private {
                self.free_pool(&mut control, at);
            } else {
                let id = pool.members.iter().find(|m| m.0 == client).map_or(PoolId(0), |m| m.1);
                self.leave_shared(&mut control, at, id);
            }
        }
        control.authorised.retain(|entry| entry.0 != client);
        self.flush_log.lock().retain(|entry| entry.0 != client_number(client));
        entry.id.store(0, Ordering::Release);
        Ok(())
    }

    pub(crate) fn pool_place(&self, control: &Control, pool: PoolId) -> Result<usize, Error> {
        let is_it = |entry: &Pool| entry.members.iter().any(|member| member.1 == pool);
        control.pools.iter().position(is_it).ok_or(Error::NoPool)
    }

    /// Frees a pool with all its values.
    fn free_pool(&self, control: &mut Control, at: usize) {
        let pool = control.pools.swap_remove(at);
        for (_, id) in &pool.members {
            self.pools.handle(*id).id.store(0, Ordering::Release);
        }
        for (client, id) in &pool.members {
            self.log_flush(client_number(*client) as u16, Flushed::Pool(*id));
            let is_its = |(member, _): &(ClientId, PoolId)| member == client;
            if !control.pools.iter().any(|other| other.members.iter().any(is_its)) {
                self.tell_gone(*client);
            }
        }
        // From here on every holder of a shard's lock sees that the pool is gone, so scanned parts
        // stay empty.
        let ephemeral = pool.spec.lifetime == Lifetime::Ephemeral;
        let first_member = client_number(pool.members[0].0);
        self.scan(pool.number, |index, shard, leaf, at| {
            let owner = index.slot(leaf, at).owner();
            let counted = if owner == PREPAID { first_member as u16 } else { owner };
            let counters = self.client_shard(counted, shard);
            counters.flushed_pages.add_guarded(self.pages_of(index.slot(leaf, at)));
            Some(self.remove(index, shard, leaf, at, ephemeral))
        });
        if pool.reserve != 0 {
            self.free_reserve(pool.number, pool.reserve);
            let client = &self.clients[first_member];
            client.reserved_pages.fetch_sub(pool.reserved_pages, Ordering::Relaxed);
        }
        self.arena.empty_hands();
    }

    /// Calls `visit` with every used slot of a pool, a leaf at a time with its shard locked.
    /// Removed values are freed after the lock.
    pub(crate) fn scan(
        &self,
        pool: u16,
        mut visit: impl FnMut(&mut Index, usize, u32, u32) -> Option<Removed>,
    ) {
        for shard in 0..SHARDS {
            let mut leaf = 0;
            loop {
                let mut index = self.shards[shard].lock();
                // Skip other pools' leaves, but release the lock from time to time.
                let end = index.leaf_high().min(leaf + SCAN_LEAVES);
                leaf = (leaf..end).find(|&leaf| index.is_of(leaf, pool)).unwrap_or(end);
                if leaf == index.leaf_high() {
                    break;
                }
                let mut removed = [const { None }; LEAF_SLOTS];
                for (at, removed) in removed.iter_mut().enumerate() {
                    // The leaf goes with its last slot.
                    if !index.is_of(leaf, pool) {
                        break;
                    }
                    if !index.slot(leaf, at as u32).is_empty() {
                        *removed = visit(&mut index, shard, leaf, at as u32);
                    }
                }
                drop(index);
                leaf += u32::from(leaf < end);
                for removed in removed.into_iter().flatten() {
                    self.finish(removed);
                }
            }
        }
    }
}
