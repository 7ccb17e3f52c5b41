//! The samplers of clients that are watched for how soon they want their pages back.

use std::sync::OnceLock;

use spillway_reuse::Sampler;
use spillway_tiers::sync::{AtomicU64, Lock, Ordering};
use spillway_types::ClientId;

/// Requests reported to a sampler in one batch: its tables are in the cache for all except the first.
pub(crate) const TOLD: usize = 512;
/// The low bits of a hash that hold the kind of use.
const USE_BITS: u64 = 3;

/// Samplers by their clients' numbers. They stay for clients that get the same number later.
pub(crate) type Samplers = OnceLock<Box<[OnceLock<Box<Watched>>]>>;

/// A client's sampler.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Watched {
    /// As [`Sampler::below`]; read without the lock, a moment late.
    pub(crate) below: AtomicU64,
    pub(crate) state: Lock<SamplerState>,
}

/// What is behind the lock of a sampler.
#[derive(Debug)]
pub(crate) struct SamplerState {
    /// The sampler's present client.
    pub(crate) client: ClientId,
    /// Unreported uses: hashes, with the kind of use in their low bits.
    pub(crate) waiting: [u64; TOLD],
    pub(crate) count: usize,
    pub(crate) sampler: Sampler,
}

/// What is told.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Use {
    Put,
    Get,
    Take,
    Flush,
}

impl Watched {
    /// Notes a use of a key that is sampled.
    #[cold]
    pub(crate) fn tell(&self, hash: u64, what: Use) {
        let mut state = self.state.lock();
        let at = state.count;
        state.waiting[at] = hash & !USE_BITS | what as u64;
        state.count = at + 1;
        if state.count == TOLD {
            state.tell_all();
            self.below.store(state.sampler.below(), Ordering::Relaxed);
        }
    }
}

impl SamplerState {
    /// Reports the pending uses to the sampler, in order.
    pub(crate) fn tell_all(&mut self) {
        let count = core::mem::take(&mut self.count);
        let (waiting, sampler) = (&self.waiting[..count], &mut self.sampler);
        for told in waiting {
            let hash = told & !USE_BITS;
            match told & USE_BITS {
                it if it == Use::Put as u64 => sampler.put(hash),
                it if it == Use::Get as u64 => sampler.get(hash),
                it if it == Use::Take as u64 => sampler.take(hash),
                _ => sampler.flush(hash),
            }
        }
    }
}
