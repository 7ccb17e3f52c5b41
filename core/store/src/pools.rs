//! Creates, joins, leaves and destroys pools.

use spillway_tiers::Use;
use spillway_tiers::sync::{AtomicU64, Ordering};
use spillway_types::{ClientId, Lifetime, PoolId, PoolInfo, PoolSpec, Sharing};

use crate::client::client_number;
use crate::error::Error;
use crate::flushed::Flushed;
use crate::index::{Index, LEAF_SLOTS};
use crate::pool::{Access, BOUND, Control, HANDLES_MAX, Handle, POOL_GROUP, Pool, PoolShard};
use crate::position::{Removed, SHARDS};
use crate::slot::PREPAID;
use crate::store::Store;

/// Leaves looked at while a shard is locked.
const SCAN_LEAVES: u32 = 64;

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
