//! One guest: its state, and the dispatch of events.

use std::collections::VecDeque;

use spillway_types::Size;

use crate::agent::{self, FromGuest, FromHost, Status};
use crate::need::{Need, Needs};
use crate::settings::{KEPT_US, NEED_WAIT_US, PROGRAM_WAIT_US, REST_POLL_US};
use crate::stage::Resize;
use crate::{Action, Cause, Device, Event, Facts, Order, OrderId, Settings, Who};

/// The state machine of one guest. Time is monotonic, microseconds.
#[derive(Clone, Debug)]
pub struct Guest {
    pub(crate) settings: Settings,
    pub(crate) facts: Option<Facts>,
    pub(crate) agent: Option<Agent>,
    pub(crate) resize: Option<Resize>,
    pub(crate) held: Option<HeldOrder>,
    pub(crate) needs: Needs,
    /// Requests of the guest's programs that wait for the end of a change.
    pub(crate) waiting: VecDeque<Need>,
    /// Orders of the machine's own, and requests to the agent.
    next_id: u64,
    /// When the size last changed.
    changed_us: u64,
    /// Whether no reserved memory could return to the pool.
    is_settled: bool,
    /// Until when the guest is not asked to shrink again, because it kept memory that it should have returned.
    pub(crate) kept_until_us: Option<u64>,
    /// The memory that it kept, bytes.
    pub(crate) kept_bytes: u64,
}

/// An agent that is connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agent {
    /// From its hello: its kernel and the boot's id.
    pub(crate) hello: Option<(String, String)>,
    pub(crate) status: Option<Status>,
    /// Memory that its kernel took at boot: the guest's size less MemTotal, bytes.
    pub(crate) kernel_bytes: u64,
    /// Stall time between the last two statuses, microseconds.
    pub(crate) stalled_us: u64,
    /// Pages read again or swapped in between the last two statuses.
    pub(crate) refaults: u64,
}

/// An order that the last status would refuse, while the agent is asked for a new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldOrder {
    pub(crate) order: Order,
    /// The request to the agent, and its deadline.
    pub(crate) id: u64,
    pub(crate) until_us: u64,
}

/// The view of a guest for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Its present size, bytes; none while the monitor is out of reach.
    pub size_bytes: Option<u64>,
    /// What it booted with, bytes.
    pub boot_bytes: u64,
    /// Memory reserved for its devices, bytes.
    pub set_aside_bytes: u64,
    /// How large it can become, bytes.
    pub ceiling_bytes: u64,
    /// The aim of a change in progress.
    pub aim_bytes: Option<u64>,
    /// Memory that it needs at once but could not get, bytes.
    pub wanted_bytes: u64,
    /// The kernel of a guest whose agent answers.
    pub kernel: Option<String>,
    /// The guest's last report.
    pub status: Option<Status>,
    /// Its size at that report, bytes.
    pub status_size_bytes: u64,
    /// Stall time between the last two statuses, microseconds.
    pub stalled_us: u64,
    /// Pages read again or swapped in between the last two statuses.
    pub refaults: u64,
    /// Memory that it kept although asked to return it, bytes, while that counts.
    pub kept_bytes: u64,
    /// Ignored messages of its agent: too many, or with impossible values.
    pub ignored_messages: u64,
}

impl Guest {
    /// A guest in an unknown state.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            facts: None,
            agent: None,
            resize: None,
            held: None,
            needs: Needs::default(),
            waiting: VecDeque::new(),
            next_id: 1,
            changed_us: 0,
            is_settled: true,
            kept_until_us: None,
            kept_bytes: 0,
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Processes an event at time `now_us`, and appends the resulting actions.
    pub fn handle(&mut self, now_us: u64, event: Event, actions: &mut Vec<Action>) {
        let is_read = matches!(event, Event::Read(_));
        match event {
            Event::Tick => {}
            Event::Attached(facts) => self.attached(now_us, facts, actions),
            Event::Detached(why) => {
                self.lost(now_us, &why, actions);
                self.facts = None;
            }
            Event::Read(sizes) => self.read(now_us, &sizes),
            Event::Reset => self.reset(now_us, actions),
            Event::Reserved { device, result } => self.reserved(now_us, device, result, actions),
            Event::Requested { device, result } => self.requested(now_us, device, result, actions),
            Event::Released { device, set_aside_bytes } => {
                self.released(now_us, device, set_aside_bytes, actions);
            }
            Event::Agent(said) => self.heard(now_us, said, actions),
            Event::AgentConnected => {
                self.agent = Some(Agent::default());
                actions.push(Action::Tell(self.hello()));
                // Nothing will take blocks that it set offline for an earlier daemon or after a lost message.
                if self.resize.is_none() {
                    actions.push(Action::Tell(FromHost::Online));
                }
            }
            Event::AgentGone => {
                self.agent = None;
                self.waiting.clear();
            }
            Event::Order(order) => self.order(now_us, order, actions),
            Event::Auto(auto) => self.settings.auto = auto,
            Event::Settings(settings) => {
                self.settings = settings;
                if self.agent.is_some() {
                    actions.push(Action::Tell(self.hello()));
                }
            }
        }
        if self.kept_until_us.is_some_and(|until| now_us >= until) {
            self.kept_until_us = None;
            self.kept_bytes = 0;
        }
        self.look_at_held(now_us, actions);
        self.advance(now_us, actions);
        self.settle(actions);
        self.take_up(now_us, is_read, actions);
    }

    /// When [`Event::Tick`] or a reading of the devices is due at the latest.
    pub fn wake_at_us(&self, now_us: u64) -> u64 {
        let wake_at_us = match &self.resize {
            Some(resize) => now_us + resize.poll_us(),
            None => now_us + REST_POLL_US,
        };
        self.held_until_us().map_or(wake_at_us, |held| wake_at_us.min(held.max(now_us)))
    }

    /// Memory that it needs at once but could not get, bytes.
    pub fn wanted_bytes(&self) -> u64 {
        self.resize.as_ref().map_or(0, Resize::wanted_bytes)
    }

    /// The view for others.
    pub fn view(&self) -> View {
        let mut view = View { kept_bytes: self.kept_bytes, ..View::default() };
        view.ignored_messages = self.needs.ignored();
        view.wanted_bytes = self.wanted_bytes();
        if let Some(facts) = &self.facts {
            view.size_bytes = Some(facts.size_bytes());
            view.boot_bytes = facts.boot_bytes;
            view.set_aside_bytes = facts.devices.iter().map(|device| device.set_aside_bytes).sum();
            view.ceiling_bytes = self.ceiling_bytes(facts);
            view.aim_bytes = self.resize.as_ref().map(|resize| resize.aim_bytes);
        }
        if let Some(agent) = &self.agent {
            view.kernel = agent.hello.as_ref().map(|(kernel, _)| kernel.clone());
            view.status = agent.status;
            view.status_size_bytes = agent.status_size_bytes();
            view.stalled_us = agent.stalled_us;
            view.refaults = agent.refaults;
        }
        view
    }

    /// The largest size that the guest can have, bytes.
    pub(crate) fn ceiling_bytes(&self, facts: &Facts) -> u64 {
        let device_bytes: u64 = facts.devices.iter().map(|device| device.max_bytes).sum();
        self.settings.ceiling_bytes(facts.boot_bytes).min(facts.boot_bytes + device_bytes)
    }

    /// The size that a further device needs so that the guest can have its largest size, bytes; 0 while its size
    /// changes.
    pub fn lacks_bytes(&self) -> u64 {
        let (Some(facts), None) = (&self.facts, &self.resize) else { return 0 };
        let device_bytes: u64 = facts.devices.iter().map(|device| device.max_bytes).sum();
        let ceiling = self.settings.ceiling_bytes(facts.boot_bytes);
        let lacks = ceiling.saturating_sub(facts.boot_bytes + device_bytes);
        lacks.next_multiple_of(self.settings.section_bytes)
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn hello(&self) -> FromHost {
        FromHost::Hello {
            version: agent::VERSION,
            interval_ms: self.settings.interval_ms,
            reserve_bytes: self.settings.reserve_bytes,
            most_bytes: self.settings.most_bytes,
            profile: self.settings.profile,
        }
    }

    /// Completes a change that was in progress when the daemon attached to the VM. The aim is the devices' requested
    /// size or, if the pool can't provide that any more, their present size.
    fn attached(&mut self, now_us: u64, facts: Facts, actions: &mut Vec<Action>) {
        self.lost(now_us, "the monitor was reconnected", actions);
        let aim = facts.boot_bytes + facts.devices.iter().map(|it| it.requested_bytes).sum::<u64>();
        let is_at_rest = facts.devices.iter().all(Device::is_at_rest);
        if facts.size_bytes() != aim {
            let (size, aim) = (Size(facts.size_bytes()), Size(aim));
            actions.push(Action::Say(format!(
                "a change from {size} to {aim} was in progress: continuing it"
            )));
        }
        self.facts = Some(facts);
        self.is_settled = true;
        if !is_at_rest {
            let id = self.new_id();
            let order =
                Order { id, who: Who::Daemon, to_bytes: aim, roll_back: false, force: true };
            self.begin_adopted(now_us, order);
        }
    }

    fn read(&mut self, now_us: u64, sizes: &[(u64, u64)]) {
        if let Some(resize) = &mut self.resize {
            resize.note_reading();
        }
        let devices = self.facts.iter_mut().flat_map(|facts| &mut facts.devices);
        for (device, &(size_bytes, requested_bytes)) in devices.zip(sizes) {
            if device.size_bytes != size_bytes {
                self.is_settled = false;
                self.changed_us = now_us;
            }
            device.size_bytes = size_bytes;
            device.requested_bytes = requested_bytes;
        }
    }

    /// The guest was reset during a change, or changed by itself. Memory that it no longer uses returns to the
    /// pool when it rests.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        let Some(facts) = &self.facts else { return };
        if self.is_settled || self.resize.is_some() {
            return;
        }
        let devices = facts.devices.iter().enumerate();
        if facts.devices.iter().all(|device| device.size_bytes == device.requested_bytes) {
            self.is_settled = true;
            actions.extend(
                devices
                    .filter(|(_, device)| !device.is_at_rest())
                    .map(|(device, it)| Action::Release { device, size_bytes: it.size_bytes }),
            );
        }
    }

    fn reset(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        self.lost(now_us, "the guest was reset", actions);
        actions.push(Action::Say("the guest was reset: its driver takes its memory again".into()));
        self.is_settled = false;
        for device in self.facts.iter_mut().flat_map(|facts| &mut facts.devices) {
            device.size_bytes = 0;
        }
        self.waiting.clear();
        if let Some(agent) = &mut self.agent {
            *agent = Agent::default();
        }
    }

    fn heard(&mut self, now_us: u64, said: FromGuest, actions: &mut Vec<Action>) {
        if !self.needs.may_speak(now_us) {
            return;
        }
        match said {
            FromGuest::Hello { kernel, boot, .. } => {
                let agent = self.agent.get_or_insert_default();
                *agent = Agent { hello: Some((kernel, boot)), ..Agent::default() };
            }
            FromGuest::Status(status) => self.status(now_us, status),
            FromGuest::Need { id, bytes, urgent, wait_ms } => {
                let (cause, wait_us) = match (urgent, 1000 * u64::from(wait_ms)) {
                    (true, _) => (Cause::LastMoment, NEED_WAIT_US),
                    (false, 0) => (Cause::Foreseen, NEED_WAIT_US),
                    (false, wait_us) => (Cause::Program, wait_us.min(PROGRAM_WAIT_US)),
                };
                let until_us = now_us + wait_us;
                self.need(now_us, Need { id, bytes, cause, until_us }, actions);
            }
            FromGuest::Give { id, bytes } => self.give(now_us, id, bytes, actions),
            FromGuest::Offlined { id, bytes } => self.offlined(now_us, id, bytes, actions),
            FromGuest::Reported { id } => self.reported(now_us, id, actions),
            FromGuest::Arrived { id, bytes } => self.arrived(now_us, id, bytes, actions),
        }
    }

    /// Ignores a status with impossible values, and one that was in flight while the guest shrank.
    fn status(&mut self, now_us: u64, status: Status) {
        let Some(facts) = &self.facts else { return };
        let most = facts.boot_bytes + facts.devices.iter().map(|it| it.max_bytes).sum::<u64>();
        if status.total_bytes > most || status.available_bytes > status.total_bytes {
            self.needs.ignore();
            return;
        }
        if status.total_bytes > facts.size_bytes() {
            return;
        }
        let Some(agent) = &mut self.agent else { return };
        if let Some(before) = &agent.status {
            let reads = |it: &Status| it.refaults.saturating_add(it.swap_ins);
            agent.stalled_us = status.stalled_us.saturating_sub(before.stalled_us);
            agent.refaults = reads(&status).saturating_sub(reads(before));
        }
        agent.status = Some(status);
        let rests_us = 2000 * u64::from(self.settings.interval_ms);
        let is_first = agent.kernel_bytes == 0;
        if self.resize.is_none() && (is_first || now_us > self.changed_us + rests_us) {
            agent.kernel_bytes = facts.size_bytes() - status.total_bytes;
        }
    }

    /// The guest did not return what others requested: the memory manager does not ask it for a while.
    pub(crate) fn note_kept(&mut self, now_us: u64, order: &Order, bytes: u64) {
        if bytes > 0 && !matches!(order.who, Who::Guest { .. }) {
            self.kept_until_us = Some(now_us + KEPT_US);
            self.kept_bytes = bytes;
        }
    }

    /// The order in progress.
    pub fn running(&self) -> Option<OrderId> {
        self.resize.as_ref().map(|resize| resize.order.id)
    }
}

impl Agent {
    /// The guest's size at its last report, bytes.
    pub(crate) fn status_size_bytes(&self) -> u64 {
        self.status.map_or(0, |status| status.total_bytes + self.kernel_bytes)
    }
}

impl Facts {
    /// The guest's size, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.boot_bytes + self.devices.iter().map(|device| device.size_bytes).sum::<u64>()
    }
}

impl Device {
    /// Whether the guest has its requested size, and nothing more is reserved.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.size_bytes == self.requested_bytes && self.set_aside_bytes == self.size_bytes
    }
}
