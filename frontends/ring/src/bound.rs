//! Bound pools: the server destroys such a pool some time after the last connection that bound it has ended.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use spillway_serving::PoolLog;
use spillway_store::{PoolId, Store};

/// Factor of the grace time where the client did not end the connection, but has to find its way back first: its
/// daemon was restarted, or its guest's agent has ended.
const RETURN_FACTOR: u32 = 6;

/// The bound pools of a server, over all its connections.
#[derive(Debug)]
pub struct BoundPools {
    /// Time for which a pool without a holder stays.
    grace: Duration,
    pools: Mutex<HashMap<PoolId, Holders>>,
    /// Counts the pools that lost their last holder, and wakes the sweeper.
    abandoned: OwnedFd,
}

/// The holders of a pool.
#[derive(Debug)]
enum Holders {
    /// This many connections.
    Connections(u32),
    /// None; the pool stays until this time.
    Nobody(Instant),
}

impl BoundPools {
    /// The pools of this store that were bound to an earlier server: they have no holders yet.
    pub fn new(store: &Store, grace: Duration) -> io::Result<Self> {
        let abandoned = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let until = Instant::now() + grace * RETURN_FACTOR;
        let pools = store.bound_pools().into_iter().map(|pool| (pool, Holders::Nobody(until)));
        Ok(Self { grace, pools: Mutex::new(pools.collect()), abandoned })
    }

    /// Readable when a pool has been abandoned since the last [`Self::sweep`].
    pub const fn abandoned(&self) -> &OwnedFd {
        &self.abandoned
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<PoolId, Holders>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that one more connection holds `pool`.
    fn hold(&self, pool: PoolId) {
        let mut pools = self.pools();
        let holders = pools.entry(pool).or_insert(Holders::Connections(0));
        *holders = match *holders {
            Holders::Connections(count) => Holders::Connections(count + 1),
            Holders::Nobody(_) => Holders::Connections(1),
        };
    }

    /// Records that a connection that held `pool` has ended. The pool stays for `grace` if that was the last one.
    fn let_go(&self, pool: PoolId, grace: Duration) {
        if let Some(holders) = self.pools().get_mut(&pool) {
            *holders = match *holders {
                Holders::Connections(count) if count > 1 => Holders::Connections(count - 1),
                _ => Holders::Nobody(Instant::now() + grace),
            };
            // A full counter is still readable.
            let _ = rustix::io::write(&self.abandoned, &1_u64.to_ne_bytes());
        }
    }

    /// Destroys the pools whose time without a holder has passed. Returns whether other pools without a holder remain.
    pub fn sweep(&self, store: &Store, log: &PoolLog) -> bool {
        // Fails if a timeout caused the call: there is nothing to read then.
        let _ = rustix::io::read(&self.abandoned, &mut [0; 8]);
        let mut abandoned = Vec::new();
        let mut waiting = false;
        self.pools().retain(|&pool, holders| {
            let Holders::Nobody(until) = *holders else { return true };
            let due = Instant::now() >= until;
            if due {
                abandoned.push(pool);
            }
            waiting |= !due;
            !due
        });
        for pool in abandoned {
            // The client may have destroyed the pool already, or the client may have been removed with all its pools.
            match store.destroy_pool(pool) {
                Ok(_) => log.line(format_args!(
                    "pool {} outlived the connections that bound it, and is destroyed",
                    pool.0
                )),
                Err(error) => {
                    tracing::debug!(pool = pool.0, %error, "a bound pool is gone already")
                }
            }
        }
        waiting
    }
}

/// The pools that one connection has bound. Dropping it releases them.
#[derive(Debug)]
pub struct HeldPools<'a> {
    all: &'a BoundPools,
    /// Whether the connection ends though its client may still be there.
    is_cut: &'a AtomicBool,
    pools: HashSet<PoolId>,
}

impl<'a> HeldPools<'a> {
    /// An empty set, of a connection that sets `is_cut` if it ends though its client may still be there.
    pub fn new(all: &'a BoundPools, is_cut: &'a AtomicBool) -> Self {
        Self { all, is_cut, pools: HashSet::new() }
    }

    /// Binds a pool.
    pub fn add(&mut self, pool: PoolId) {
        if self.pools.insert(pool) {
            self.all.hold(pool);
        }
    }
}

impl Drop for HeldPools<'_> {
    fn drop(&mut self) {
        let factor = if self.is_cut.load(Ordering::Relaxed) { RETURN_FACTOR } else { 1 };
        for &pool in &self.pools {
            self.all.let_go(pool, self.all.grace * factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_was_cut_off_has_more_time_to_come_back() {
        let grace = Duration::from_secs(1000);
        let abandoned = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let all = BoundPools { grace, pools: Mutex::default(), abandoned };
        let pool = PoolId(7);
        for (is_cut, factor) in [(false, 1), (true, 6)] {
            let is_cut = AtomicBool::new(is_cut);
            HeldPools::new(&all, &is_cut).add(pool);
            let Holders::Nobody(until) = all.pools()[&pool] else { panic!("it has a holder") };
            let left = until.saturating_duration_since(Instant::now());
            assert!(left <= grace * factor && left > grace * factor - grace / 2, "{left:?}");
        }
    }
}
