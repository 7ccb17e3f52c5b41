//! A blade on another host, over NVMe/TCP.

use core::array;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_client::nvme_tcp::call::{Call, Outcome, PoolRef};
use spillway_client::nvme_tcp::pipe::Dial;
use spillway_client::nvme_tcp::session::{Data, Request, Session};
use spillway_client::nvme_tcp::settings::Settings;
use spillway_client::nvme_tcp::socket::TcpDial;
use spillway_tiers::blade::{Carried, Parcel, Wanted};
use spillway_types::Key;
use spillway_wire::kv::PoolEntry;
use spillway_wire::nvme::Status;

use crate::line::{Connection, NotConnected, Way, both, in_batches};

/// Values of one call to the session.
const BATCH: usize = 32;
/// Size of the buffer for a list of pools, bytes.
const LIST_BYTES: usize = 64 << 10;
/// Time that a listening target may take to accept a connection, µs.
const ANSWERS_WITHIN_US: u64 = 100_000;

/// The transport to a target.
#[derive(Debug)]
pub struct NvmeTcp {
    dial: TcpDial,
    settings: Settings,
    identity: u128,
}

impl NvmeTcp {
    /// The transport to the target at `address`, and to the pool with this identity on it.
    ///
    /// # Errors
    /// Never: an IP address needs no name resolution.
    pub fn new(
        address: SocketAddr,
        settings: Settings,
        timeout: Duration,
        identity: u128,
    ) -> Result<Self, spillway_client::Error> {
        let mut settings = settings;
        let timeout_us = timeout.as_micros() as u64;
        settings.call_timeout_us = timeout_us;
        settings.command_timeout_us = timeout_us / 2;
        settings.connect_timeout_us = timeout_us / 2;
        let dial = TcpDial::new(&address.ip().to_string(), address.port())?;
        Ok(Self { dial, settings, identity })
    }
}

impl Way for NvmeTcp {
    type Connection = Connected;

    fn answers(&self) -> bool {
        self.dial.dial(ANSWERS_WITHIN_US).is_ok()
    }

    fn connect(&self) -> Result<Connected, NotConnected> {
        // The target ends an association when a host of the same id connects, so each association has an id of its own.
        let (mut host_id, mut seed) = ([0; 16], [0; 8]);
        for random in [&mut host_id[..], &mut seed[..]] {
            rustix::rand::getrandom(random, rustix::rand::GetRandomFlags::empty())
                .map_err(|_| NotConnected::NoAnswer)?;
        }
        let settings = Settings { host_id, ..self.settings.clone() };
        let seed = u64::from_le_bytes(seed);
        let session = Session::new(self.dial.clone(), settings, seed);
        let pool = find(&session, self.identity)?;
        Ok(Connected { session, pool })
    }
}

/// Finds a pool on the target by its identity.
fn find(session: &Session<TcpDial>, identity: u128) -> Result<PoolRef, NotConnected> {
    let mut list = vec![0; LIST_BYTES];
    let mut requests = [Request::new(Call::Pools(LIST_BYTES as u32), Data::In(&mut list))];
    session.run(&mut requests);
    let [Request { outcome, .. }] = requests;
    let Some((Status::SUCCESS, result, _)) = answer(outcome) else {
        return Err(NotConnected::NoAnswer);
    };
    let count = result as u32 as usize;
    let entries = list.chunks_exact(PoolEntry::BYTES).take(count);
    let found = entries
        .filter_map(|entry| PoolEntry::decode(entry).ok())
        .find(|entry| entry.identity == identity);
    // A list that does not fit may have it further on.
    let is_whole = count <= LIST_BYTES / PoolEntry::BYTES;
    let missing = if is_whole { NotConnected::NoPool } else { NotConnected::NoAnswer };
    let number = found.ok_or(missing)?.number;
    session
        .with(|association| association.pools().adopt(number, identity, true))
        .ok_or(NotConnected::NoAnswer)
}

/// Status, result and bytes of an answer; `None` if there was none.
fn answer(outcome: Option<Outcome>) -> Option<(Status, u64, u32)> {
    match outcome? {
        Outcome::Answered { status, result, bytes, .. } => {
            Some((Status(status).code(), result, bytes))
        }
        _ => None,
    }
}

/// The outcome of a removal. A value that is not there needs none.
fn removed(outcome: Option<Outcome>) -> Carried {
    match answer(outcome) {
        Some((Status::SUCCESS | Status::KEY_NOT_FOUND, ..)) => Carried::Done,
        Some(_) => Carried::Refused,
        None => Carried::Lost,
    }
}

/// A session and the run's pool in it.
#[derive(Debug)]
pub struct Connected {
    session: Session<TcpDial>,
    pool: PoolRef,
}

impl Connected {
    /// Makes a call without data. Returns whether it was answered, with any status.
    fn ask(&self, call: Call) -> bool {
        let mut requests = [Request::new(call, Data::None)];
        self.session.run(&mut requests);
        answer(requests[0].outcome).is_some()
    }
}

impl Connection for Connected {
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]) {
        for (parcels, outcomes) in parcels.chunks(BATCH).zip(outcomes.chunks_mut(BATCH)) {
            let mut requests: [Request<'_>; BATCH] = array::from_fn(|at| match parcels.get(at) {
                Some(Parcel { key, value }) => {
                    let call = Call::Store(self.pool, *key, value.len() as u32);
                    Request::new(call, Data::Out(value))
                }
                None => Request::new(Call::Pools(0), Data::None),
            });
            self.session.run(&mut requests[..parcels.len()]);
            for (request, outcome) in requests.iter().zip(outcomes) {
                *outcome = match answer(request.outcome) {
                    Some((Status::SUCCESS, ..)) => Carried::Done,
                    Some(_) => Carried::Refused,
                    None => Carried::Lost,
                };
            }
        }
    }

    fn get(&self, wanted: &mut [Wanted<'_>]) {
        for wanted in wanted.chunks_mut(BATCH) {
            let mut outcomes = [None; BATCH];
            {
                let mut rooms = wanted.iter_mut().filter(|one| one.outcome == Carried::Lost);
                let mut count = 0;
                let mut requests: [Request<'_>; BATCH] = array::from_fn(|_| match rooms.next() {
                    Some(one) => {
                        count += 1;
                        let call = Call::Retrieve(self.pool, one.key, one.room.len() as u32);
                        Request::new(call, Data::In(one.room))
                    }
                    None => Request::new(Call::Pools(0), Data::None),
                });
                self.session.run(&mut requests[..count]);
                for (outcome, request) in outcomes.iter_mut().zip(&requests) {
                    *outcome = request.outcome;
                }
            }
            let asked = wanted.iter_mut().filter(|one| one.outcome == Carried::Lost);
            for (one, outcome) in asked.zip(outcomes) {
                let length = one.room.len();
                one.outcome = match answer(outcome) {
                    Some((Status::SUCCESS, result, bytes))
                        if result as u32 as usize == length && bytes as usize == length =>
                    {
                        Carried::Done
                    }
                    Some(_) => Carried::Missing,
                    None => Carried::Lost,
                };
            }
        }
    }

    fn flush(&self, keys: &[Key]) -> Carried {
        in_batches(keys, BATCH, |keys| {
            let mut requests: [Request<'_>; BATCH] = array::from_fn(|at| match keys.get(at) {
                Some(&key) => Request::new(Call::Delete(self.pool, key), Data::None),
                None => Request::new(Call::Pools(0), Data::None),
            });
            self.session.run(&mut requests[..keys.len()]);
            let outcomes = requests[..keys.len()].iter().map(|request| removed(request.outcome));
            outcomes.fold(Carried::Done, both)
        })
    }

    fn flush_object(&self, object: u64) -> bool {
        self.ask(Call::FlushObject(self.pool, object))
    }

    fn destroy_pool(&self) -> bool {
        self.ask(Call::Destroy(self.pool))
    }

    fn tend(&self) {
        self.session.tend();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_removed_only_if_the_target_says_so() {
        let answered = |status: Status| {
            let (status, result, bytes, generation) = (status.0, 0, 0, 0);
            removed(Some(Outcome::Answered { status, result, bytes, generation }))
        };
        assert_eq!(answered(Status::SUCCESS), Carried::Done);
        assert_eq!(answered(Status::KEY_NOT_FOUND), Carried::Done);
        for refused in [Status::INTERNAL, Status::INVALID_NAMESPACE, Status::UNRECOVERED] {
            assert_eq!(answered(refused), Carried::Refused, "{refused}");
        }
        assert_eq!(removed(Some(Outcome::PoolLost)), Carried::Lost);
        assert_eq!(removed(None), Carried::Lost);
        assert_eq!(both(Carried::Refused, Carried::Done), Carried::Refused);
        assert_eq!(both(Carried::Refused, Carried::Lost), Carried::Lost);
    }
}
