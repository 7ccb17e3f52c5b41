//! The real machine compared with the model. Events come in any order, and often exactly at the point of a decision: at
//! the microsecond when something is due, or a byte below or above a bound.

use spillway_guests::agent::{FromGuest, FromHost, Profile, Status};
use spillway_guests::{Action, Device, Event, Facts, Order, Settings, Who};
use spillway_test_support::random::Random;

use crate::model::total;
use crate::pair::Pair;

const S: u64 = 128 << 20;
const BOOT: u64 = 4 * S;
/// Events of a run.
const EVENTS: u64 = 120;

/// A guest with its VM and its part of a pool, all of which behave at random.
struct Any {
    random: Random,
    now: u64,
    pair: Pair,
    vm: Facts,
    /// The pool's free bytes.
    free: u64,
    /// Whether the monitor answers.
    is_there: bool,
    /// Messages to the agent that are not answered yet.
    asked: Vec<FromHost>,
    orders: u64,
}

impl Any {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut vm = Facts { boot_bytes: BOOT, devices: Vec::new() };
        for _ in 0..=random.below(2) {
            let device = Device { max_bytes: (1 + random.below(20)) * S, ..Device::default() };
            vm.devices.push(device);
        }
        let pair = Pair::new(settings(&mut random));
        let (now, free) = (random.below(2_000_000), random.below(40) * S);
        let mut any = Self {
            random,
            now,
            pair,
            vm,
            free,
            is_there: true,
            asked: Vec::new(),
            orders: 1 << 32,
        };
        if any.random.one_in(2) {
            any.found_under_way();
        }
        any.tell(Event::Attached(any.vm.clone()));
        any
    }

    /// Simulates a change that a killed daemon left incomplete.
    fn found_under_way(&mut self) {
        for device in &mut self.vm.devices {
            let sections = 1 + device.max_bytes / S;
            device.size_bytes = self.random.below(sections) * S;
            device.requested_bytes = self.random.below(sections) * S;
            let needs = device.size_bytes.max(device.requested_bytes);
            device.set_aside_bytes = needs + self.random.below(2) * S;
        }
    }

    fn tell(&mut self, event: Event) {
        let mut actions = self.pair.handle(self.now, event);
        let mut next = 0;
        while next < actions.len() {
            assert!(next < 1000, "actions without an end: {:?}", &actions[next - 8..]);
            if let Some(answer) = self.carry_out(actions[next].clone()) {
                actions.extend(self.pair.handle(self.now, answer));
            }
            next += 1;
        }
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Reserve { device, more_bytes } => {
                let it = &mut self.vm.devices[device];
                let result = if more_bytes <= self.free {
                    self.free -= more_bytes;
                    it.set_aside_bytes += more_bytes;
                    Ok(it.set_aside_bytes)
                } else {
                    Err(format!("the pool is dry: {more_bytes} bytes asked, {} free", self.free))
                };
                Some(Event::Reserved { device, result })
            }
            Action::Request { device, bytes } => {
                let fails = !self.is_there || self.random.one_in(12);
                if self.random.one_in(4) {
                    self.move_on();
                }
                if !fails {
                    self.vm.devices[device].requested_bytes = bytes;
                }
                let result = if fails { Err("GenericError: no".into()) } else { Ok(bytes) };
                Some(Event::Requested { device, result })
            }
            Action::Release { device, size_bytes } => {
                let it = &mut self.vm.devices[device];
                // A file may hold more than the guest has, and not all of it is known.
                let holds = if self.random.one_in(8) { it.set_aside_bytes } else { size_bytes };
                let left = holds.max(it.size_bytes).max(it.requested_bytes);
                self.free += it.set_aside_bytes.saturating_sub(left);
                it.set_aside_bytes = left;
                Some(Event::Released { device, set_aside_bytes: left })
            }
            Action::Tell(said) => {
                self.asked.push(said);
                None
            }
            Action::Done(_) | Action::Say(_) => None,
        }
    }

    /// The guest's driver does part of the requested change.
    fn move_on(&mut self) {
        for device in &mut self.vm.devices {
            let steps = match self.random.below(4) {
                0 => 0,
                1 => 1,
                _ => 64,
            };
            let (has, wanted) = (device.size_bytes, device.requested_bytes);
            device.size_bytes = if has < wanted {
                wanted.min(has + steps * S)
            } else {
                wanted.max(has.saturating_sub(steps * S))
            };
        }
    }

    fn read(&mut self) {
        if self.is_there {
            let sizes = self.vm.devices.iter().map(|it| (it.size_bytes, it.requested_bytes));
            self.tell(Event::Read(sizes.collect()));
        } else {
            self.tell(Event::Tick);
        }
    }

    /// Lets time pass, often until something is due or just before.
    fn pass(&mut self) {
        let model = &self.pair.model;
        let rests = 2000 * u64::from(model.settings.interval_ms);
        let mut due: Vec<u64> = model.change.iter().flat_map(|it| it.due()).collect();
        due.extend(model.held.iter().map(|(.., until)| *until));
        due.extend(model.kept.iter().map(|(_, until)| *until));
        due.extend(model.queue.iter().map(|need| need.until));
        due.extend(model.change.iter().filter_map(|change| match change.order.who {
            Who::Guest { until_us, .. } => Some(until_us),
            _ => None,
        }));
        due.extend([model.moved + rests, model.moved + rests + 1]);
        due.push((self.now / 1_000_000 + 1) * 1_000_000);
        due.retain(|at| *at > self.now);
        self.now = match self.random.below(6) {
            0 => self.now + self.random.below(5_000_000),
            1 => self.now + self.random.below(20_000),
            2 if !due.is_empty() => due[self.random.below(due.len() as u64) as usize] - 1,
            _ if !due.is_empty() => due[self.random.below(due.len() as u64) as usize],
            _ => self.now + 1,
        };
    }

    /// A size near a decisive one.
    fn size(&mut self) -> u64 {
        let model = &self.pair.model;
        let (has, ceiling) = (total(&self.vm), model.ceiling(&self.vm));
        let (least, section) = (model.settings.least_bytes, S);
        let some = [
            has,
            has + section,
            has + 3 * section,
            has.saturating_sub(section),
            has.saturating_sub(2 * section),
            ceiling,
            least,
            BOOT,
            self.random.below(ceiling + 2 * section),
        ];
        let at = self.random.below(some.len() as u64) as usize;
        self.nearly(some[at])
    }

    /// `bytes`, or a byte more or less, or half a section more or less.
    fn nearly(&mut self, bytes: u64) -> u64 {
        match self.random.below(8) {
            0 => bytes + 1,
            1 => bytes.saturating_sub(1),
            2 => bytes + S / 2,
            _ => bytes,
        }
    }

    fn status(&mut self) -> Status {
        let has = total(&self.vm);
        let ever = BOOT + self.vm.devices.iter().map(|it| it.max_bytes).sum::<u64>();
        let took = self.random.below(3) * (S / 4);
        let total_bytes = match self.random.below(8) {
            0 => self.nearly(has),
            1 => self.nearly(ever),
            _ => has - took.min(has),
        };
        let reserve = self.pair.model.settings.reserve_bytes;
        let available_bytes = match self.random.below(4) {
            0 => self.nearly(total_bytes),
            1 => {
                let spare = (1 + self.random.below(4)) * S;
                self.nearly(reserve + spare).min(total_bytes)
            }
            _ => self.random.below(total_bytes + 1),
        };
        // The size of the descriptors of some sections, with and without the memory that must stay free.
        let sections = 1 + self.random.below(4);
        let taken = sections * S / 64;
        let kernel_free_bytes = match self.random.below(4) {
            0 => self.nearly(2 * taken),
            1 => self.nearly(taken + (8 << 20)),
            _ => BOOT,
        };
        Status {
            total_bytes,
            available_bytes,
            kernel_free_bytes,
            stalled_us: self.random.below(1000),
            refaults: self.random.below(1000),
            swap_ins: self.random.below(1000),
            ..Status::default()
        }
    }

    fn something(&mut self) {
        match self.random.below(32) {
            0..=5 => self.order(),
            6..=9 => self.need(),
            10..=11 => self.give(),
            12..=16 => self.answer(),
            17..=18 => {
                let status = self.status();
                self.says(FromGuest::Status(status));
            }
            19 => self.hello(),
            20 => self.tell(Event::AgentConnected),
            21 if self.random.one_in(3) => self.tell(Event::AgentGone),
            22 if self.random.one_in(3) => self.reset(),
            23 if self.random.one_in(3) => self.reattach(),
            24 if self.random.one_in(4) => {
                self.is_there = false;
                self.tell(Event::Detached("QEMU closed the monitor".into()));
            }
            25 if self.random.one_in(4) => {
                let auto = self.random.one_in(2);
                self.tell(Event::Auto(auto));
            }
            26 if self.random.one_in(2) => {
                let settings = settings(&mut self.random);
                self.tell(Event::Settings(settings));
            }
            27 => self.free = self.random.below(16) * S,
            28 if self.random.one_in(8) => self.flood(),
            _ => {}
        }
        if !self.random.one_in(3) {
            self.move_on();
        }
        if !self.random.one_in(4) {
            self.read();
        } else if self.random.one_in(2) {
            self.tell(Event::Tick);
        }
    }

    fn order(&mut self) {
        self.read();
        self.orders += 1;
        let who = if self.random.one_in(4) { Who::Manager } else { Who::Operator };
        let (id, to_bytes) = (self.orders, self.size());
        let (roll_back, force) = (self.random.one_in(3), self.random.one_in(3));
        self.tell(Event::Order(Order { id, who, to_bytes, roll_back, force }));
    }

    fn need(&mut self) {
        self.read();
        let sections = self.random.below(6);
        let (id, bytes) = (self.random.below(1000), self.nearly(sections * S));
        let urgent = self.random.one_in(3);
        let waits = [0, 0, 1, 900, 5_000, 19_999, 20_000, 20_001, u32::MAX];
        let wait_ms = waits[self.random.below(waits.len() as u64) as usize];
        self.says(FromGuest::Need { id, bytes, urgent, wait_ms });
    }

    fn give(&mut self) {
        self.read();
        let sections = self.random.below(4);
        let (id, bytes) = (self.random.below(1000), self.nearly(sections * S));
        self.says(FromGuest::Give { id, bytes });
    }

    fn says(&mut self, said: FromGuest) {
        self.tell(Event::Agent(said));
    }

    fn hello(&mut self) {
        let (kernel, boot) = ("6.12".into(), "1".into());
        self.says(FromGuest::Hello { version: 1, kernel, boot, block_bytes: S });
    }

    /// The agent answers its last or an earlier message, or one that it never got.
    fn answer(&mut self) {
        let plugged = self.vm.devices.iter().map(|it| it.size_bytes).sum();
        let ask = |it: &&FromHost| {
            matches!(
                it,
                FromHost::Offline { .. } | FromHost::Arrive { .. } | FromHost::Report { .. }
            )
        };
        let asked: Vec<FromHost> = self.asked.iter().rev().filter(ask).take(2).cloned().collect();
        let off = if self.random.one_in(8) { 1 } else { 0 };
        let earlier = usize::from(self.random.one_in(5));
        let bytes = self.nearly(plugged);
        match asked.get(earlier) {
            Some(FromHost::Offline { id, .. }) => {
                let bytes = self.random.below(3) * S;
                self.says(FromGuest::Offlined { id: id + off, bytes });
            }
            Some(FromHost::Arrive { id, .. }) => {
                self.says(FromGuest::Arrived { id: id + off, bytes })
            }
            Some(FromHost::Report { id }) => {
                let (id, status) = (id + off, self.status());
                self.says(FromGuest::Status(status));
                self.says(FromGuest::Reported { id });
            }
            _ => {
                let bytes = self.random.below(2) * S;
                self.says(FromGuest::Offlined { id: self.orders, bytes });
            }
        }
    }

    fn reset(&mut self) {
        for device in &mut self.vm.devices {
            device.size_bytes = 0;
        }
        if self.is_there {
            self.tell(Event::Reset);
        }
    }

    fn reattach(&mut self) {
        self.is_there = true;
        if self.random.one_in(3) {
            let more = (1 + self.random.below(4)) * S;
            self.vm.devices.push(Device { max_bytes: more, ..Device::default() });
        }
        self.tell(Event::Attached(self.vm.clone()));
    }

    /// Sends more messages in a second than are processed.
    fn flood(&mut self) {
        for id in 0..190 + self.random.below(20) {
            match self.random.below(8) {
                0 => self.says(FromGuest::Give { id, bytes: 0 }),
                _ => self.hello(),
            }
        }
    }
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        section_bytes: S,
        least_bytes: BOOT - S + random.below(3) * S,
        most_bytes: (10 + random.below(70)) * S - random.below(2) * (S / 2),
        reserve_bytes: random.below(3) * S / 2,
        profile: if random.one_in(3) { Profile::GrowsFar } else { Profile::ReturnsAll },
        auto: !random.one_in(6),
        resize_timeout_us: 5_000_000,
        offline_timeout_us: 1_000_000,
        interval_ms: 500,
    }
}

#[test]
fn the_machine_does_what_the_model_does() {
    for seed in 0..crate::seeds() {
        let mut any = Any::new(seed);
        if !any.random.one_in(3) {
            any.tell(Event::AgentConnected);
            any.hello();
        }
        for _ in 0..EVENTS {
            any.something();
            any.pass();
        }
    }
}
