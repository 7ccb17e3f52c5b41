//! The real client's state machine in the simulated network, and the actors that use it.

use spillway_client::nvme_tcp::association::{Association, Delivery, Step, Ticket};
use spillway_client::nvme_tcp::call::{Call, Outcome, PoolRef};
use spillway_client::nvme_tcp::pipe::Closed;
use spillway_client::nvme_tcp::queue::Digests;
use spillway_client::nvme_tcp::settings::Settings;
use spillway_types::{Key, PoolSpec};
use spillway_wire::auth::Secret;
use spillway_wire::kv::PoolEntry;
use spillway_wire::nvme::Status;

use crate::model::{Slot, Version, value_of, version_of};
use crate::network::{Event, Network, Pipe, Side};
use crate::random::Random;
use crate::target::{HOST, SECRET};

/// Actors of a client. Each has its own object in the client's pool.
pub const ACTORS: usize = 3;
/// Keys of an actor.
const KEYS: u32 = 5;
/// Bytes for a list of pools.
const LIST_BYTES: usize = 4096;
/// Longest value, bytes. Long values travel in several parts.
const VALUE_BYTES_MAX: u64 = 40_000;
/// Time by which an operation may exceed its limit, because the clock is checked only now and then.
const SLACK_US: u64 = 1_000;

/// What an actor is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Put(u32, Version, usize),
    Get(u32),
    Take(u32),
    Delete(u32, Version),
    Exists(u32),
    FlushObject(Version),
    /// Reading a key of another actor. The version must not be older than the floor at the start.
    Peek(usize, u32, Version),
    /// Creating the client's pool.
    Create,
    /// Finding the identity of the pool with this number, which this association returned.
    Identify(u32, u32),
    /// Reading from a lost pool.
    Old(PoolRef),
}

#[derive(Debug)]
struct Actor {
    slots: Vec<Slot>,
    doing: Option<Doing>,
}

#[derive(Debug)]
struct Doing {
    deed: Deed,
    ticket: Ticket,
    value: Vec<u8>,
    room: Vec<u8>,
    began_us: u64,
    /// The association at the start.
    generation: u32,
}

#[derive(Debug, Default)]
struct Lane {
    pipe: Option<Pipe>,
    incoming: Vec<u8>,
    dialling: bool,
}

/// A client with its connections.
#[derive(Debug)]
pub struct SimClient {
    id: usize,
    association: Association,
    generation: u32,
    lanes: Vec<Lane>,
    actors: Vec<Actor>,
    pool: Option<PoolRef>,
    /// The identity of the store that contains the pool.
    pool_identity: u64,
    making_pool: bool,
    lost: Option<PoolRef>,
    versions: Version,
    random: Random,
    tick_at_us: u64,
    /// Operations that ended with an answer.
    pub answered: u64,
    /// Operations that ended without an answer.
    pub failed: u64,
}

impl SimClient {
    /// A client that is not connected yet.
    pub fn new(id: usize, authenticates: bool, mut random: Random) -> Self {
        let mut settings = Settings::new(HOST.to_owned(), [id as u8 + 1; 16]);
        settings.io_queues = random.between(1, 4) as u16;
        settings.depth = random.between(2, 10) as u16;
        settings.digests = Digests { header: random.one_in(4), data: random.one_in(4) };
        if authenticates {
            settings.secret = Secret::parse(SECRET).ok();
        }
        let association = Association::new(settings, random.next());
        let actor = |_| Actor { slots: vec![Slot::default(); KEYS as usize], doing: None };
        Self {
            id,
            generation: association.generation(),
            lanes: (0..association.lanes()).map(|_| Lane::default()).collect(),
            actors: (0..ACTORS).map(actor).collect(),
            association,
            pool: None,
            pool_identity: 0,
            making_pool: false,
            lost: None,
            versions: 0,
            random,
            tick_at_us: 0,
            answered: 0,
            failed: 0,
        }
    }

    /// Handles a connection, or the failure to connect.
    pub fn dialled(
        &mut self,
        network: &mut Network,
        lane: usize,
        generation: u32,
        pipe: Option<Pipe>,
    ) -> Result<(), String> {
        if generation != self.generation {
            if let Some(pipe) = pipe {
                network.close(pipe, Side::Client);
            }
            return Ok(());
        }
        self.lanes[lane].dialling = false;
        match pipe {
            Some(_) => {
                self.lanes[lane].pipe = pipe;
                self.association.dialled(lane, network.now_us());
            }
            None => self.association.closed(Closed::TimedOut, network.now_us()),
        }
        self.go_on(network)
    }

    fn lane_of(&self, pipe: Pipe) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.pipe == Some(pipe))
    }

    /// Whether the connection belongs to this client.
    pub fn has(&self, pipe: Pipe) -> bool {
        self.lane_of(pipe).is_some()
    }

    /// Handles received bytes.
    pub fn receive(
        &mut self,
        network: &mut Network,
        pipe: Pipe,
        bytes: &[u8],
    ) -> Result<(), String> {
        let Some(lane) = self.lane_of(pipe) else { return Ok(()) };
        let mut incoming = core::mem::take(&mut self.lanes[lane].incoming);
        incoming.extend_from_slice(bytes);
        let mut rest = &incoming[..];
        while let Some(delivery) = self.association.receive(lane, &mut rest, network.now_us()) {
            if let Delivery::Data(ticket, offset, data) = delivery {
                let doing = self.actors.iter_mut().filter_map(|actor| actor.doing.as_mut());
                if let Some(doing) = doing.into_iter().find(|doing| doing.ticket == ticket) {
                    doing.room[offset..offset + data.len()].copy_from_slice(data);
                }
            }
        }
        self.lanes[lane].incoming = rest.to_vec();
        self.go_on(network)
    }

    /// Handles the end of a connection.
    pub fn closed(&mut self, network: &mut Network, pipe: Pipe) -> Result<(), String> {
        if self.has(pipe) {
            self.association.closed(Closed::ByPeer, network.now_us());
        }
        self.go_on(network)
    }

    /// Checks the clock.
    pub fn tick(&mut self, network: &mut Network) -> Result<(), String> {
        self.association.tick(network.now_us());
        self.go_on(network)
    }

    /// Handles all pending changes.
    pub fn go_on(&mut self, network: &mut Network) -> Result<(), String> {
        loop {
            self.follow(network);
            for actor in 0..self.actors.len() {
                self.look(network, actor)?;
            }
            while self.association.next_changed().is_some() {}
            let sent = self.flush(network);
            self.follow(network);
            if !sent {
                break;
            }
            self.association.rouse();
        }
        self.step(network);
        let at_us = self.association.tick_at();
        if at_us != u64::MAX && (at_us < self.tick_at_us || self.tick_at_us <= network.now_us()) {
            self.tick_at_us = at_us;
            network.schedule(at_us, Event::Tick(self.id));
        }
        Ok(())
    }

    /// Drops the connections of an association that has ended.
    fn follow(&mut self, network: &mut Network) {
        if self.generation == self.association.generation() {
            return;
        }
        self.generation = self.association.generation();
        for lane in &mut self.lanes {
            if let Some(pipe) = lane.pipe.take() {
                network.close(pipe, Side::Client);
            }
            *lane = Lane::default();
        }
    }

    fn flush(&mut self, network: &mut Network) -> bool {
        let mut sent = false;
        for (number, lane) in self.lanes.iter().enumerate() {
            let outgoing = self.association.outgoing(number);
            let Some(pipe) = lane.pipe.filter(|_| !outgoing.is_empty()) else { continue };
            network.send(pipe, Side::Target, outgoing.bytes());
            outgoing.clear();
            sent = true;
        }
        sent
    }

    fn step(&mut self, network: &mut Network) {
        match self.association.step(network.now_us()) {
            Step::Dial(lane) if !self.lanes[lane].dialling => {
                self.lanes[lane].dialling = true;
                let at_us = network.now_us() + network.delay_us();
                let (client, generation) = (self.id, self.generation);
                network.schedule(at_us, Event::Dial { client, lane, generation });
            }
            Step::Sleep(at_us) => network.schedule(at_us, Event::Tick(self.id)),
            _ => {}
        }
    }

    /// Lets an idle actor begin an operation.
    pub fn act(
        &mut self,
        network: &mut Network,
        actor: usize,
        identity: u64,
    ) -> Result<(), String> {
        if self.actors[actor].doing.is_none() {
            self.begin(network, actor, identity);
        }
        self.go_on(network)
    }

    fn begin(&mut self, network: &mut Network, actor: usize, identity: u64) {
        let Some(pool) = self.pool else {
            if self.making_pool {
                self.rest(network, actor);
            } else {
                self.making_pool = true;
                self.pool_identity = identity;
                self.ask(network, actor, Deed::Create, Call::Create(PoolSpec::PERSISTENT), 0, 0);
            }
            return;
        };
        let index = self.random.below(u64::from(KEYS)) as u32;
        let key = Key::new(actor as u64, index);
        let most = VALUE_BYTES_MAX as usize;
        self.versions += 1;
        let version = self.versions << 8 | self.id as u64;
        match self.random.below(24) {
            0..9 => {
                let bytes = match self.random.below(8) {
                    0 => self.random.between(4097, VALUE_BYTES_MAX),
                    1..4 => self.random.between(8, 4096),
                    _ => 4096,
                } as usize;
                let call = Call::Store(pool, key, bytes as u32);
                self.ask(network, actor, Deed::Put(index, version, bytes), call, version, bytes);
            }
            9..15 => {
                let call = Call::Retrieve(pool, key, most as u32);
                self.ask(network, actor, Deed::Get(index), call, 0, 0);
            }
            15 => {
                let call = Call::Take(pool, key, most as u32);
                self.ask(network, actor, Deed::Take(index), call, 0, 0);
            }
            16..18 => {
                let call = Call::Delete(pool, key);
                self.ask(network, actor, Deed::Delete(index, version), call, 0, 0);
            }
            18 => {
                self.ask(network, actor, Deed::Exists(index), Call::Exists(pool, key), 0, 0);
            }
            19 => {
                let call = Call::FlushObject(pool, actor as u64);
                self.ask(network, actor, Deed::FlushObject(version), call, 0, 0);
            }
            20..23 => {
                let other = self.random.below(ACTORS as u64) as usize;
                let floor = self.actors[other].slots[index as usize].floor;
                let call = Call::Retrieve(pool, Key::new(other as u64, index), most as u32);
                self.ask(network, actor, Deed::Peek(other, index, floor), call, 0, 0);
            }
            _ => match self.lost {
                Some(lost) => {
                    let call = Call::Retrieve(lost, key, most as u32);
                    self.ask(network, actor, Deed::Old(lost), call, 0, 0);
                }
                None => self.rest(network, actor),
            },
        }
    }

    fn rest(&mut self, network: &mut Network, actor: usize) {
        let at_us = network.now_us() + self.random.between(1, 200_000);
        network.schedule(at_us, Event::Act(self.id, actor));
    }

    fn ask(
        &mut self,
        network: &mut Network,
        actor: usize,
        deed: Deed,
        call: Call,
        version: Version,
        bytes: usize,
    ) {
        let now_us = network.now_us();
        let deadline_us = now_us + self.association.settings().call_timeout_us;
        let Some(ticket) = self.association.open(call, deadline_us) else {
            // Impossible: there are more tickets than actors.
            return self.rest(network, actor);
        };
        self.actors[actor].doing = Some(Doing {
            deed,
            ticket,
            value: value_of(version, bytes),
            room: vec![0; room_bytes(&call)],
            began_us: now_us,
            generation: self.generation,
        });
    }

    /// Continues an actor's call, or takes its outcome.
    fn look(&mut self, network: &mut Network, actor: usize) -> Result<(), String> {
        let Some(doing) = &self.actors[actor].doing else { return Ok(()) };
        let Some(outcome) = self.association.outcome(doing.ticket) else {
            let most_us = self.association.settings().call_timeout_us + SLACK_US;
            if network.now_us() > doing.began_us + most_us {
                return Err(format!("{:?} is not answered within its time", doing.deed));
            }
            self.association.push(doing.ticket, &doing.value, network.now_us());
            return Ok(());
        };
        let Some(doing) = self.actors[actor].doing.take() else { return Ok(()) };
        self.association.release(doing.ticket);
        match outcome {
            Outcome::Answered { .. } | Outcome::PoolLost => self.answered += 1,
            _ => self.failed += 1,
        }
        self.judge(actor, &doing, outcome).map_err(|wrong| {
            format!("client {} actor {actor} {:?}: {wrong}", self.id, doing.deed)
        })?;
        if let (Deed::Create, Outcome::Answered { status: 0, result, generation, .. }) =
            (doing.deed, outcome)
        {
            let deed = Deed::Identify(result as u32, generation);
            self.ask(network, actor, deed, Call::Pools(LIST_BYTES as u32), 0, 0);
            return self.look(network, actor);
        }
        self.rest(network, actor);
        Ok(())
    }

    /// Checks an outcome against the model, and updates the model.
    fn judge(&mut self, actor: usize, doing: &Doing, outcome: Outcome) -> Result<(), String> {
        if outcome == Outcome::PoolLost {
            return self.lost_pool(doing);
        }
        let unsure = doing.generation != self.generation;
        let answer = match outcome {
            Outcome::Answered { status, result, bytes, generation } => {
                Some((Status(status), result, bytes, generation))
            }
            _ => None,
        };
        let slots = &mut self.actors[actor].slots;
        match (doing.deed, answer) {
            (Deed::Put(index, version, bytes), Some((Status::SUCCESS, ..))) => {
                slots[index as usize].put(version, bytes);
            }
            (Deed::Put(index, version, _), None | Some((Status::CAPACITY, ..))) => {
                slots[index as usize].clear(version);
            }
            (Deed::Get(index), Some((status, result, bytes, _))) => {
                slots[index as usize].found(found(doing, status, result, bytes)?)?;
            }
            (Deed::Take(index), Some((status, result, bytes, _))) => {
                slots[index as usize].found(found(doing, status, result, bytes)?)?;
                slots[index as usize].clear(0);
            }
            (Deed::Take(index), None) => {
                slots[index as usize].may_be_gone |= matches!(outcome, Outcome::Unknown(_));
            }
            (Deed::Delete(index, version), Some((status, ..))) => {
                let slot = &mut slots[index as usize];
                // A retried delete may have removed the value the first time.
                if status == Status::KEY_NOT_FOUND && !unsure {
                    slot.found(None)?;
                } else if status != Status::SUCCESS && status != Status::KEY_NOT_FOUND {
                    return Err(format!("{status:?}"));
                }
                slot.clear(version);
            }
            (Deed::Delete(index, version), None) => slots[index as usize].clear(version),
            (Deed::Exists(index), Some((status, ..))) => {
                let slot = &slots[index as usize];
                let there = status == Status::SUCCESS;
                if there != slot.stored.is_some() && !slot.may_be_gone {
                    return Err(format!("{status:?}, where {:?} was stored", slot.stored));
                }
            }
            (Deed::FlushObject(version), Some((Status::SUCCESS, ..)) | None) => {
                slots.iter_mut().for_each(|slot| slot.clear(version));
            }
            (Deed::Peek(other, index, floor), Some((Status::SUCCESS, result, bytes, _))) => {
                let value = found(doing, Status::SUCCESS, result, bytes)?.unwrap_or(&[]);
                let version = version_of(value);
                if value != value_of(version, value.len()) || version < floor {
                    return Err(format!("version {version}, older than {floor}"));
                }
                let slot = &mut self.actors[other].slots[index as usize];
                slot.floor = slot.floor.max(version);
            }
            (Deed::Create, _) => self.making_pool = answer.is_some(),
            (Deed::Identify(number, given), _) => self.identified(doing, number, given, answer),
            (Deed::Old(_), _) => return Err(format!("a lost pool answers {outcome:?}")),
            (Deed::Get(_) | Deed::Exists(_) | Deed::Peek(..), _) => match answer {
                Some((Status::KEY_NOT_FOUND, ..)) | None => {}
                Some((status, ..)) => return Err(format!("{status:?}")),
            },
            (_, Some((status, ..))) => return Err(format!("{status:?}")),
        }
        Ok(())
    }

    fn identified(
        &mut self,
        doing: &Doing,
        number: u32,
        given: u32,
        answer: Option<(Status, u64, u32, u32)>,
    ) {
        self.making_pool = false;
        let Some((Status::SUCCESS, count, _, generation)) = answer else { return };
        if generation != given {
            return;
        }
        let entries = doing.room.chunks_exact(PoolEntry::BYTES).take(count as usize);
        let entry = entries.filter_map(|bytes| PoolEntry::decode(bytes).ok());
        if let Some(entry) = entry.into_iter().find(|entry| entry.number == number) {
            self.pool_identity = (entry.identity >> 64) as u64;
            self.pool = self.association.pools().adopt(number, entry.identity, true);
            for actor in &mut self.actors {
                actor.slots = vec![Slot::default(); KEYS as usize];
            }
        }
    }

    /// A pool may be lost only together with its store.
    fn lost_pool(&mut self, doing: &Doing) -> Result<(), String> {
        if let Deed::Old(_) = doing.deed {
            return Ok(());
        }
        if let Some(pool) = self.pool.take() {
            self.lost = Some(pool);
        }
        Ok(())
    }

    /// Why its last association ended.
    pub fn trouble(&self) -> String {
        self.association.trouble().to_string()
    }

    /// The identity of the store that contains the client's pool, if it has one.
    pub const fn pool_identity(&self) -> Option<u64> {
        match self.pool {
            Some(_) => Some(self.pool_identity),
            None => None,
        }
    }
}

/// Bytes of the buffer that a call needs.
const fn room_bytes(call: &Call) -> usize {
    match *call {
        Call::Retrieve(.., bytes) | Call::Take(.., bytes) | Call::Pools(bytes) => bytes as usize,
        _ => 0,
    }
}

/// The value that a retrieve returned.
fn found(doing: &Doing, status: Status, result: u64, bytes: u32) -> Result<Option<&[u8]>, String> {
    match status {
        Status::KEY_NOT_FOUND => Ok(None),
        Status::SUCCESS if result == u64::from(bytes) => Ok(doing.room.get(..bytes as usize)),
        _ => Err(format!("{status:?}, {result} bytes of which {bytes} came")),
    }
}
