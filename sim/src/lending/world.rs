//! The world: hosts, network and clock, and the drivers that execute the machines' actions.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use spillway_lending::{
    Access, Backup, Body, CopyLocation, DeviceId, Epoch, Event, HostId, Kept, LoanId, Machine,
    Message, Order, Peer, PoolIdentity, Settings,
};

use super::clock::Clock;
use super::host::{Host, SLAB_BYTES};
use super::injected_bug::InjectedBug;
use super::{Options, Summary, Violation};
use crate::random::Random;

/// An event.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A message arrives.
    Deliver(Message),
    /// A machine's requested wake-up.
    Wake,
    /// The monitor reads the memory, and the kernel swaps.
    Read,
    /// The registry reports the hosts.
    Peers,
    /// The driver has completed work in the data plane.
    Work(Work),
    /// The machine gets an event.
    Tell(Event),
    /// The daemon starts again.
    Restart { keeps_store: bool },
    /// A host's programs change their memory demand.
    Demand,
    /// A fault occurs.
    Fault,
    /// The operator gives an order.
    Operator(Order),
}

/// Work that takes a driver time.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Reserve {
        loan: LoanId,
        slabs: u32,
    },
    Released {
        loan: LoanId,
        slabs: u64,
    },
    Attach {
        device: DeviceId,
    },
    Detach {
        device: DeviceId,
    },
    Place {
        device: DeviceId,
        slab: u32,
        copy: u8,
        place: CopyLocation,
    },
    /// For [`InjectedBug::NoFencing`].
    Forget {
        device: DeviceId,
        loan: LoanId,
    },
}

/// An entry of the queue: its time, its order among those of the same time, its host, and the host's boot.
struct Entry {
    at_us: u64,
    serial: u64,
    host: usize,
    boot: Option<u32>,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at_us, self.serial).cmp(&(other.at_us, other.serial))
    }
}

/// See the module's documentation.
pub(super) struct World {
    pub now_us: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    pub random: Random,
    pub hosts: Vec<Host>,
    pub names: BTreeMap<HostId, usize>,
    pub settings: Settings,
    pub bug: Option<InjectedBug>,
    pub summary: Summary,
    pub is_calm: bool,
    /// Lost or repeated messages, per thousand.
    pub loss_permille: u64,
    /// Messages that take seconds, per thousand.
    pub late_permille: u64,
    pub delay_us: u64,
    is_traced: bool,
    /// The last request number for each loan, for [`InjectedBug::StaleAck`].
    pub sequences: BTreeMap<LoanId, u32>,
    /// Until when a fault kept each loan's messages or hosts.
    pub struck_until_us: BTreeMap<LoanId, u64>,
}

impl World {
    pub fn new(random: Random, settings: Settings, options: &Options) -> Self {
        Self {
            now_us: 0,
            serial: 0,
            queue: BinaryHeap::new(),
            random,
            hosts: Vec::new(),
            names: BTreeMap::new(),
            settings,
            bug: options.bug,
            summary: Summary::default(),
            is_calm: false,
            loss_permille: 0,
            late_permille: 0,
            delay_us: 200,
            is_traced: options.is_traced,
            sequences: BTreeMap::new(),
            struck_until_us: BTreeMap::new(),
        }
    }

    /// Adds a host with this many slabs of memory, whose programs want `demand_bytes`.
    pub fn add_host(&mut self, slabs: u64, rack: u64, demand_bytes: u64) {
        let at = self.hosts.len();
        let name = format!("h{at:04}");
        let id = HostId::new(&name).expect("a name made of letters and digits");
        self.names.insert(id.clone(), at);
        let clock = self.clock(at);
        self.hosts.push(Host {
            id,
            rack: format!("r{rack}"),
            total_bytes: slabs * SLAB_BYTES,
            demand_bytes,
            machine: None,
            boot: 0,
            paused_until_us: 0,
            mute_until_us: 0,
            deaf_until_us: 0,
            clock,
            is_slow: false,
            wake_us: u64::MAX,
            pools: BTreeMap::new(),
            changing_slabs: 0,
            blocks: vec![None; slabs as usize],
            gone: Default::default(),
            devices: BTreeMap::new(),
            file: BTreeMap::new(),
            is_file_lost: false,
            spare_bytes: 0,
            gathering: BTreeMap::new(),
            asked: BTreeMap::new(),
            recalls: BTreeMap::new(),
            reading: Default::default(),
            differences: BTreeMap::new(),
        });
        self.start(at, false);
        // Spread the readings over time.
        let offset_us = self.random.below(1_000_000);
        self.schedule(offset_us, at, None, What::Read);
        let offset_us = 1_000_000 + self.random.below(1_000_000);
        self.schedule(offset_us, at, None, What::Peers);
    }

    fn clock(&mut self, at: usize) -> Clock {
        let clock = Clock::new(self.random.next(), self.random.next());
        let is_wrong = self.bug == Some(InjectedBug::FastClock) && at.is_multiple_of(2);
        if is_wrong { clock.faster_by(20) } else { clock }
    }

    /// The time that a host's clock shows.
    pub fn now(&self, at: usize) -> Duration {
        self.hosts[at].clock.at(self.now_us)
    }

    pub fn schedule(&mut self, in_us: u64, host: usize, boot: Option<u32>, what: What) {
        self.serial += 1;
        let (at_us, serial) = (self.now_us + in_us, self.serial);
        self.queue.push(Reverse(Entry { at_us, serial, host, boot, what }));
    }

    /// Starts a host's daemon, with the loans that its store kept, if any.
    pub fn start(&mut self, at: usize, keeps_store: bool) {
        let (epoch, seed) = (Epoch(self.random.next()), self.random.next());
        let host = &mut self.hosts[at];
        host.boot += 1;
        host.wake_us = u64::MAX;
        host.changing_slabs = 0;
        if !keeps_store {
            let loans: Vec<LoanId> = host.pools.keys().cloned().collect();
            for loan in loans {
                host.gone.insert(host.pools[&loan].identity);
                host.end_pool(&loan);
            }
        }
        let kept = host
            .pools
            .iter()
            .map(|(loan, pool)| Kept {
                loan: loan.clone(),
                access: access(pool.identity),
                slabs: pool.blocks.len() as u32,
                slab_bytes: SLAB_BYTES,
            })
            .collect();
        let now = host.clock.at(self.now_us);
        let id = host.id.clone();
        host.machine = Some(Machine::new(id, epoch, seed, self.settings.clone(), kept, now));
    }

    /// Ends a host's daemon: its devices and its work in progress are lost.
    pub fn stop(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.machine = None;
        host.boot += 1;
        host.devices.clear();
        host.file.clear();
        host.is_file_lost = false;
        host.gathering.clear();
        host.asked.clear();
        host.recalls.clear();
        host.differences.clear();
        host.demand_bytes = host.total_bytes / 10 * 3;
    }

    /// Processes the next event. Returns false when none is left before `until_us`.
    pub fn advance(&mut self, until_us: u64) -> Result<bool, Violation> {
        let Some(Reverse(next)) = self.queue.peek() else { return Ok(false) };
        if next.at_us > until_us {
            return Ok(false);
        }
        let Some(Reverse(entry)) = self.queue.pop() else { return Ok(false) };
        self.now_us = entry.at_us;
        self.summary.steps += 1;
        let Entry { host: at, boot, what, .. } = entry;
        if boot.is_some_and(|boot| boot != self.hosts[at].boot) {
            return Ok(true);
        }
        let paused_until_us = self.hosts[at].paused_until_us;
        if paused_until_us > self.now_us && !matches!(what, What::Fault | What::Demand) {
            self.schedule(paused_until_us - self.now_us, at, boot, what);
            return Ok(true);
        }
        self.happen(at, what)?;
        Ok(true)
    }

    fn happen(&mut self, at: usize, what: What) -> Result<(), Violation> {
        match what {
            What::Deliver(message) => self.deliver(at, message),
            What::Wake => {
                self.hosts[at].wake_us = u64::MAX;
                self.look(at)
            }
            What::Read => self.read(at),
            What::Peers => {
                let in_us = 5_000_000 + self.random.below(5_000_000);
                self.schedule(in_us, at, None, What::Peers);
                let peers = self.peers(at);
                self.step(at, Event::Peers(peers))
            }
            What::Work(work) => self.work(at, work),
            What::Tell(Event::LostPlaces { .. }) if self.bug == Some(InjectedBug::UnheardLoss) => {
                Ok(())
            }
            What::Tell(event) => self.step(at, event),
            What::Restart { keeps_store } => {
                self.start(at, keeps_store);
                let peers = self.peers(at);
                self.step(at, Event::Peers(peers))
            }
            What::Demand => {
                self.change_demand();
                Ok(())
            }
            What::Fault => {
                self.fault();
                Ok(())
            }
            What::Operator(order) => {
                if matches!(order, Order::Return | Order::Drain) {
                    let devices = self.hosts[at].devices.values_mut();
                    devices.for_each(|device| device.is_leaving = true);
                }
                self.step(at, Event::Operator(order))
            }
        }
    }

    fn peers(&self, at: usize) -> Vec<Peer> {
        let others = self.hosts.iter().enumerate().filter(|(other, _)| *other != at);
        others
            .map(|(_, host)| Peer {
                host: host.id.clone(),
                rack: host.rack.clone(),
                spare_bytes: host.spare_bytes,
            })
            .collect()
    }

    fn deliver(&mut self, at: usize, mut message: Message) -> Result<(), Violation> {
        let host = &self.hosts[at];
        if !host.is_reachable(self.now_us) {
            self.strike(message.body.loan(), self.now_us);
            return Ok(());
        }
        if let Body::MemBorAck(ack) = &mut message.body {
            match self.bug {
                Some(InjectedBug::StaleAck) => {
                    ack.sequence = self.sequences.get(&ack.loan).copied().unwrap_or(ack.sequence);
                }
                Some(InjectedBug::LongLease) => ack.lease_ms *= 2,
                _ => {}
            }
        }
        // A message must survive encoding and decoding.
        let read = Message::decode(&message.encode());
        if read.as_ref() != Ok(&message) {
            return Err(
                self.violation(at, format!("a message does not survive its journey: {read:?}"))
            );
        }
        self.step(at, Event::Received(message))
    }

    fn read(&mut self, at: usize) -> Result<(), Violation> {
        self.schedule(1_000_000, at, None, What::Read);
        if !self.hosts[at].is_up() {
            return Ok(());
        }
        self.swap(at)?;
        self.tell_lost(at)?;
        self.look(at)?;
        let host = &mut self.hosts[at];
        host.spare_bytes = host.machine.as_ref().map_or(0, Machine::spare_bytes);
        self.check_waits(at)?;
        self.check_stale(at)?;
        self.check_view(at)?;
        self.check_copies(at)
    }

    /// Passes a reading of its host's memory to a machine.
    fn look(&mut self, at: usize) -> Result<(), Violation> {
        let mut reading = self.hosts[at].reading();
        self.hosts[at].reading = reading.clone();
        let upper_bytes = Settings::share(reading.total_bytes, self.settings.upper_permille);
        if self.bug == Some(InjectedBug::NoReserve) && reading.used_bytes <= upper_bytes {
            reading.total_bytes *= 2;
        }
        if self.bug == Some(InjectedBug::BlindGrant) && reading.used_bytes <= upper_bytes {
            reading.used_bytes = reading.lent_used_bytes;
        }
        self.step(at, Event::Memory(reading))
    }

    /// Passes an event to a machine, and executes its actions.
    pub fn step(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let now = self.now(at);
        if self.is_traced {
            self.trace(at, &format!("{event:?}"));
        }
        let clock = self.hosts[at].clock;
        let Some(machine) = &mut self.hosts[at].machine else { return Ok(()) };
        let mut actions = Vec::new();
        machine.handle(now, event, &mut actions);
        let wake_us = machine.wake_at().map(|wake| clock.when(wake));
        for action in actions {
            if self.is_traced {
                self.trace(at, &format!("    {action:?}"));
            }
            self.carry_out(at, action)?;
        }
        if let Some(wake_us) = wake_us.map(|wake_us| wake_us.max(self.now_us + 1))
            && wake_us < self.hosts[at].wake_us
        {
            self.hosts[at].wake_us = wake_us;
            let boot = self.hosts[at].boot;
            self.schedule(wake_us - self.now_us, at, Some(boot), What::Wake);
        }
        self.check(at)
    }

    fn trace(&self, at: usize, line: &str) {
        let line: String = line.chars().take(400).collect();
        println!("{:>11.6} {} {line}", self.now_us as f64 / 1e6, self.hosts[at].id);
    }

    pub fn violation(&self, at: usize, what: String) -> Violation {
        Violation { at_us: self.now_us, host: self.hosts[at].id.to_string(), what }
    }

    /// The number of copies that a slab should have.
    pub fn copies_wanted(&self) -> u32 {
        if self.settings.backup == Backup::None { 1 } else { 2 }
    }
}

pub(super) fn access(pool: PoolIdentity) -> Access {
    Access { address: "127.0.0.1:4420".into(), pool, nqn: None }
}
