//! A store in a daemon of this host, over shared memory; or, out of a guest, of the host that it runs on.

mod connect;
mod fork;
mod lane;
mod lanes;
mod polling;

use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_types::{Key, PoolSpec, Statistics, VALUE_BYTES_MAX};
use spillway_wire::nvme::Command;
use spillway_wire::{kv, nvme};

use crate::lists;
use crate::{Error, Operation, Outcome, Pool, PoolInfo, Store};
use connect::Peer;
use lane::Lane;
use lanes::Lanes;

/// Settings of a [`Ring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Operations in flight at most on each connection, 1 to 64. The daemon may grant fewer.
    pub depth: u16,
    /// Connections at most. Each thread that has operations in flight uses one.
    pub connections_max: u32,
    /// How long an answer is looked for before the thread sleeps, where that is seen to pay.
    pub poll: Duration,
    /// How long an answer is waited for.
    pub timeout: Duration,
}

impl Default for RingOptions {
    /// As many connections as there are cores, at most 8; no polling on a single core.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        Self {
            depth: lane::SLOTS_MAX as u16,
            connections_max: cores.clamp(1, 8),
            poll: Duration::from_micros(if cores > 1 { 50 } else { 0 }),
            timeout: Duration::from_secs(30),
        }
    }
}

/// A client of a daemon on this host: a few queue pairs in shared memory, of which each thread that
/// calls has one to itself for as long as the call takes.
///
/// When the daemon ends, or does not keep to the protocol, all calls give [`Error::Lost`] from then on;
/// what it still has is found by opening another one ([`Store::pools`]). After a fork the child's calls
/// give [`Error::Forked`]; the parent's go on.
#[derive(Debug)]
pub struct Ring {
    path: PathBuf,
    lanes: Lanes,
}

impl Ring {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Refused`].
    pub fn connect(path: &Path) -> Result<Self, Error> {
        Self::connect_with(path, RingOptions::default())
    }

    /// Connects with settings of one's own; a depth of 0 is taken for 1, and one that is no power of
    /// two for the one below.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_with(path: &Path, options: RingOptions) -> Result<Self, Error> {
        let peer = Peer::Daemon(path.to_owned());
        Ok(Self { path: path.to_owned(), lanes: Lanes::open(peer, options)? })
    }

    /// Connects a program of a guest to the daemon of its host, by the agent that listens at `path`: through windows in this
    /// guest's memory, the first of `pages` huge pages of 2 MiB, 1 to 9, and the others of one. Values may be as long as the first has room for.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_from_guest(path: &Path, pages: usize) -> Result<Self, Error> {
        // The host's processors poll, too: also on a single one of this guest's.
        let poll = Duration::from_micros(50);
        let options = RingOptions { poll, ..RingOptions::default() };
        let peer = Peer::Agent { path: path.to_owned(), pages };
        Ok(Self { path: path.to_owned(), lanes: Lanes::open(peer, options)? })
    }

    /// The socket that this is connected to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Binds a private pool to this connection and to the forks of this process that keep its descriptors:
    /// the daemon destroys it some seconds after the last connection that bound it has ended.
    ///
    /// # Errors
    /// [`Error::NoPool`], and those of the way to the store. A daemon that does not know the command
    /// gives [`Error::Failed`].
    pub fn bind_pool(&self, pool: Pool) -> Result<(), Error> {
        let command = Command::new(kv::admin::BIND_POOL, 0, lane::namespace(pool)?);
        self.admin(command, &[], &mut []).map(|_| ())
    }

    /// [`Store::batch`] for callers that can't allocate: `outcomes` has a place for each operation.
    ///
    /// # Panics
    /// When there are fewer places than operations.
    pub fn batch_into(
        &self,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
    ) {
        let outcomes = &mut outcomes[..operations.len()];
        outcomes.fill_with(|| Err(Error::Lost));
        let mut large = Vec::new();
        let mut done = self.lanes.any(|lane: &mut Lane| {
            lane.batch(operations, outcomes, &mut large)?;
            if !lane.takes(operations, &large) {
                // All of them by the one lane that does, in their order.
                return Ok(());
            }
            lane.batch_large(operations, outcomes, &mut large)
        });
        if done.is_ok() && !large.is_empty() {
            done = self.lanes.first(|lane| lane.batch_large(operations, outcomes, &mut large));
        }
        if let Err(error) = done {
            // The first of those that have no answer says why.
            let unanswered = |outcome: &&mut Result<_, _>| matches!(outcome, Err(Error::Lost));
            if let Some(first) = outcomes.iter_mut().find(unanswered) {
                *first = Err(error);
            }
            return;
        }
        for at in large {
            outcomes[at] = self.execute_large(&mut operations[at]);
        }
    }

    /// Carries out what a lane has put off: one operation at a time, with the whole data area.
    #[cold]
    fn execute_large(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error> {
        self.lanes.first(|lane| lane.execute_large(operation))
    }

    /// Sends a command with a little data, or for a little data.
    fn admin(&self, command: Command, sent: &[u8], answer: &mut [u8]) -> Result<u64, Error> {
        self.lanes.first(|lane| lane.admin(command, sent, answer))
    }
}

impl Store for Ring {
    fn open_pool(&self, spec: PoolSpec) -> Result<Pool, Error> {
        let command = Command::new(kv::admin::CREATE_POOL, 0, 0);
        Ok(Pool(self.admin(command, &kv::CreatePool(spec).encode(), &mut [])?))
    }

    fn join_pool(&self, uuid: u128) -> Result<Pool, Error> {
        let command = Command::new(kv::admin::JOIN_POOL, 0, 0);
        Ok(Pool(self.admin(command, &uuid.to_be_bytes(), &mut [])?))
    }

    fn close_pool(&self, pool: Pool) -> Result<(), Error> {
        let command = Command::new(kv::admin::DESTROY_POOL, 0, lane::namespace(pool)?);
        self.admin(command, &[], &mut []).map(|_| ())
    }

    fn pools(&self) -> Result<Vec<PoolInfo>, Error> {
        let fetch =
            |answer: &mut [u8]| self.admin(Command::new(kv::admin::LIST_POOLS, 0, 0), &[], answer);
        let info = |entry: kv::PoolEntry| PoolInfo {
            pool: Pool(entry.number.into()),
            spec: entry.spec,
            pages: entry.pages,
            identity: entry.identity,
        };
        Ok(lists::pools(fetch)?.into_iter().map(info).collect())
    }

    fn list(&self, pool: Pool, from: Option<Key>, most: usize) -> Result<Vec<Key>, Error> {
        let namespace = lane::namespace(pool)?;
        lists::keys(from, most, |start, answer| {
            let bytes = answer.len() as u32;
            self.admin(kv::list(0, namespace, start, bytes), &[], answer).map(|_| ())
        })
    }

    #[inline]
    fn execute(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error> {
        match self.lanes.any(|lane| lane.execute(operation))? {
            Some(outcome) => Ok(outcome),
            None => self.execute_large(operation),
        }
    }

    fn batch(&self, operations: &mut [Operation<'_>], outcomes: &mut Vec<Result<Outcome, Error>>) {
        outcomes.resize_with(operations.len(), || Err(Error::Lost));
        self.batch_into(operations, outcomes);
    }

    fn statistics(&self) -> Result<Statistics, Error> {
        let mut bytes = [0; kv::STATISTICS_BYTES];
        self.admin(Command::new(kv::admin::STATISTICS, 0, 0), &[], &mut bytes)?;
        kv::decode_statistics(&bytes).map_err(|_| Error::Protocol("statistics too short"))
    }
}

/// What a status other than success means for a command about values.
#[cold]
fn error_of(status: nvme::Status, bytes: usize) -> Error {
    match status.code() {
        nvme::Status::INVALID_NAMESPACE => Error::NoPool,
        nvme::Status::UNRECOVERED => Error::Corrupt,
        nvme::Status::VALUE_SIZE => Error::Length { bytes, limit: VALUE_BYTES_MAX },
        _ => Error::Failed(status.to_string()),
    }
}
