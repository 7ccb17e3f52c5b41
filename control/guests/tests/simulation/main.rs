//! Virtual-time simulation of the real state machine with guests, a pool and an agent. They are slow, lose answers,
//! keep memory, and are reset and restarted. `GUESTS_SEEDS` sets the number of seeds (1000).

mod change;
mod lockstep;
mod model;
mod pair;

use std::collections::HashMap;

use spillway_guests::agent::{FromGuest, FromHost, Profile, Status};
use spillway_guests::{
    Action, Device, End, Event, Facts, Guest, Holder, Order, Outcome, Settings, Who, share,
    working_bytes,
};

use pair::Pair;
use spillway_test_support::random::Random;

const S: u64 = 128 << 20;
const BOOT: u64 = 4 * S;
const MOST: u64 = 32 * S;
const RESIZE_US: u64 = 5_000_000;
const OFFLINE_US: u64 = 1_000_000;
/// Limit of the time of an order: status, offlining, the change, its reversal, online report, and rest.
const ORDER_MAX_US: u64 =
    1_000_000 + 2 * OFFLINE_US + 2 * RESIZE_US + 2_000_000 + 2_000_000 + 200_000;
/// Limit of the time of a program's answer: it waits for memory and a change in progress, then for its own change.
const PROGRAM_MAX_US: u64 = 20_000_000 + ORDER_MAX_US + 1_100_000;

/// Sections of a device's file.
const SECTIONS: usize = 32;

/// The state of a section of a device's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Hole,
    SetAside,
    Plugged,
}

/// QEMU and the guest's driver: they plug or unplug the requested size block by block.
#[derive(Default)]
struct Vm {
    devices: Vec<Device>,
    /// The files of the devices, section by section.
    files: Vec<[Section; SECTIONS]>,
    /// The block that the guest returns next.
    turn: usize,
    is_out_of_reach: bool,
    refuses: bool,
    /// Blocks that the guest moves in a step; 0 means that it does nothing.
    speed: u64,
    /// Bytes of all devices that it does not return.
    keeps_bytes: u64,
    has_agent: bool,
    /// The agent's answers in flight, and when they arrive.
    answers: Vec<(u64, FromGuest)>,
    mute_agent: bool,
    /// Bytes that the agent has set offline and no device has unplugged.
    offline_bytes: u64,
}

impl Vm {
    fn step(&mut self) {
        let mut keeps = self.keeps_bytes;
        for (device, file) in self.devices.iter_mut().zip(&mut self.files) {
            for _ in 0..self.speed {
                if device.size_bytes < device.requested_bytes {
                    device.size_bytes += S;
                    // Wherever memory is reserved, the guest plugs the lowest section that it lacks.
                    let lowest = file.iter_mut().find(|it| **it != Section::Plugged);
                    *lowest.expect("room in the file") = Section::Plugged;
                } else if device.size_bytes > device.requested_bytes && device.size_bytes > keeps {
                    device.size_bytes -= S;
                    self.offline_bytes = self.offline_bytes.saturating_sub(S);
                    self.turn += 7;
                    let plugged = file.iter().filter(|it| **it == Section::Plugged).count();
                    let which = self.turn % plugged;
                    let mut those = file.iter_mut().filter(|it| **it == Section::Plugged);
                    *those.nth(which).expect("one of them") = Section::Hole;
                }
            }
            keeps = keeps.saturating_sub(device.size_bytes);
        }
    }

    /// QEMU unplugs all memory and empties the files.
    fn reset(&mut self) {
        for (device, file) in self.devices.iter_mut().zip(&mut self.files) {
            if device.size_bytes > 0 {
                file.fill(Section::Hole);
            }
            device.size_bytes = 0;
        }
    }

    fn facts(&self) -> Facts {
        Facts { boot_bytes: BOOT, devices: self.devices.clone() }
    }

    fn sizes(&self) -> Vec<(u64, u64)> {
        self.devices.iter().map(|device| (device.size_bytes, device.requested_bytes)).collect()
    }

    fn total(&self) -> u64 {
        BOOT + self.devices.iter().map(|device| device.size_bytes).sum::<u64>()
    }
}

struct World {
    random: Random,
    now_us: u64,
    capacity: u64,
    vms: Vec<Vm>,
    machines: Vec<Pair>,
    /// When each unfinished order was given.
    open: HashMap<u64, u64>,
    next_order: u64,
    ends: Vec<Outcome>,
    /// Programs' requests: the guest, the time, and how long they wait.
    programs: HashMap<u64, (usize, u64, u64)>,
    /// Number of programs' answers: granted at once, granted after a wait for memory or a change, refused.
    answered: [u64; 3],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = 1 + random.below(3);
        let capacity = (8 + random.below(40)) * S;
        let mut world = Self {
            capacity,
            vms: Vec::new(),
            machines: Vec::new(),
            open: HashMap::new(),
            next_order: 1 << 32,
            ends: Vec::new(),
            programs: HashMap::new(),
            answered: [0; 3],
            now_us: 1,
            random,
        };
        for _ in 0..count {
            let mut vm = Vm { speed: 1, ..Vm::default() };
            let device = |sections| Device { max_bytes: sections * S, ..Device::default() };
            vm.devices.push(device(8 + world.random.below(20)));
            if world.random.one_in(3) {
                vm.devices.push(device(4));
            }
            vm.files = vec![[Section::Hole; SECTIONS]; vm.devices.len()];
            vm.has_agent = world.random.one_in(2);
            world.vms.push(vm);
            world.machines.push(Pair::new(settings(&mut world.random)));
        }
        for at in 0..world.vms.len() {
            world.attach(at);
        }
        world
    }

    fn free(&self) -> u64 {
        let used: u64 =
            self.vms.iter().flat_map(|vm| &vm.devices).map(|device| device.set_aside_bytes).sum();
        self.capacity - used
    }

    fn attach(&mut self, at: usize) {
        self.vms[at].is_out_of_reach = false;
        self.tell(at, Event::Attached(self.vms[at].facts()));
        if self.vms[at].has_agent {
            self.tell(at, Event::AgentConnected);
        }
    }

    /// Passes an event to the machine and executes its actions like the driver: in order, with immediate answers.
    fn tell(&mut self, at: usize, event: Event) {
        let mut actions = self.machines[at].handle(self.now_us, event);
        let mut next = 0;
        while next < actions.len() {
            assert!(next < 1000, "actions without an end: {:?}", &actions[next - 8..]);
            if let Some(answer) = self.carry_out(at, actions[next].clone()) {
                actions.extend(self.machines[at].handle(self.now_us, answer));
            }
            next += 1;
            self.check(at);
        }
    }

    fn carry_out(&mut self, at: usize, action: Action) -> Option<Event> {
        let free = self.free();
        let vm = &mut self.vms[at];
        match action {
            Action::Reserve { device, more_bytes } => {
                let it = &vm.devices[device];
                assert_eq!(
                    it.size_bytes, it.requested_bytes,
                    "memory is set aside while the guest plugs"
                );
                let fits = more_bytes <= free;
                if fits {
                    vm.devices[device].set_aside_bytes += more_bytes;
                    fill(&mut vm.files[device], more_bytes / S);
                }
                let result =
                    if fits { Ok(vm.devices[device].set_aside_bytes) } else { Err("dry".into()) };
                Some(Event::Reserved { device, result })
            }
            Action::Request { device, bytes } => {
                assert!(
                    bytes <= vm.devices[device].set_aside_bytes,
                    "asked for more than is set aside"
                );
                let fails = vm.is_out_of_reach || vm.refuses;
                // The guest continues meanwhile, so the last reading may be outdated.
                if self.random.one_in(2) {
                    vm.step();
                }
                let vm = &mut self.vms[at];
                if !fails {
                    vm.devices[device].requested_bytes = bytes;
                }
                let result = if fails { Err("refused".into()) } else { Ok(bytes) };
                Some(Event::Requested { device, result })
            }
            Action::Release { device, size_bytes } => {
                let it = &mut vm.devices[device];
                assert!(it.requested_bytes <= size_bytes, "released what the guest may still take");
                // The size that an up-to-date driver would see; the machine must not release more.
                if it.size_bytes == size_bytes && it.requested_bytes <= size_bytes {
                    it.set_aside_bytes = size_bytes;
                    let file = vm.files[device].iter_mut();
                    file.filter(|it| **it == Section::SetAside).for_each(|it| *it = Section::Hole);
                }
                Some(Event::Released { device, set_aside_bytes: it.set_aside_bytes })
            }
            Action::Tell(FromHost::Offline { id, bytes, .. }) => {
                let late_us = self.random.below(2 * OFFLINE_US);
                if !vm.mute_agent {
                    vm.answers.push((self.now_us + late_us, FromGuest::Offlined { id, bytes }));
                }
                None
            }
            Action::Tell(FromHost::Online) => {
                vm.offline_bytes = 0;
                vm.answers.retain(|(_, said)| !matches!(said, FromGuest::Offlined { .. }));
                None
            }
            Action::Tell(FromHost::Hello { .. }) => {
                let hello = FromGuest::Hello {
                    version: 1,
                    kernel: "6.12".into(),
                    boot: "1".into(),
                    block_bytes: S,
                };
                vm.answers.push((self.now_us, hello));
                None
            }
            Action::Tell(FromHost::Arrive { id, bytes, .. }) => {
                let late_us = self.random.below(400_000);
                if !vm.mute_agent {
                    vm.answers.push((self.now_us + late_us, FromGuest::Arrived { id, bytes }));
                }
                None
            }
            Action::Tell(FromHost::Report { id }) => {
                let late_us = self.random.below(400_000);
                if !vm.mute_agent {
                    vm.answers.push((self.now_us + late_us, FromGuest::Reported { id }));
                }
                None
            }
            Action::Tell(FromHost::Answer { id, granted_bytes, why }) => {
                self.heard(id, granted_bytes, why);
                None
            }
            Action::Done(outcome) => {
                self.ended(at, outcome);
                None
            }
            Action::Say(_) => None,
        }
    }

    fn ended(&mut self, at: usize, outcome: Outcome) {
        let size = self.vms[at].total();
        match &outcome.end {
            End::Reached => assert_eq!(outcome.size_bytes, outcome.aim_bytes, "{outcome:?}"),
            End::Refused(_) | End::Superseded | End::Lost(_) | End::RolledBack => {}
            End::Partial => assert_ne!(outcome.size_bytes, outcome.aim_bytes, "{outcome:?}"),
        }
        if outcome.end == End::Reached {
            let ceiling = self.machines[at].view().ceiling_bytes;
            assert!(size <= ceiling.max(outcome.from_bytes), "larger than it may be: {outcome:?}");
            assert_eq!(size, outcome.size_bytes, "the guest has another size than is said");
        }
        if outcome.order.who == Who::Operator {
            let since = self.open.remove(&outcome.order.id).expect("an order ends once");
            let took_us = self.now_us - since;
            assert!(took_us <= ORDER_MAX_US, "{took_us} us for {outcome:?}");
        }
        self.ends.push(outcome);
    }

    /// Handles an answer to a guest's request, perhaps one of its programs.
    fn heard(&mut self, id: u64, granted_bytes: u64, why: Option<String>) {
        let Some((_, since, wait_us)) = self.programs.remove(&id) else { return };
        let took_us = self.now_us - since;
        assert!(took_us <= wait_us + PROGRAM_MAX_US - 20_000_000, "{took_us} us of {wait_us}");
        if granted_bytes == 0 {
            assert!(!why.expect("a refusal says why").contains('\n'));
        }
        let place = if granted_bytes == 0 { 2 } else { usize::from(took_us > 1_000_000) };
        self.answered[place] += 1;
    }

    /// Memory moves to guests that wait for it, from guests with more than their working set.
    fn share(&mut self) {
        if self.machines.iter().all(|machine| machine.wanted_bytes() == 0) {
            return;
        }
        let holders: Vec<_> = self.machines.iter().map(|it| holder(it)).collect();
        for step in share(S, self.free(), &holders) {
            let id = self.next_order;
            self.next_order += 1;
            self.look(step.holder);
            let (who, to_bytes) = (Who::Manager, step.to_bytes);
            let order = Order { id, who, to_bytes, roll_back: false, force: false };
            self.tell(step.holder, Event::Order(order));
        }
    }

    fn check(&self, at: usize) {
        let sum: u64 =
            self.vms.iter().flat_map(|vm| &vm.devices).map(|device| device.set_aside_bytes).sum();
        assert!(sum <= self.capacity);
        for (device, file) in self.vms[at].devices.iter().zip(&self.vms[at].files) {
            let held = held_bytes(file);
            assert!(
                held <= device.set_aside_bytes,
                "the file holds {held} bytes where {} count",
                device.set_aside_bytes
            );
            assert!(
                device.size_bytes <= device.set_aside_bytes,
                "the guest has what is not set aside"
            );
            assert!(
                device.requested_bytes <= device.set_aside_bytes,
                "may take what is not set aside"
            );
        }
    }

    /// Lets `us` pass: guests plug, agents answer, the driver reads the devices.
    fn run(&mut self, us: u64) {
        let until = self.now_us + us;
        while self.now_us < until {
            self.now_us += 10_000;
            for at in 0..self.vms.len() {
                self.vms[at].step();
                self.check(at);
                let (now, answers) = (self.now_us, std::mem::take(&mut self.vms[at].answers));
                for (when, said) in answers {
                    if when > now {
                        self.vms[at].answers.push((when, said));
                    } else {
                        if let FromGuest::Offlined { bytes, .. } = said {
                            self.vms[at].offline_bytes = bytes;
                        }
                        self.tell(at, Event::Agent(said));
                    }
                }
                let is_due =
                    self.machines[at].wake_at_us(now) <= now + 100_000 || self.random.one_in(20);
                if is_due && !self.vms[at].is_out_of_reach {
                    self.tell(at, Event::Read(self.vms[at].sizes()));
                } else if is_due {
                    self.tell(at, Event::Tick);
                }
            }
            if self.now_us % 100_000 < 10_000 {
                self.share();
            }
        }
    }

    /// Reads the devices, as the driver does before an event that may begin a change.
    fn look(&mut self, at: usize) {
        if !self.vms[at].is_out_of_reach {
            self.tell(at, Event::Read(self.vms[at].sizes()));
        }
    }

    fn something(&mut self) {
        let at = self.random.below(self.vms.len() as u64) as usize;
        match self.random.below(16) {
            0..=4 => self.order(at),
            5 => {
                let (id, bytes) = (self.next_order, self.random.below(6 * S));
                self.next_order += 1;
                let urgent = self.random.one_in(3);
                let wait_ms = if urgent { 0 } else { self.random.below(3) as u32 * 7_500 };
                if wait_ms > 0 && self.vms[at].has_agent {
                    self.programs.insert(id, (at, self.now_us, 1000 * u64::from(wait_ms)));
                }
                self.look(at);
                self.tell(at, Event::Agent(FromGuest::Need { id, bytes, urgent, wait_ms }));
            }
            6 => {
                let (id, bytes) = (self.next_order, self.random.below(6 * S));
                self.next_order += 1;
                self.look(at);
                self.tell(at, Event::Agent(FromGuest::Give { id, bytes }));
            }
            7 => self.vms[at].speed = self.random.below(3),
            8 => self.vms[at].keeps_bytes = self.random.below(10) * S,
            9 => self.vms[at].refuses = self.random.one_in(3),
            10 => self.restart(at),
            11 => {
                self.vms[at].is_out_of_reach = true;
                self.tell(at, Event::Detached("closed".into()));
            }
            12 if self.vms[at].is_out_of_reach => self.attach(at),
            13 => {
                self.vms[at].reset();
                if !self.vms[at].is_out_of_reach {
                    self.programs.retain(|_, (of, ..)| *of != at);
                }
                if !self.vms[at].is_out_of_reach {
                    self.tell(at, Event::Reset);
                }
            }
            14 => self.vms[at].mute_agent = self.random.one_in(2),
            15 => {
                let total_bytes = self.vms[at].total();
                let available_bytes = self.random.below(total_bytes);
                let (kernel_free_bytes, stalled_us) =
                    (self.random.below(BOOT), self.random.below(1000));
                let status = Status {
                    total_bytes,
                    available_bytes,
                    kernel_free_bytes,
                    stalled_us,
                    ..Status::default()
                };
                self.tell(at, Event::Agent(FromGuest::Status(status)));
            }
            _ => {}
        }
    }

    fn order(&mut self, at: usize) {
        let id = self.next_order;
        self.next_order += 1;
        let to_bytes = self.random.below(MOST + 4 * S);
        let (roll_back, force) = (self.random.one_in(3), self.random.one_in(2));
        self.open.insert(id, self.now_us);
        self.look(at);
        self.tell(at, Event::Order(Order { id, who: Who::Operator, to_bytes, roll_back, force }));
    }

    /// Kills the daemon, perhaps while it reserves memory, and restarts it. Only the state of the files and the VM
    /// remains.
    fn restart(&mut self, at: usize) {
        let sections = self.random.below(1 + self.free() / S);
        let vm = &mut self.vms[at];
        for (device, file) in vm.devices.iter().zip(&mut vm.files) {
            let room = (device.max_bytes - device.set_aside_bytes) / S;
            if device.size_bytes == device.requested_bytes {
                fill(file, sections.min(room) / 2);
            }
        }
        for vm in &mut self.vms {
            for (device, file) in vm.devices.iter_mut().zip(&vm.files) {
                // A guest that was reset plugs its requested size again; the file does not contain that memory yet.
                device.set_aside_bytes = held_bytes(file).max(device.requested_bytes);
            }
        }
        let settings = self.machines[at].settings().clone();
        self.machines[at] = Pair::new(settings);
        self.open.clear();
        self.programs.clear();
        for vm in &mut self.vms {
            // The agent continues its work, but no answer arrives.
            for (_, said) in vm.answers.drain(..) {
                if let FromGuest::Offlined { bytes, .. } = said {
                    vm.offline_bytes = bytes;
                }
            }
        }
        // The other guests' orders are lost too.
        for other in 0..self.vms.len() {
            if other != at {
                let settings = self.machines[other].settings().clone();
                self.machines[other] = Pair::new(settings);
            }
            if !self.vms[other].is_out_of_reach {
                self.attach(other);
            }
        }
    }

    /// All faults end: everything must come to rest, and nothing may be left over.
    fn settle(&mut self) {
        for at in 0..self.vms.len() {
            let vm = &mut self.vms[at];
            (vm.speed, vm.keeps_bytes, vm.refuses, vm.mute_agent) = (1, 0, false, false);
            if vm.is_out_of_reach {
                self.attach(at);
            }
        }
        self.run(PROGRAM_MAX_US + 2_000_000);
        assert!(self.open.is_empty(), "orders without an end: {:?}", self.open);
        assert!(self.programs.is_empty(), "programs without an answer: {:?}", self.programs);
        for (vm, machine) in self.vms.iter().zip(&self.machines) {
            assert_eq!(machine.running(), None);
            for device in &vm.devices {
                assert_eq!(device.size_bytes, device.requested_bytes);
                assert_eq!(device.set_aside_bytes, device.size_bytes, "set aside for nobody");
            }
            assert_eq!(vm.offline_bytes, 0, "offline for nobody");
            let view = machine.view();
            assert_eq!(view.size_bytes, Some(vm.total()));
            assert_eq!(view.wanted_bytes, 0);
        }
    }
}

/// Reserves the lowest holes of a file.
fn fill(file: &mut [Section], sections: u64) {
    let holes = file.iter_mut().filter(|it| **it == Section::Hole);
    holes.take(sections as usize).for_each(|hole| *hole = Section::SetAside);
}

fn held_bytes(file: &[Section]) -> u64 {
    file.iter().filter(|it| **it != Section::Hole).count() as u64 * S
}

/// A guest as the daemon describes it to the policy.
fn holder(machine: &Guest) -> Holder {
    let (view, settings) = (machine.view(), machine.settings());
    let working =
        |status: &Status| working_bytes(view.status_size_bytes, status, settings.reserve_bytes);
    Holder {
        size_bytes: view.size_bytes.unwrap_or_default(),
        least_bytes: settings.least_bytes.max(view.boot_bytes),
        most_bytes: view.ceiling_bytes,
        target_bytes: view.ceiling_bytes,
        working_bytes: view.status.as_ref().map(working),
        is_pressed: false,
        wanted_bytes: view.wanted_bytes,
        is_fixed: !settings.auto
            || view.size_bytes.is_none()
            || (view.aim_bytes.is_some() && view.wanted_bytes == 0)
            || view.kept_bytes > 0,
    }
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        section_bytes: S,
        least_bytes: BOOT + random.below(2) * S,
        // Not always a whole number of sections.
        most_bytes: MOST - random.below(2) * S / 2,
        reserve_bytes: S / 2,
        profile: if random.one_in(4) { Profile::GrowsFar } else { Profile::ReturnsAll },
        auto: !random.one_in(4),
        resize_timeout_us: RESIZE_US,
        offline_timeout_us: OFFLINE_US,
        interval_ms: 500,
    }
}

fn seeds() -> u64 {
    std::env::var("GUESTS_SEEDS").map_or(1000, |count| count.parse().expect("a number"))
}

#[test]
fn whatever_fails_the_pool_and_the_guests_agree() {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    let mut answered = [0; 3];
    for seed in 0..seeds() {
        let mut world = World::new(seed);
        for _ in 0..40 {
            world.something();
            // Some events come during a change.
            let us = if world.random.one_in(2) { 100_000 } else { 4_000_000 };
            let us = world.random.below(us);
            world.run(us);
        }
        world.settle();
        answered = std::array::from_fn(|at| answered[at] + world.answered[at]);
        for outcome in &world.ends {
            let name = match outcome.end {
                End::Reached => "reached",
                End::Partial => "partial",
                End::RolledBack => "rolled back",
                End::Superseded => "superseded",
                End::Refused(_) => "refused",
                End::Lost(_) => "lost",
            };
            *counts.entry(name).or_default() += 1;
            if outcome.order.who == Who::Manager && outcome.end == End::Reached {
                *counts.entry("given to others").or_default() += 1;
            }
        }
    }
    println!("{counts:?}; programs granted at once, late, refused: {answered:?}");
    assert!(answered.iter().all(|&count| count > 0), "{answered:?}");
    // A simulation in which a case never occurs does not test it.
    for name in
        ["reached", "partial", "rolled back", "superseded", "refused", "lost", "given to others"]
    {
        assert!(counts.contains_key(name), "no order ended as {name}: {counts:?}");
    }
}
