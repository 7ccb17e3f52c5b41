//! A store in a daemon on this host, over shared memory; or, from a guest, in a daemon on its host.

mod connect;
mod fork;
mod lane;
mod lanes;
mod polling;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_types::{Key, PoolSpec, Statistics, VALUE_BYTES_MAX};
use spillway_wire::nvme::Command;
use spillway_wire::{kv, nvme};

use crate::lists;
use crate::{Error, Operation, Outcome, Pool, PoolInfo, Store};
pub use connect::Peer;
use lane::Lane;
use lanes::Lanes;

/// How long polling for an answer may pay off.
const POLL: Duration = Duration::from_micros(50);

/// Settings of a [`Ring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Most operations in flight on each connection, 1 to 64. The daemon may grant fewer.
    pub depth: u16,
    /// Most connections. Each thread with operations in flight uses one.
    pub connections_max: u32,
    /// How long a thread polls for an answer before it sleeps, if polling pays off.
    pub poll: Duration,
    /// How long to wait for an answer.
    pub timeout: Duration,
}

impl Default for RingOptions {
    /// As many connections as there are cores, at most 8; no polling on a single core.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        Self {
            depth: lane::SLOTS_MAX as u16,
            connections_max: cores.clamp(1, 8),
            poll: if cores > 1 { POLL } else { Duration::ZERO },
            timeout: Duration::from_secs(30),
        }
    }
}

impl RingOptions {
    /// The defaults for a peer. In a guest with one processor a thread polls too, because the server runs on the
    /// host's processors.
    pub fn of(peer: &Peer) -> Self {
        match peer {
            Peer::Daemon(_) => Self::default(),
            Peer::Agent { .. } => Self { poll: POLL, ..Self::default() },
        }
    }
}

/// A client of a daemon on this host. It has a few queue pairs in shared memory; a calling thread
/// has one to itself during its call.
///
/// When the daemon ends, or violates the protocol, all calls fail with [`Error::Lost`] from then on.
/// Open another client to find the pools that it still has ([`Store::pools`]). After a fork, the
/// child's calls fail with [`Error::Forked`]; the parent's continue to work.
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

    /// Connects with the given settings. A depth of 0 counts as 1; one that is not a power of two is
    /// rounded down.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_with(path: &Path, options: RingOptions) -> Result<Self, Error> {
        Self::connect_to(Peer::Daemon(path.to_owned()), options)
    }

    /// Connects a guest's program to the daemon on its host, through the agent that listens at `path` and windows in
    /// this guest's memory. For `pages`, see [`Peer::Agent`].
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_from_guest(path: &Path, pages: usize) -> Result<Self, Error> {
        let peer = Peer::Agent { path: path.to_owned(), pages };
        let options = RingOptions::of(&peer);
        Self::connect_to(peer, options)
    }

    /// Connects to `peer` with the given settings, as [`Self::connect_with`].
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_to(peer: Peer, options: RingOptions) -> Result<Self, Error> {
        Ok(Self { path: peer.path().to_owned(), lanes: Lanes::open(peer, options)? })
    }

    /// The connected socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Binds a private pool to this connection, and to forks of this process that keep its descriptors.
    /// The daemon destroys the pool some seconds after the last connection that bound it has ended.
    ///
    /// # Errors
    /// [`Error::NoPool`], and errors of the connection. [`Error::Failed`] if the daemon does not
    /// know the command.
    pub fn bind_pool(&self, pool: Pool) -> Result<(), Error> {
        let command = Command::new(kv::admin::BIND_POOL, 0, lane::namespace(pool)?);
        self.admin(command, &[], &mut []).map(|_| ())
    }

    /// [`Store::batch`] for callers that can't allocate: `outcomes` has an element for each
    /// operation.
    ///
    /// # Panics
    /// If there are fewer elements than operations.
    pub fn batch_into(
        &self,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
    ) {
        self.run_batch(operations, &mut outcomes[..operations.len()], None);
    }

    /// Executes operations. Sends none after `until`; returns whether it has sent all.
    fn run_batch(
        &self,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
        until: Option<Instant>,
    ) -> bool {
        outcomes.fill_with(|| Err(Error::Lost));
        let mut large = Vec::new();
        let mut done = self.lanes.any(|lane: &mut Lane| {
            lane.batch(operations, outcomes, &mut large, until)?;
            if !lane.takes(operations, &large) {
                // All of them on the one suitable lane, in their order.
                return Ok(());
            }
            lane.batch_large(operations, outcomes, &mut large, until)
        });
        if done.is_ok() && !large.is_empty() {
            done =
                self.lanes.first(|lane| lane.batch_large(operations, outcomes, &mut large, until));
        }
        if let Err(error) = done {
            // The first of those without an answer has the error.
            let unanswered = |outcome: &&mut Result<_, _>| matches!(outcome, Err(Error::Lost));
            if let Some(first) = outcomes.iter_mut().find(unanswered) {
                *first = Err(error);
            }
            return true;
        }
        let mut sent_all = true;
        for at in large {
            sent_all &= !lane::is_over(until);
            outcomes[at] = if sent_all {
                self.execute_large(&mut operations[at])
            } else {
                Err(Error::Timeout)
            };
        }
        sent_all
    }

    /// Executes the operations that a lane has deferred: one at a time, with the whole data area.
    #[cold]
    fn execute_large(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error> {
        self.lanes.first(|lane| lane.execute_large(operation))
    }

    /// Sends a command with or for a little data.
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

    fn batch_until(
        &self,
        operations: &mut [Operation<'_>],
        outcomes: &mut Vec<Result<Outcome, Error>>,
        until: Instant,
    ) -> bool {
        outcomes.resize_with(operations.len(), || Err(Error::Lost));
        self.run_batch(operations, outcomes, Some(until))
    }

    fn statistics(&self) -> Result<Statistics, Error> {
        let mut bytes = [0; kv::STATISTICS_BYTES];
        self.admin(Command::new(kv::admin::STATISTICS, 0, 0), &[], &mut bytes)?;
        kv::decode_statistics(&bytes).map_err(|_| Error::Protocol("statistics too short"))
    }
}

/// Translates a status other than success of a command about values.
#[cold]
fn error_of(status: nvme::Status, bytes: usize) -> Error {
    match status.code() {
        nvme::Status::INVALID_NAMESPACE => Error::NoPool,
        nvme::Status::UNRECOVERED => Error::Corrupt,
        nvme::Status::VALUE_SIZE => Error::Length { bytes, limit: VALUE_BYTES_MAX },
        _ => Error::Failed(status.to_string()),
    }
}
