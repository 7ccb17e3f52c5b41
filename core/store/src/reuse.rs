//! Reuse distances: reports requests to the clients' samplers.
//!
//! Off by default: an embedded store pays only for one load. When on, a request for an unsampled key costs a
//! multiplication and a comparison. A value counts as one page, whatever its length.

use std::sync::OnceLock;

use spillway_reuse::{Curve, Sampler};
use spillway_tiers::sync::{AtomicU64, Lock, Ordering};
use spillway_types::ClientId;

use crate::error::Error;
use crate::index::LEAF_SLOTS;
use crate::pool::Access;
use crate::position::HandlePosition;
use crate::samplers::{SamplerState, TOLD, Use, Watched};
use crate::slot::CLIENTS_MAX;
use crate::store::Store;

impl Store {
    /// Starts or stops sampling a client.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn set_sampling(&self, client: ClientId, on: bool) -> Result<(), Error> {
        let (number, _) = self.client(client)?;
        if !on && self.watched(number).is_none() {
            return Ok(());
        }
        let all = self.samplers.get_or_init(|| (0..CLIENTS_MAX).map(|_| OnceLock::new()).collect());
        let watched = all[number].get_or_init(|| {
            let mut sampler = Sampler::default();
            sampler.stop();
            let state = SamplerState { client: ClientId(0), waiting: [0; TOLD], count: 0, sampler };
            let state = Lock::new(state);
            Box::new(Watched { below: AtomicU64::new(0), state })
        });
        let mut state = watched.state.lock();
        let is_on = state.client == client && state.sampler.below() != 0;
        if on && !is_on {
            state.client = client;
            state.count = 0;
            state.sampler.start();
        } else if !on {
            state.count = 0;
            state.sampler.stop();
        }
        watched.below.store(state.sampler.below(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends an interval of a sampled client, and returns its curve. `None` if it is not sampled.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn reuse(&self, client: ClientId) -> Result<Option<Curve>, Error> {
        let (number, _) = self.client(client)?;
        let Some(watched) = self.watched(number) else { return Ok(None) };
        let mut state = watched.state.lock();
        if state.client != client || state.sampler.below() == 0 {
            return Ok(None);
        }
        state.tell_all();
        let curve = state.sampler.interval();
        watched.below.store(state.sampler.below(), Ordering::Relaxed);
        Ok(Some(curve))
    }

    /// Reports a request to a client's sampler.
    #[inline]
    pub(crate) fn tell(&self, access: Access, at: &HandlePosition, what: Use) {
        let Some(all) = self.samplers.get() else { return };
        let Some(watched) = all[usize::from(access.client)].get() else { return };
        let hash = at.key_hash();
        if hash < watched.below.load(Ordering::Relaxed) && !access.is_reserved() {
            watched.tell(hash, what);
        }
    }

    /// Reports to a client's sampler that its last pool is gone. If only one of several pools is gone, its
    /// keys age out instead, because they are not known.
    pub(crate) fn tell_gone(&self, client: ClientId) {
        let Ok((number, _)) = self.client(client) else { return };
        if let Some(watched) = self.watched(number) {
            let mut state = watched.state.lock();
            state.tell_all();
            state.sampler.forget();
        }
    }

    fn watched(&self, number: usize) -> Option<&Watched> {
        self.samplers.get()?[number].get().map(|watched| &**watched)
    }
}

impl HandlePosition {
    /// Mixes the name of the whole handle with the store's secret, from that of its leaf.
    #[inline]
    const fn key_hash(&self) -> u64 {
        let place = (self.index as usize % LEAF_SLOTS) as u64;
        let mixed = (self.hash ^ place << 32 ^ place) as u128 * 0x9e37_79b9_7f4a_7c15;
        (mixed >> 64) as u64 ^ mixed as u64
    }
}
