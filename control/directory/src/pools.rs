//! The operator's view of pools.

use spillway_store::PoolInfo;
use spillway_types::{ClientId, PoolSpec, Sharing};

use crate::arrival::Arrival;
use crate::error::Error;
use crate::registry::{ClientRegistry, RegistryState};
use crate::views::PoolView;

impl ClientRegistry {
    /// All pools, by number; a shared one once for each member.
    ///
    /// # Errors
    /// Only the store's own.
    pub fn pools(&self) -> Result<Vec<PoolView>, Error> {
        let state = self.lock();
        let mut views = Vec::new();
        for entry in &state.clients {
            for pool in self.store.pools(entry.id)? {
                views.push(view(&state, entry.id, &pool));
            }
        }
        views.sort_by(|a, b| (a.number, &a.client).cmp(&(b.number, &b.client)));
        Ok(views)
    }

    /// Creates a pool for a client. For a shared pool, authorises the client and joins the pool if
    /// it exists.
    ///
    /// # Errors
    /// [`Error::NoClient`], and refusals of the store.
    pub fn create_pool(&self, client: &str, spec: PoolSpec) -> Result<PoolView, Error> {
        let mut state = self.lock();
        let at = state.find(client)?;
        state.change_pools(client)?;
        let id = state.clients[at].id;
        if let Sharing::Shared { uuid } = spec.sharing {
            self.store.authorise(id, uuid)?;
            if !state.clients[at].shared.contains(&uuid) {
                state.clients[at].shared.push(uuid);
            }
        }
        let pool = self.store.create_pool(id, spec)?;
        state.remember()?;
        drop(state);
        self.changed(id);
        let state = self.lock();
        let pools = self.store.pools(id)?;
        let made = pools.iter().find(|known| known.id == pool);
        made.map(|made| view(&state, id, made)).ok_or(Error::Store(spillway_store::Error::NoPool))
    }

    /// Destroys a pool; the members of a shared one all leave it.
    ///
    /// # Errors
    /// [`Error::NoPool`]; [`Error::InUse`] when a block device in it is open; [`Error::HasDisk`];
    /// [`Error::HasLoan`]; [`Error::Moving`].
    pub fn destroy_pool(&self, number: u32) -> Result<(), Error> {
        self.is_not_lent(number)?;
        let block =
            self.lock().blocks.iter().find_map(|block| {
                (block.record.number == number).then(|| block.record.name.clone())
            });
        if let Some(name) = block {
            return self.destroy_block(&name);
        }
        let mut state = self.lock();
        let mut members = Vec::new();
        for (at, entry) in state.clients.iter().enumerate() {
            for pool in self.store.pools(entry.id)? {
                if pool.number == number {
                    let disk = state.disks.iter().find(|disk| disk.pool == pool.id);
                    disk.map_or(Ok(()), |disk| Err(Error::HasDisk(disk.name.clone())))?;
                    state.is_not_moving(at)?;
                    members.push(entry.id);
                    match pool.spec.sharing {
                        Sharing::Private => self.store.destroy_pool(pool.id)?,
                        Sharing::Shared { .. } => self.store.leave_pool(pool.id)?,
                    }
                }
            }
        }
        if members.is_empty() {
            return Err(Error::NoPool(number));
        }
        for &client in &members {
            state.of(client).into_iter().for_each(|entry| entry.arrival = Arrival::None);
        }
        state.remember()?;
        drop(state);
        members.into_iter().for_each(|client| self.changed(client));
        Ok(())
    }
}

fn view(state: &RegistryState, client: ClientId, pool: &PoolInfo) -> PoolView {
    let block = state.blocks.iter().find(|block| block.record.pool == pool.id.0);
    PoolView {
        number: pool.number,
        client: state.name_of(client),
        spec: pool.spec,
        pages: pool.pages,
        reserved_pages: pool.reserved_pages,
        block: block.map(|block| block.record.name.clone()),
    }
}
