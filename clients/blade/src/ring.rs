//! A blade in a daemon on the same host, over shared memory.

use core::array;
use std::path::PathBuf;
use std::time::Duration;

use spillway_client::{Error, Operation, Outcome, Pool, Ring, RingOptions, Store};
use spillway_tiers::blade::{Carried, Parcel, Wanted};
use spillway_types::{Get, Key, Put};

use crate::line::{Connection, NotConnected, Way, both, in_batches};

/// Operations of one batch.
const BATCH: usize = 32;

/// The transport to a daemon.
#[derive(Debug)]
pub struct RingWay {
    path: PathBuf,
    options: RingOptions,
    identity: u128,
}

impl RingWay {
    /// The transport to the daemon that listens at `path`, and to the pool with this identity.
    pub fn new(path: PathBuf, timeout: Duration, identity: u128) -> Self {
        let usual = RingOptions::default();
        // One task for each core pages in, and one more pages out.
        let connections_max = usual.connections_max + 1;
        let options = RingOptions { timeout, connections_max, ..usual };
        Self { path, options, identity }
    }
}

impl Way for RingWay {
    type Connection = Connected;

    fn answers(&self) -> bool {
        // Connecting to a daemon that has ended fails at once, so no check is needed.
        true
    }

    fn connect(&self) -> Result<Connected, NotConnected> {
        let no_answer = |_| NotConnected::NoAnswer;
        let ring = Ring::connect_with(&self.path, self.options).map_err(no_answer)?;
        let pools = ring.pools().map_err(no_answer)?;
        let found = pools.iter().find(|pool| pool.identity == self.identity);
        let pool = found.ok_or(NotConnected::NoPool)?.pool;
        Ok(Connected { ring, pool })
    }
}

/// A ring and the run's pool.
#[derive(Debug)]
pub struct Connected {
    ring: Ring,
    pool: Pool,
}

impl Connected {
    /// Executes up to [`BATCH`] operations, and passes the outcome of each to the caller.
    fn batch(
        &self,
        operations: &mut [Operation<'_>],
        mut show: impl FnMut(usize, &Result<Outcome, Error>),
    ) {
        if let [operation] = operations {
            show(0, &self.ring.execute(operation));
            return;
        }
        let mut outcomes: [_; BATCH] = array::from_fn(|_| Err(Error::Lost));
        let outcomes = &mut outcomes[..operations.len()];
        self.ring.batch_into(operations, outcomes);
        for (at, outcome) in outcomes.iter().enumerate() {
            show(at, outcome);
        }
    }

    /// Filler for the unused entries of a batch.
    const fn nothing(&self) -> Operation<'static> {
        Operation::Exists { pool: self.pool, key: Key::new(0, 0) }
    }
}

/// Whether the daemon has answered.
const fn is_answered(outcome: &Result<Outcome, Error>) -> bool {
    !matches!(outcome, Err(Error::Lost | Error::Timeout | Error::Protocol(_) | Error::Io(_)))
}

/// The outcome of a removal. A value that is not there needs none.
const fn removed(outcome: &Result<Outcome, Error>) -> Carried {
    match outcome {
        Ok(_) => Carried::Done,
        answer if is_answered(answer) => Carried::Refused,
        Err(_) => Carried::Lost,
    }
}

impl Connection for Connected {
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]) {
        for (parcels, outcomes) in parcels.chunks(BATCH).zip(outcomes.chunks_mut(BATCH)) {
            let mut operations: [Operation<'_>; BATCH] =
                array::from_fn(|at| match parcels.get(at) {
                    Some(&Parcel { key, value }) => Operation::Put { pool: self.pool, key, value },
                    None => self.nothing(),
                });
            self.batch(&mut operations[..parcels.len()], |at, outcome| {
                outcomes[at] = match outcome {
                    Ok(Outcome::Put(Put::Stored)) => Carried::Done,
                    outcome if is_answered(outcome) => Carried::Refused,
                    _ => Carried::Lost,
                };
            });
        }
    }

    fn get(&self, wanted: &mut [Wanted<'_>]) {
        for wanted in wanted.chunks_mut(BATCH) {
            let mut outcomes = [Carried::Lost; BATCH];
            {
                let mut rooms = wanted.iter_mut().filter(|one| one.outcome == Carried::Lost);
                let mut count = 0;
                let mut lengths = [0; BATCH];
                let mut operations: [Operation<'_>; BATCH] = array::from_fn(|at| {
                    let Some(one) = rooms.next() else { return self.nothing() };
                    count += 1;
                    lengths[at] = one.room.len();
                    Operation::Get { pool: self.pool, key: one.key, value: one.room }
                });
                self.batch(&mut operations[..count], |at, outcome| {
                    outcomes[at] = match outcome {
                        Ok(Outcome::Get(Get::Hit(length))) if *length == lengths[at] => {
                            Carried::Done
                        }
                        outcome if is_answered(outcome) => Carried::Missing,
                        _ => Carried::Lost,
                    };
                });
            }
            let asked = wanted.iter_mut().filter(|one| one.outcome == Carried::Lost);
            for (one, outcome) in asked.zip(outcomes) {
                one.outcome = outcome;
            }
        }
    }

    fn flush(&self, keys: &[Key]) -> Carried {
        in_batches(keys, BATCH, |keys| {
            let mut all = Carried::Done;
            let mut operations: [Operation<'_>; BATCH] = array::from_fn(|at| match keys.get(at) {
                Some(&key) => Operation::Flush { pool: self.pool, key },
                None => self.nothing(),
            });
            self.batch(&mut operations[..keys.len()], |_, outcome| {
                all = both(all, removed(outcome));
            });
            all
        })
    }

    fn flush_object(&self, object: u64) -> bool {
        is_answered(&self.ring.execute(&mut Operation::FlushObject { pool: self.pool, object }))
    }

    fn destroy_pool(&self) -> bool {
        !matches!(self.ring.close_pool(self.pool), Err(Error::Lost | Error::Timeout))
    }

    fn tend(&self) {}
}
