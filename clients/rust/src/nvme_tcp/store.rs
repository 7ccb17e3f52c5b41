//! The [`Store`] trait over a session.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use spillway_types::{
    Get, Key, Lifetime, PoolSpec, Put, Refusal, Sharing, Statistics, VALUE_BYTES_MAX,
};
use spillway_wire::auth::Secret;
use spillway_wire::kv::{self, PoolEntry};
use spillway_wire::nvme::Status;

use super::call::{Call, Outcome as Ended, PoolRef};
use super::dial::HostDial;
use super::session::{Data, Request, Session};
use super::settings::{Options, Settings};
use crate::{Error, Operation, Outcome, Pool, PoolInfo, Store, lists};

/// Marks the handles of ephemeral pools.
const EPHEMERAL: u64 = 1 << 63;

/// A store on another host, over NVMe/TCP.
#[derive(Debug)]
pub struct NvmeTcp {
    session: Arc<Session<HostDial>>,
    process: rustix::process::Pid,
    stopping: Arc<AtomicBool>,
    tender: Option<JoinHandle<()>>,
}

impl NvmeTcp {
    /// Connects to a target, with TLS or without. A thread keeps an idle connection alive.
    ///
    /// # Errors
    /// [`Error::Unreachable`] with the reason when the target can't be reached within the time of a call, or refuses
    /// this host; [`Error::Connect`] for a host name without an address; [`Error::Secret`] for a file without a secret;
    /// [`Error::Tls`], [`Error::TlsFiles`].
    pub fn open(
        tls: bool,
        host: &str,
        port: u16,
        subsystem: Option<&str>,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut id = [0; 24];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        let (host_id, seed) = id.split_at(16);
        let mut settings =
            Settings::new(options.host_nqn()?, host_id.try_into().unwrap_or([0; 16]));
        if let Some(subsystem) = subsystem {
            settings.subsystem = subsystem.to_owned();
        }
        if let Some(path) = &options.secret_file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Error::Secret { path: path.clone(), why: error.to_string() })?;
            let secret = Secret::parse(&text)
                .map_err(|error| Error::Secret { path: path.clone(), why: error.to_string() })?;
            settings.secret = Some(secret);
        }
        options.apply(&mut settings);
        let dial = HostDial::new(tls, host, port, options)?;
        let seed = u64::from_le_bytes(seed.try_into().unwrap_or([1; 8]));
        let session = Arc::new(Session::new(dial, settings, seed));
        session.connect().map_err(Error::Unreachable)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let tender = thread::Builder::new().name("spillway-tend".into()).spawn({
            let (session, stopping) = (Arc::clone(&session), Arc::clone(&stopping));
            move || tend(&session, &stopping)
        })?;
        Ok(Self { session, process: rustix::process::getpid(), stopping, tender: Some(tender) })
    }

    fn check_process(&self) -> Result<(), Error> {
        match rustix::process::getpid() == self.process {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// Makes one call that carries no value.
    fn ask(&self, call: Call, data: Data<'_>) -> Result<Answer, Error> {
        self.check_process()?;
        let mut requests = [Request::new(call, data)];
        self.session.run(&mut requests);
        Answer::of(requests[0].outcome)
    }

    /// The client's pools as the target lists them, and the generation of the association that listed them.
    fn entries(&self) -> Result<(Vec<PoolEntry>, u32), Error> {
        let generation = Cell::new(0);
        let entries = lists::pools(|bytes| {
            let answer = self.ask(Call::Pools(bytes.len() as u32), Data::In(bytes))?;
            generation.set(answer.generation);
            if answer.status.is_success() {
                Ok(answer.result & 0xffff_ffff)
            } else {
                Err(Error::of_pools(answer.status))
            }
        })?;
        Ok((entries, generation.get()))
    }

    /// Opens the pool whose number the target has just returned.
    fn adopt(&self, given: &Answer) -> Result<Pool, Error> {
        let (entries, generation) = self.entries()?;
        let number = given.result as u32;
        let entry = entries.iter().find(|entry| entry.number == number).ok_or(Error::NoPool)?;
        // The number identifies this pool only within the association that returned it.
        if generation != given.generation {
            return Err(Error::Lost);
        }
        self.take_up(entry)
    }

    /// The handle of a pool of the target.
    fn take_up(&self, entry: &PoolEntry) -> Result<Pool, Error> {
        let private = matches!(entry.spec.sharing, Sharing::Private);
        let adopt = |association: &mut super::association::Association| {
            association.pools().adopt(entry.number, entry.identity, private)
        };
        let pool = self.session.with(adopt).ok_or(Error::Full)?;
        let ephemeral = if entry.spec.lifetime == Lifetime::Ephemeral { EPHEMERAL } else { 0 };
        Ok(Pool(u64::from(pool.serial) << 16 | u64::from(pool.place) | ephemeral))
    }
}

impl Drop for NvmeTcp {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The connection and the thread are the parent's.
            return;
        }
        self.stopping.store(true, Ordering::Release);
        self.session.stop();
        if let Some(tender) = self.tender.take() {
            tender.thread().unpark();
            // The thread ends without a panic: a panic would end the program.
            let _ = tender.join();
        }
    }
}

/// Keeps the session alive until it is stopped.
fn tend(session: &Session<HostDial>, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        let at_us = session.tend();
        let wait_us = at_us.saturating_sub(super::session::now_us());
        thread::park_timeout(Duration::from_micros(wait_us));
    }
}

/// A target's answer.
#[derive(Clone, Copy, Debug)]
struct Answer {
    status: Status,
    result: u64,
    bytes: u32,
    generation: u32,
}

impl Answer {
    fn of(outcome: Option<Ended>) -> Result<Self, Error> {
        match outcome {
            Some(Ended::Answered { status, result, bytes, generation }) => {
                Ok(Self { status: Status(status), result, bytes, generation })
            }
            Some(Ended::Unreachable(trouble)) => Err(Error::Unreachable(trouble)),
            Some(Ended::Unknown(_)) => Err(Error::Lost),
            Some(Ended::PoolLost) => Err(Error::PoolLost),
            None => Err(Error::Protocol("a call without an outcome")),
        }
    }
}

const fn pool_ref(pool: Pool) -> PoolRef {
    PoolRef { place: pool.0 as u16, serial: (pool.0 >> 16) as u32 }
}

/// Translates an error status of the target.
fn failed(status: Status) -> Error {
    match status.code() {
        Status::INVALID_NAMESPACE => Error::NoPool,
        Status::UNRECOVERED => Error::Corrupt,
        _ => Error::Failed(status.to_string()),
    }
}

/// The call of an operation.
fn call_of(operation: &Operation<'_>) -> Result<Call, Error> {
    // A retrieve never returns more bytes than a value can have.
    let room = |value: &[u8]| value.len().min(VALUE_BYTES_MAX) as u32;
    Ok(match operation {
        Operation::Put { pool, key, value } => {
            if value.is_empty() || value.len() > VALUE_BYTES_MAX {
                return Err(Error::Length { bytes: value.len(), limit: VALUE_BYTES_MAX });
            }
            Call::Store(pool_ref(*pool), *key, value.len() as u32)
        }
        Operation::Get { pool, key, value } => Call::Retrieve(pool_ref(*pool), *key, room(value)),
        Operation::Take { pool, key, value } => Call::Take(pool_ref(*pool), *key, room(value)),
        Operation::Flush { pool, key } => Call::Delete(pool_ref(*pool), *key),
        Operation::FlushObject { pool, object } => Call::FlushObject(pool_ref(*pool), *object),
        Operation::Exists { pool, key } => Call::Exists(pool_ref(*pool), *key),
    })
}

fn request_of<'o>(operation: &'o mut Operation<'_>) -> Result<Request<'o>, Error> {
    let call = call_of(operation)?;
    let data = match operation {
        Operation::Put { value, .. } => Data::Out(value),
        Operation::Get { value, .. } | Operation::Take { value, .. } => Data::In(value),
        _ => Data::None,
    };
    Ok(Request::new(call, data))
}

/// Translates the end of a call into the outcome of its operation.
fn outcome_of(call: Call, pool: Pool, ended: Option<Ended>) -> Result<Outcome, Error> {
    if ended == Some(Ended::PoolLost) && pool.0 & EPHEMERAL != 0 {
        // Values of an ephemeral pool may vanish at any time, even all at once.
        return Ok(match call {
            Call::Store(..) => Outcome::Put(Put::Refused(Refusal::NoPool)),
            Call::Retrieve(..) | Call::Take(..) => Outcome::Get(Get::Miss),
            Call::Exists(..) => Outcome::Exists(false),
            _ => Outcome::Flushed(0),
        });
    }
    let answer = Answer::of(ended)?;
    let status = answer.status.code();
    let found = status == Status::SUCCESS;
    let missed = status == Status::KEY_NOT_FOUND;
    Ok(match call {
        Call::Store(..) => Outcome::Put(match status {
            Status::SUCCESS => Put::Stored,
            // The protocol does not distinguish the two reasons.
            Status::CAPACITY => Put::Refused(Refusal::AtTarget),
            Status::NOT_READY => Put::Refused(Refusal::Frozen),
            _ => return Err(failed(status)),
        }),
        Call::Retrieve(..) | Call::Take(..) if missed => Outcome::Get(Get::Miss),
        Call::Retrieve(..) | Call::Take(..) if status == Status::VALUE_SIZE => {
            Outcome::Get(Get::Short(answer.result as u32 as usize))
        }
        // The value is longer than the buffer, which has its beginning.
        Call::Retrieve(_, _, room)
            if found && answer.bytes == room && answer.result > u64::from(room) =>
        {
            Outcome::Get(Get::Short(answer.result as u32 as usize))
        }
        Call::Retrieve(..) | Call::Take(..) if found => {
            if answer.result != u64::from(answer.bytes) {
                return Err(Error::Protocol("a value of another length than the target says"));
            }
            Outcome::Get(Get::Hit(answer.bytes as usize))
        }
        Call::Delete(..) if found || missed => Outcome::Flushed(u64::from(found)),
        Call::FlushObject(..) if found => Outcome::Flushed(answer.result & 0xffff_ffff),
        Call::Exists(..) if found || missed => Outcome::Exists(found),
        _ => return Err(failed(status)),
    })
}

impl Store for NvmeTcp {
    fn open_pool(&self, spec: PoolSpec) -> Result<Pool, Error> {
        let given = self.ask(Call::Create(spec), Data::None)?;
        match given.status.is_success() {
            true => self.adopt(&given),
            false => Err(Error::of_pools(given.status)),
        }
    }

    fn join_pool(&self, uuid: u128) -> Result<Pool, Error> {
        let given = self.ask(Call::Join(uuid), Data::None)?;
        match given.status.is_success() {
            true => self.adopt(&given),
            false => Err(Error::of_pools(given.status)),
        }
    }

    fn close_pool(&self, pool: Pool) -> Result<(), Error> {
        let name = pool_ref(pool);
        let answer = self.ask(Call::Destroy(name), Data::None);
        self.session.with(|association| association.pools().close(name));
        match answer {
            Ok(answer) if !answer.status.is_success() => Err(Error::of_pools(answer.status)),
            Ok(_) | Err(Error::PoolLost) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn pools(&self) -> Result<Vec<PoolInfo>, Error> {
        let info = |entry: &PoolEntry| {
            let (spec, pages, identity) = (entry.spec, entry.pages, entry.identity);
            Ok(PoolInfo { pool: self.take_up(entry)?, spec, pages, identity })
        };
        self.entries()?.0.iter().map(info).collect()
    }

    fn list(&self, pool: Pool, from: Option<Key>, most: usize) -> Result<Vec<Key>, Error> {
        lists::keys(from, most, |start, bytes| {
            let call = Call::List(pool_ref(pool), start, bytes.len() as u32);
            let answer = self.ask(call, Data::In(bytes))?;
            if answer.status.is_success() { Ok(()) } else { Err(failed(answer.status)) }
        })
    }

    fn execute(&self, operation: &mut Operation<'_>) -> Result<Outcome, Error> {
        self.check_process()?;
        let pool = operation.pool();
        let request = request_of(operation)?;
        let call = request.call;
        let mut requests = [request];
        self.session.run(&mut requests);
        outcome_of(call, pool, requests[0].outcome)
    }

    fn batch(&self, operations: &mut [Operation<'_>], outcomes: &mut Vec<Result<Outcome, Error>>) {
        outcomes.clear();
        if let Err(error) = self.check_process() {
            outcomes.extend(operations.iter().map(|_| Err(Error::Forked)));
            drop(error);
            return;
        }
        let pools: Vec<Pool> = operations.iter().map(Operation::pool).collect();
        let mut requests = Vec::with_capacity(operations.len());
        for operation in operations {
            match request_of(operation) {
                Ok(request) => {
                    requests.push(request);
                    outcomes.push(Ok(Outcome::Exists(false)));
                }
                Err(error) => outcomes.push(Err(error)),
            }
        }
        self.session.run(&mut requests);
        let mut ended = requests.iter();
        for (outcome, pool) in outcomes.iter_mut().zip(pools) {
            if outcome.is_ok()
                && let Some(request) = ended.next()
            {
                *outcome = outcome_of(request.call, pool, request.outcome);
            }
        }
    }

    fn statistics(&self) -> Result<Statistics, Error> {
        let mut counters = [0; kv::STATISTICS_BYTES];
        let call = Call::Statistics(counters.len() as u32);
        let answer = self.ask(call, Data::In(&mut counters))?;
        if !answer.status.is_success() {
            return Err(failed(answer.status));
        }
        kv::decode_statistics(&counters).map_err(|_| Error::Protocol("statistics"))
    }
}
