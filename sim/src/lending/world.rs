//! The world: hosts, network and clock, and the drivers that carry out what the machines want.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use spillway_lending::{
    Access, Action, Backup, Body, DeviceId, Epoch, Event, HostId, Kept, LoanId, Machine, Message,
    Note, Order, Peer, Place, PoolIdentity, Settings,
};

use super::host::{Device, Grant, Host, SLAB_BYTES, Slab};
use super::plant::Plant;
use super::{Options, Summary, Violation};
use crate::random::Random;

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A message arrives.
    Deliver(Message),
    /// A machine wanted to look at the clock.
    Wake,
    /// The monitor reads the memory, and the kernel swaps.
    Read,
    /// The registry says which hosts there are.
    Peers,
    /// The driver has done something in the data plane.
    Work(Work),
    /// The machine learns of something.
    Tell(Event),
    /// The daemon starts again.
    Restart { keeps_store: bool },
    /// Programs want more or less memory; one host.
    Demand,
    /// Something breaks.
    Fault,
    /// The operator says something.
    Operator(Order),
}

/// What takes a driver time.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Reserve { loan: LoanId, slabs: u32 },
    Released { loan: LoanId, slabs: u64 },
    Attach { device: DeviceId },
    Detach { device: DeviceId },
    Place { device: DeviceId, slab: u32, copy: u8, place: Place },
}

/// An entry of the queue: when, in which order among those of one time, at which host, in which boot.
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

/// See the module.
pub(super) struct World {
    pub now_us: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    pub random: Random,
    pub hosts: Vec<Host>,
    pub names: BTreeMap<HostId, usize>,
    pub settings: Settings,
    pub plant: Option<Plant>,
    pub summary: Summary,
    pub is_calm: bool,
    /// Messages lost or repeated, out of a thousand.
    pub loss_permille: u64,
    /// Messages that take seconds, out of a thousand.
    pub late_permille: u64,
    pub delay_us: u64,
    is_traced: bool,
    /// The last number of a request for each loan, for [`Plant::StaleAck`].
    sequences: BTreeMap<LoanId, u32>,
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
            plant: options.plant,
            summary: Summary::default(),
            is_calm: false,
            loss_permille: 0,
            late_permille: 0,
            delay_us: 200,
            is_traced: options.is_traced,
            sequences: BTreeMap::new(),
        }
    }

    /// Adds a host of this many slabs of memory, which wants `demand_bytes` of it.
    pub fn add_host(&mut self, slabs: u64, rack: u64, demand_bytes: u64) {
        let at = self.hosts.len();
        let name = format!("h{at:04}");
        let id = HostId::new(&name).expect("a name made of letters and digits");
        self.names.insert(id.clone(), at);
        self.hosts.push(Host {
            id,
            rack: format!("r{rack}"),
            total_bytes: slabs * SLAB_BYTES,
            demand_bytes,
            machine: None,
            boot: 0,
            paused_until_us: 0,
            cut_until_us: 0,
            excused_until_us: 0,
            is_slow: false,
            wake_us: u64::MAX,
            pools: BTreeMap::new(),
            changing_slabs: 0,
            blocks: vec![None; slabs as usize],
            gone: Default::default(),
            devices: BTreeMap::new(),
            file: BTreeMap::new(),
            spare_bytes: 0,
            gathering: BTreeMap::new(),
            asked: BTreeMap::new(),
            recalls: BTreeMap::new(),
        });
        self.start(at, false);
        // Not all at the same time.
        let offset_us = self.random.below(1_000_000);
        self.schedule(offset_us, at, None, What::Read);
        let offset_us = 1_000_000 + self.random.below(1_000_000);
        self.schedule(offset_us, at, None, What::Peers);
    }

    pub const fn now(&self) -> Duration {
        Duration::from_micros(self.now_us)
    }

    pub fn schedule(&mut self, in_us: u64, host: usize, boot: Option<u32>, what: What) {
        self.serial += 1;
        let (at_us, serial) = (self.now_us + in_us, self.serial);
        self.queue.push(Reverse(Entry { at_us, serial, host, boot, what }));
    }

    /// Starts a host's daemon; with the loans that its store kept, if it kept any.
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
        let now = Duration::from_micros(self.now_us);
        let id = host.id.clone();
        host.machine = Some(Machine::new(id, epoch, seed, self.settings.clone(), kept, now));
    }

    /// Ends a host's daemon: its devices are lost, and what was under way is.
    pub fn stop(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.machine = None;
        host.boot += 1;
        host.devices.clear();
        host.file.clear();
        host.gathering.clear();
        host.asked.clear();
        host.recalls.clear();
        host.demand_bytes = host.total_bytes / 10 * 3;
    }

    /// Lets what is next happen; false when nothing is left before `until_us`.
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
                self.step(at, Event::Tick)
            }
            What::Read => self.read(at),
            What::Peers => {
                let in_us = 5_000_000 + self.random.below(5_000_000);
                self.schedule(in_us, at, None, What::Peers);
                let peers = self.peers(at);
                self.step(at, Event::Peers(peers))
            }
            What::Work(work) => self.work(at, work),
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
            What::Operator(order) => self.step(at, Event::Operator(order)),
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
            return Ok(());
        }
        if let Body::MemBorAck(ack) = &mut message.body {
            match self.plant {
                Some(Plant::StaleAck) => {
                    ack.sequence = self.sequences.get(&ack.loan).copied().unwrap_or(ack.sequence);
                }
                Some(Plant::LongLease) => ack.lease_ms *= 2,
                _ => {}
            }
        }
        // What travels is what can be read again.
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
        let host = &mut self.hosts[at];
        let mut reading = host.reading();
        let upper_bytes = Settings::share(reading.total_bytes, self.settings.upper_permille);
        if self.plant == Some(Plant::NoReserve) && reading.used_bytes <= upper_bytes {
            reading.total_bytes *= 2;
        }
        self.step(at, Event::Memory(reading))?;
        let host = &mut self.hosts[at];
        host.spare_bytes = host.machine.as_ref().map_or(0, Machine::spare_bytes);
        self.check_waits(at)
    }

    /// Tells a machine of an event, and has done what it wants.
    pub fn step(&mut self, at: usize, event: Event) -> Result<(), Violation> {
        let now = self.now();
        if self.is_traced {
            self.trace(at, &format!("{event:?}"));
        }
        let Some(machine) = &mut self.hosts[at].machine else { return Ok(()) };
        let mut actions = Vec::new();
        machine.handle(now, event, &mut actions);
        let wake_us = machine.wake_at().map(|wake| wake.as_micros() as u64);
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

    fn carry_out(&mut self, at: usize, action: Action) -> Result<(), Violation> {
        let boot = self.hosts[at].boot;
        match action {
            Action::Send(message) => self.send(at, message),
            Action::Reserve { loan, slabs, slab_bytes, .. } => {
                assert_eq!(slab_bytes, SLAB_BYTES);
                self.check_grant(at, slabs)?;
                self.hosts[at].changing_slabs += u64::from(slabs);
                let in_us = self.driver_us(at, 20_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Reserve { loan, slabs }));
            }
            Action::Release { loan } => {
                let slabs = self.hosts[at].end_pool(&loan);
                self.hosts[at].changing_slabs += slabs;
                self.check_claims_on(&loan)?;
                let in_us = self.driver_us(at, 200_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Released { loan, slabs }));
            }
            Action::Open { device, loan, lender, access, .. } => {
                let lender = self.names[&lender];
                let pool = self.hosts[lender].pools.get(&loan);
                let pool = pool.filter(|pool| pool.identity == access.pool);
                let blocks = pool.map(|pool| pool.blocks.clone()).unwrap_or_default();
                let grant = Grant { lender, identity: access.pool, blocks, is_hit: false };
                self.hosts[at].devices.entry(device).or_default().grants.insert(loan, grant);
            }
            Action::Attach { device, slabs } => {
                let its = self.hosts[at].devices.entry(device).or_default();
                its.slabs = slabs
                    .into_iter()
                    .map(|copies| Slab {
                        full: copies.iter().flatten().count() as u32,
                        copies,
                        ..Slab::default()
                    })
                    .collect();
                let in_us = self.driver_us(at, 300_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Attach { device }));
            }
            Action::Detach { device } => {
                let in_us = self.driver_us(at, 500_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Detach { device }));
            }
            Action::Place { device, slab, copy, place } => {
                let in_us = self.driver_us(at, 100_000);
                let work = Work::Place { device, slab, copy, place };
                self.schedule(in_us, at, Some(boot), What::Work(work));
            }
            Action::Forget { device, loan } => self.forget(at, device, &loan)?,
            Action::Note(note) => self.count(at, &note),
        }
        Ok(())
    }

    fn driver_us(&mut self, at: usize, usual_us: u64) -> u64 {
        let us = 1_000 + self.random.below(usual_us);
        if self.hosts[at].is_slow { us * 10 } else { us }
    }

    fn send(&mut self, at: usize, message: Message) {
        self.summary.messages += 1;
        match (&message.body, self.plant) {
            (Body::MemBorReq(request), Some(Plant::StaleAck)) => {
                self.sequences.insert(request.loan.clone(), request.sequence);
            }
            (Body::MemLenFin(fin), Some(Plant::EarlyRelease)) => {
                self.hosts[at].end_pool(&fin.loan);
            }
            _ => {}
        }
        if self.hosts[at].cut_until_us > self.now_us {
            return;
        }
        let to = self.names[&message.to];
        let copies = match self.random.below(1_000) {
            dice if dice < self.loss_permille => 0,
            dice if dice < 2 * self.loss_permille => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let mut in_us = self.delay_us + self.random.below(self.delay_us);
            if self.random.below(1_000) < self.late_permille {
                in_us += self.random.below(30_000_000);
            }
            self.schedule(in_us, to, None, What::Deliver(message.clone()));
        }
    }

    fn work(&mut self, at: usize, work: Work) -> Result<(), Violation> {
        let fails = !self.is_calm && self.random.one_in(30);
        let event = match work {
            Work::Reserve { loan, slabs } => {
                self.hosts[at].changing_slabs -= u64::from(slabs);
                let identity = PoolIdentity(u128::from(self.random.next()));
                let result = if fails {
                    Err("no memory".to_owned())
                } else {
                    self.hosts[at].make_pool(loan.clone(), identity, slabs);
                    Ok(access(identity))
                };
                Event::Reserved { loan, result }
            }
            Work::Released { loan, slabs } => {
                self.hosts[at].changing_slabs -= slabs;
                if self.plant == Some(Plant::EndlessLease) && self.summary.expired.contains(&loan) {
                    self.hosts[at].changing_slabs += slabs;
                    return Ok(());
                }
                Event::Released { loan }
            }
            Work::Attach { device } => {
                let host = &mut self.hosts[at];
                if fails {
                    host.devices.remove(&device);
                    Event::Attached { device, result: Err("mkswap failed".into()) }
                } else {
                    host.devices.entry(device).or_insert_with(Device::default).is_attached = true;
                    Event::Attached { device, result: Ok(()) }
                }
            }
            Work::Detach { device } => {
                let result = if fails { Err("busy".into()) } else { self.swapoff(at, device) };
                Event::Detached { device, result }
            }
            Work::Place { device, slab, copy, place } => {
                let result = if fails {
                    Err("timed out".into())
                } else {
                    self.place(at, device, slab, copy, &place)?
                };
                // It is done in the data plane before the machine hears of it.
                let in_us = self.random.below(50_000);
                let boot = self.hosts[at].boot;
                let event = Event::Placed { device, slab, copy, place, result };
                self.schedule(in_us, at, Some(boot), What::Tell(event));
                return Ok(());
            }
        };
        self.step(at, event)
    }

    fn count(&mut self, at: usize, note: &Note) {
        let summary = &mut self.summary;
        match note {
            Note::Asked { .. } => summary.asked += 1,
            Note::Granted { .. } => summary.granted += 1,
            Note::Refused { reason: Some(_), .. } => summary.refused += 1,
            Note::Refused { reason: None, .. } => summary.unanswered += 1,
            Note::Attached { slabs, .. } => {
                summary.devices += 1;
                summary.borrowed_slabs += u64::from(*slabs);
            }
            Note::Short { got: 0, .. } => summary.given_up += 1,
            Note::Recalling { .. } => summary.recalls += 1,
            Note::Moved { .. } => summary.moved += 1,
            Note::LoanLost { .. } => summary.loans_lost += 1,
            Note::SlabLost { .. } => summary.slabs_lost += 1,
            Note::Expired { loan } => {
                summary.expired.insert(loan.clone());
            }
            _ => {}
        }
        match note {
            Note::LoanLost { loan, lender } => self.hit(at, self.names[lender], loan),
            Note::Recalling { loan, deadline } => {
                let at_us = self.now_us + deadline.as_micros() as u64;
                self.hosts[at].recalls.insert(loan.clone(), at_us);
            }
            Note::Expired { loan } => self.hit(self.names[&loan.borrower], at, loan),
            _ => {}
        }
    }

    /// Copies that a slab should have.
    pub fn copies_wanted(&self) -> u32 {
        if self.settings.backup == Backup::None { 1 } else { 2 }
    }
}

fn access(pool: PoolIdentity) -> Access {
    Access { address: "127.0.0.1:4420".into(), pool, nqn: None }
}
