//! Removes clients.

use std::time::Duration;

use crate::arrival::{Arrival, moves};
use crate::entry::{Entry, Move};
use crate::error::Error;
use crate::registry::{ClientRegistry, RegistryState};
use crate::views::Origin;
use crate::visits::Line;

impl RegistryState {
    /// Fails while a client's pools are being exported or imported.
    pub(crate) fn is_not_moving(&self, at: usize) -> Result<(), Error> {
        let entry = &self.clients[at];
        let is_moving = entry.exporting || entry.importing;
        if is_moving { Err(Error::Moving(entry.name.clone())) } else { Ok(()) }
    }

    /// The operator is about to change a client's pools: they are no longer what an import has brought.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Moving`].
    pub(crate) fn change_pools(&mut self, name: &str) -> Result<(), Error> {
        let at = self.find(name)?;
        self.is_not_moving(at)?;
        self.clients[at].arrival = Arrival::None;
        Ok(())
    }

    /// Fails if something uses what a client has.
    fn can_go(&self, at: usize) -> Result<(), Error> {
        let entry = &self.clients[at];
        self.is_not_moving(at)?;
        self.without_disk(entry.id)?;
        self.without_loan(&entry.name)?;
        self.without_open_block(&entry.name)
    }
}

impl ClientRegistry {
    /// Removes a client with its pools and devices. Its connections' requests miss from then on.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::Configured`], [`Error::InUse`], [`Error::HasDisk`], [`Error::HasLoan`],
    /// [`Error::Moving`].
    pub fn remove_client(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        if state.clients[at].origin == Origin::Configured {
            return Err(Error::Configured(name.to_owned()));
        }
        self.remove(&mut state, at)?;
        state.remember()
    }

    /// Removes what a client that has moved had here: the client, or the pools of one that is configured.
    ///
    /// # Errors
    /// As [`Self::remove_client`]; [`Error::NotMoved`].
    pub fn remove_moved(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let at = state.find(name)?;
        if !state.clients[at].moved {
            return Err(Error::NotMoved(name.to_owned()));
        }
        if state.clients[at].origin != Origin::Configured {
            self.remove(&mut state, at)?;
            return state.remember();
        }
        state.can_go(at)?;
        let id = state.clients[at].id;
        for pool in self.store.pools(id)?.iter().filter(|pool| moves(pool)) {
            state.blocks.retain(|block| block.record.pool != pool.id.0);
            self.store.destroy_pool(pool.id)?;
        }
        state.clients[at].moving = Move::default();
        state.remember()?;
        drop(state);
        self.changed(id);
        Ok(())
    }

    fn remove(&self, state: &mut RegistryState, at: usize) -> Result<(), Error> {
        state.can_go(at)?;
        let (name, id) = (state.clients[at].name.clone(), state.clients[at].id);
        state.blocks.retain(|block| block.record.client != name);
        state.clients.swap_remove(at);
        self.store.remove_client(id)?;
        Ok(())
    }

    /// Removes unnamed clients that have had no connection for the grace period. One that moves, or whose values have
    /// come by an import, stays.
    pub fn expire(&self) {
        let mut state = self.lock();
        let grace = Duration::from_secs(state.policy.grace_s);
        let with_disk: Vec<_> = state.disks.iter().map(|disk| disk.client).collect();
        let with_loan: Vec<_> = state.loans.iter().map(|loan| loan.client.clone()).collect();
        let over = |entry: &Entry| {
            entry.origin == Origin::Unnamed
                && entry.connections == 0
                && entry.arrival == Arrival::None
                && !(entry.importing || entry.exporting || entry.frozen)
                && !with_disk.contains(&entry.id)
                && !with_loan.contains(&entry.name)
                && entry.idle_since.elapsed() >= grace
        };
        let mut at = 0;
        while at < state.clients.len() {
            if !over(&state.clients[at]) {
                at += 1;
                continue;
            }
            let name = state.clients[at].name.clone();
            match self.remove(&mut state, at) {
                Ok(()) => state.visits.gone(&name),
                Err(error) => {
                    tracing::warn!(client = name, "can't be removed: {error}");
                    at += 1;
                }
            }
        }
        state.programs.expire(grace);
        let (remembered, lines) = (state.remember(), state.visits.take());
        drop(state);
        lines.into_iter().for_each(Line::log);
        if let Err(error) = remembered {
            tracing::error!("{error}");
        }
    }
}
