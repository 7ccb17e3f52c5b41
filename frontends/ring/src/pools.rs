//! The pools of one client, by number.

use spillway_store::{ClientId, PoolId, Store};

/// A cache of lookups. It never returns a pool of another client.
#[derive(Debug, Default)]
pub struct PoolTable {
    known: Vec<(u32, PoolId)>,
}

impl PoolTable {
    /// `client`'s pool with `number`, if it has one.
    #[inline]
    pub fn find(&mut self, store: &Store, client: ClientId, number: u32) -> Option<PoolId> {
        match self.known.iter().find(|entry| entry.0 == number) {
            Some(&(_, id)) if store.has_pool(id) => Some(id),
            _ => self.look_up(store, client, number),
        }
    }

    /// Asks the store, because the pool may be new or its number may belong to another pool by now.
    #[cold]
    fn look_up(&mut self, store: &Store, client: ClientId, number: u32) -> Option<PoolId> {
        self.known.clear();
        let pools = store.pools(client).ok()?;
        // A reserved pool is a block device, which the ring can't access.
        let pools = pools.iter().filter(|pool| pool.reserved_pages == 0);
        self.known.extend(pools.map(|pool| (pool.number, pool.id)));
        self.known.iter().find(|entry| entry.0 == number).map(|entry| entry.1)
    }
}
