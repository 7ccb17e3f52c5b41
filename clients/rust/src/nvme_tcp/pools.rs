//! The pools that a session has opened, and whether they still exist.
//!
//! A target numbers its pools. After a restart without its content it gives the same numbers to other pools. So each
//! pool has a random identity. The session compares identities each time an association connects. A pool whose identity
//! has changed is lost for good: its calls get [`Outcome::PoolLost`](super::call::Outcome::PoolLost), never another
//! pool's values.

use super::call::PoolRef;

/// Most pools that a session can open.
const POOLS_MAX: usize = 4096;

/// The state of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was closed.
    Closed,
    /// It is the same as when it was opened.
    Open,
    /// It does not exist any more.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Pool {
    serial: u32,
    number: u32,
    identity: u128,
    private: bool,
    standing: Standing,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Pools {
    pools: Vec<Pool>,
    serial: u32,
}

impl Pools {
    /// Adds a pool of the target. The same pool gets the same reference. `None` when the table is full.
    pub fn adopt(&mut self, number: u32, identity: u128, private: bool) -> Option<PoolRef> {
        let same = |pool: &Pool| {
            pool.standing == Standing::Open && (pool.number, pool.identity) == (number, identity)
        };
        if let Some(place) = self.pools.iter().position(same) {
            return Some(self.reference(place));
        }
        self.serial += 1;
        let pool =
            Pool { serial: self.serial, number, identity, private, standing: Standing::Open };
        let free = self.pools.iter().position(|pool| pool.standing == Standing::Closed);
        let place = match free {
            Some(place) => {
                self.pools[place] = pool;
                place
            }
            None if self.pools.len() < POOLS_MAX => {
                self.pools.push(pool);
                self.pools.len() - 1
            }
            None => return None,
        };
        Some(self.reference(place))
    }

    /// Marks a pool as destroyed or no longer used.
    pub fn close(&mut self, pool: PoolRef) {
        if let Some(pool) = self.find_mut(pool) {
            pool.standing = Standing::Closed;
        }
    }

    fn reference(&self, place: usize) -> PoolRef {
        PoolRef { place: place as u16, serial: self.pools[place].serial }
    }

    fn find(&self, pool: PoolRef) -> Option<&Pool> {
        self.pools.get(usize::from(pool.place)).filter(|found| found.serial == pool.serial)
    }

    fn find_mut(&mut self, pool: PoolRef) -> Option<&mut Pool> {
        self.pools.get_mut(usize::from(pool.place)).filter(|found| found.serial == pool.serial)
    }

    /// The target's number of a usable pool.
    pub(super) fn number(&self, pool: PoolRef) -> Option<u32> {
        let found = self.find(pool)?;
        (found.standing == Standing::Open).then_some(found.number)
    }

    pub(super) fn standing(&self, pool: PoolRef) -> Standing {
        self.find(pool).map_or(Standing::Closed, |pool| pool.standing)
    }

    /// Whether only one client uses the pool.
    pub(super) fn is_private(&self, pool: PoolRef) -> bool {
        self.find(pool).is_some_and(|pool| pool.private)
    }

    /// Marks a pool as lost.
    pub(super) fn lose(&mut self, pool: PoolRef) {
        if let Some(pool) = self.find_mut(pool) {
            pool.standing = Standing::Lost;
        }
    }

    /// The usable pools: reference, number, identity.
    pub(super) fn open(&self) -> impl Iterator<Item = (PoolRef, u32, u128)> {
        let open = |(_, pool): &(usize, &Pool)| pool.standing == Standing::Open;
        let name =
            |(place, pool): (usize, &Pool)| (self.reference(place), pool.number, pool.identity);
        self.pools.iter().enumerate().filter(open).map(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_another_identity_is_another_pool() {
        let mut pools = Pools::default();
        let first = pools.adopt(1, 10, true).unwrap();
        assert_eq!(pools.adopt(1, 10, true), Some(first));
        assert_eq!(pools.number(first), Some(1));
        assert_eq!(pools.open().collect::<Vec<_>>(), [(first, 1, 10)]);
        pools.lose(first);
        assert_eq!(pools.open().next(), None);
        assert_eq!((pools.number(first), pools.standing(first)), (None, Standing::Lost));
        let second = pools.adopt(1, 11, true).unwrap();
        assert_ne!(first, second);
        pools.close(first);
        assert_eq!(pools.number(second), Some(1));
        let third = pools.adopt(2, 12, false).unwrap();
        assert_eq!((third.place, pools.standing(first)), (first.place, Standing::Closed));
    }
}
