//! The model's change of size: the order and times of its stages.

use spillway_guests::agent::FromHost;
use spillway_guests::{Action, Cause, End, Facts, Order, Outcome, Times, Who};
use spillway_types::Size;

use crate::model::{Model, Need, total};

/// Longest durations, microseconds.
const REST: u64 = 2_000_000;
const ONLINE: u64 = 2_000_000;
const ASKED_AGAIN: u64 = 900_000;
const POOL_ASKED_AGAIN: u64 = 20_000;

/// The stage of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// An interrupted change must come to rest first.
    Rest { until: u64 },
    /// The pool is asked to reserve for this device.
    Reserve { device: usize },
    /// The pool was exhausted, and is asked again.
    Wait { until: u64 },
    /// The agent is asked to set blocks offline.
    Offline { id: u64, until: u64 },
    /// The devices are asked, and asked again at a time.
    Plug { until: u64, again: u64 },
    /// The agent is asked to report when all is online.
    Online { id: u64, until: u64 },
    /// The devices are asked to keep their size, or to restore the former one.
    Back { until: u64, again: u64 },
    /// The pool must release memory of this many devices.
    Release { of: usize },
}

/// A change of size.
#[derive(Clone, Debug)]
pub struct Change {
    pub order: Order,
    pub aim: u64,
    from: Facts,
    to: Vec<u64>,
    /// What each device can plug of the memory reserved for this order.
    can_get: Vec<u64>,
    /// Whether the devices were read since the last request.
    pub is_read: bool,
    pub stage: Stage,
    /// The time at which each stage was entered.
    diary: Vec<(u64, Stage)>,
    end: End,
    /// Whether the agent may have set blocks offline.
    has_offline: bool,
    /// The pool's first error.
    dry: Option<String>,
}

impl Change {
    pub fn new(now: u64, order: Order, vm: &Facts, aim: u64, to: Vec<u64>) -> Self {
        let stage = Stage::Reserve { device: 0 };
        let diary = vec![(now, stage.clone())];
        Self {
            order,
            aim,
            from: vm.clone(),
            can_get: vec![0; to.len()],
            to,
            is_read: true,
            stage,
            diary,
            end: End::Reached,
            has_offline: false,
            dry: None,
        }
    }

    /// A change that a daemon finds in progress.
    pub fn adopted(now: u64, order: Order, vm: &Facts) -> Self {
        let to = vm.devices.iter().map(|it| it.requested_bytes).collect();
        let mut change = Self::new(now, order, vm, order.to_bytes, to);
        change.stage = Stage::Wait { until: now };
        change.diary = vec![(now, change.stage.clone())];
        change.has_offline = true;
        change
    }

    fn enter(&mut self, now: u64, stage: Stage) {
        self.diary.push((now, stage.clone()));
        self.stage = stage;
    }

    fn grows_by(&self) -> u64 {
        self.aim.saturating_sub(total(&self.from))
    }

    /// Memory that it waits for other guests to give.
    pub fn waits_for(&self) -> u64 {
        if matches!(self.stage, Stage::Wait { .. }) { self.aim - total(&self.from) } else { 0 }
    }

    /// The request of the program that waits for that memory.
    pub fn program(&self) -> Option<Need> {
        match self.order.who {
            Who::Guest { need, cause: Cause::Program, until_us } if self.waits_for() > 0 => {
                let (bytes, cause) = (self.waits_for(), Cause::Program);
                Some(Need { id: need, bytes, cause, until: until_us })
            }
            _ => None,
        }
    }

    /// Whether the requester waits for memory of others without needing it at once.
    pub fn waits_with_time(&self) -> bool {
        let is_last = matches!(self.order.who, Who::Guest { cause: Cause::LastMoment, .. });
        matches!(self.order.who, Who::Guest { .. }) && !is_last && self.waits_for() > 0
    }

    /// Computed from the diary: each stage lasted until the next began.
    fn times(&self, now: u64) -> Times {
        let mut times = Times::default();
        for ((since, stage), (until, _)) in self.diary.iter().zip(&self.diary[1..]) {
            let time = match stage {
                Stage::Rest { .. } | Stage::Reserve { .. } | Stage::Wait { .. } => {
                    &mut times.reserve_us
                }
                Stage::Offline { .. } => &mut times.offline_us,
                Stage::Plug { .. } | Stage::Online { .. } | Stage::Back { .. } => {
                    &mut times.guest_us
                }
                Stage::Release { .. } => &mut times.release_us,
            };
            *time += until - since;
        }
        times.total_us = now - self.diary[0].0;
        times
    }

    /// The times at which something is due.
    pub fn due(&self) -> Vec<u64> {
        match self.stage {
            Stage::Rest { until }
            | Stage::Wait { until }
            | Stage::Offline { until, .. }
            | Stage::Online { until, .. } => vec![until],
            Stage::Plug { until, again } | Stage::Back { until, again } => vec![until, again],
            Stage::Reserve { .. } | Stage::Release { .. } => vec![],
        }
    }
}

impl Model {
    fn enter(&mut self, now: u64, stage: Stage) {
        if let Some(change) = &mut self.change {
            change.enter(now, stage);
        }
    }

    fn ends_as(&mut self, end: End) {
        if let Some(change) = &mut self.change {
            change.end = end;
        }
    }

    /// A newer order replaces this one.
    pub fn supersede(&mut self, now: u64, by: Who) {
        let Some(change) = &self.change else { return };
        let (who, aim) = (change.order.who, change.aim);
        let kept = self.size().saturating_sub(aim);
        let waits = change.program().filter(|need| now < need.until);
        // A change whose memory is plugged has reached its aim.
        let is_plugged = matches!(change.stage, Stage::Online { .. });
        let end = if is_plugged { change.end.clone() } else { End::Superseded };
        if matches!(by, Who::Guest { .. }) {
            self.keeps(now, who, kept);
        }
        match waits {
            None => self.end(now, end),
            Some(need) => {
                self.queue.insert(0, need);
                self.end_unanswered(now, end);
            }
        }
    }

    /// Ends the change at the present size.
    pub fn end(&mut self, now: u64, end: End) {
        let Some(change) = &self.change else { return };
        let Who::Guest { need, .. } = change.order.who else {
            return self.end_unanswered(now, end);
        };
        let (from, size) = (total(&change.from), self.size());
        let why = match &end {
            End::Reached => None,
            End::Partial | End::RolledBack => Some("the guest could not change in time".to_owned()),
            End::Superseded => Some("a newer order took its place".to_owned()),
            End::Refused(why) | End::Lost(why) => Some(why.chars().take(128).collect()),
        };
        if change.has_offline {
            self.tell(FromHost::Online);
        }
        // A granted part needs no reason.
        let why = why.filter(|_| size == from);
        self.tell(FromHost::Answer { id: need, granted_bytes: size.abs_diff(from), why });
        self.close(now, end);
    }

    fn end_unanswered(&mut self, now: u64, end: End) {
        if self.change.as_ref().is_some_and(|change| change.has_offline) {
            self.tell(FromHost::Online);
        }
        self.close(now, end);
    }

    fn close(&mut self, now: u64, end: End) {
        let size_bytes = self.size();
        let Some(change) = self.change.take() else { return };
        self.actions.push(Action::Done(Outcome {
            order: change.order,
            end,
            from_bytes: total(&change.from),
            aim_bytes: change.aim,
            size_bytes,
            times: change.times(now),
        }));
    }

    fn is_still(&self) -> bool {
        let mut devices = self.vm.iter().flat_map(|vm| &vm.devices);
        devices.all(|it| it.size_bytes == it.requested_bytes)
    }

    /// Reserves for the first device, from this one on, that has too little; then asks the guest.
    pub fn set_aside(&mut self, now: u64, from: usize) {
        let (Some(change), Some(vm)) = (&self.change, &self.vm) else { return };
        // Memory that was reserved earlier may not lie where the guest plugs next.
        let has = |at: usize| vm.devices[at].size_bytes.max(change.can_get[at]);
        let lacks = |at: usize| change.to[at].saturating_sub(has(at));
        let shrinks = change.aim < total(&change.from);
        if let Some(device) = (from..change.to.len()).find(|&at| lacks(at) > 0) {
            if self.is_still() {
                let (more_bytes, size_bytes) = (lacks(device), vm.devices[device].size_bytes);
                if vm.devices[device].set_aside_bytes > has(device) {
                    self.actions.push(Action::Release { device, size_bytes });
                }
                self.enter(now, Stage::Reserve { device });
                self.actions.push(Action::Reserve { device, more_bytes });
                return;
            }
            // Memory that the guest is about to plug can't be distinguished from new reservations.
            self.enter(now, Stage::Rest { until: now + REST });
            self.keep_what_is_there();
        } else if shrinks && self.has_agent() {
            let bytes = total(&change.from) - change.aim;
            let may_take = self.settings.offline_timeout_us;
            let id = self.new_id();
            self.enter(now, Stage::Offline { id, until: now + may_take + may_take / 4 });
            self.change.iter_mut().for_each(|change| change.has_offline = true);
            let timeout_ms = (may_take / 1000) as u32;
            self.tell(FromHost::Offline { id, bytes, timeout_ms });
        } else {
            self.plug(now);
        }
    }

    pub fn reserved(&mut self, now: u64, device: usize, result: Result<u64, String>) {
        let is_awaited =
            self.change.as_ref().is_some_and(|it| it.stage == Stage::Reserve { device });
        match result {
            Ok(bytes) => {
                self.note_set_aside(device, bytes);
                if let Some(change) = self.change.as_mut().filter(|_| is_awaited) {
                    change.can_get[device] = change.to[device];
                    self.set_aside(now, device);
                }
            }
            Err(why) if is_awaited => self.dry(now, why),
            Err(_) => {}
        }
    }

    fn note_set_aside(&mut self, device: usize, bytes: u64) {
        if let Some(it) = self.vm.as_mut().and_then(|vm| vm.devices.get_mut(device)) {
            it.set_aside_bytes = bytes;
        }
    }

    fn dry(&mut self, now: u64, why: String) {
        let section = self.settings.section_bytes;
        let Some(change) = &mut self.change else { return };
        let why = change.dry.get_or_insert(why).clone();
        let half = change.grows_by() / 2 / section * section;
        let waited_s = (now - change.diary[0].0) / 1_000_000;
        let who = change.order.who;
        match who {
            Who::Guest { until_us, .. } if now < until_us => {
                self.enter(now, Stage::Wait { until: now + POOL_ASKED_AGAIN });
            }
            // At the end of the wait it takes half, then half of that.
            Who::Guest { .. } if half > 0 && self.aim_lower(half) => self.set_aside(now, 0),
            Who::Guest { .. } if waited_s > 0 => {
                self.ends_as(End::Refused(format!("{why}; no guest gave any in {waited_s} s")));
                self.release(now);
            }
            Who::Daemon => {
                self.ends_as(End::Partial);
                self.stay(now);
            }
            Who::Guest { .. } | Who::Operator | Who::Manager => {
                self.ends_as(End::Refused(why));
                self.release(now);
            }
        }
    }

    /// Lowers the aim to this many bytes of growth, if the devices hold them.
    fn aim_lower(&mut self, more: u64) -> bool {
        let (Some(change), Some(vm)) = (&mut self.change, &self.vm) else { return false };
        let aim = total(&change.from) + more;
        let mut left = aim.saturating_sub(total(vm));
        let mut to: Vec<u64> = vm.devices.iter().map(|it| it.size_bytes).collect();
        for (to, device) in to.iter_mut().zip(&vm.devices) {
            let step = left.min(device.max_bytes.saturating_sub(*to));
            (*to, left) = (*to + step, left - step);
        }
        let mut less = total(vm).saturating_sub(aim);
        for to in to.iter_mut().rev() {
            let step = less.min(*to);
            (*to, less) = (*to - step, less - step);
        }
        if left == 0 {
            (change.aim, change.to) = (aim, to);
        }
        left == 0
    }

    pub fn plug(&mut self, now: u64) {
        let until = now + self.settings.resize_timeout_us;
        self.enter(now, Stage::Plug { until, again: now + ASKED_AGAIN });
        self.ask_devices();
    }

    /// Asks each device that has not reached its aim.
    fn ask_devices(&mut self) {
        let (Some(change), Some(vm)) = (&mut self.change, &self.vm) else { return };
        for (device, (it, &bytes)) in vm.devices.iter().zip(&change.to).enumerate() {
            if (it.size_bytes, it.requested_bytes) != (bytes, bytes) {
                change.is_read = false;
                self.actions.push(Action::Request { device, bytes });
            }
        }
    }

    pub fn requested(&mut self, now: u64, device: usize, result: Result<u64, String>) {
        let why = match result {
            Ok(bytes) => {
                if let Some(it) = self.vm.as_mut().and_then(|vm| vm.devices.get_mut(device)) {
                    it.requested_bytes = bytes;
                }
                return;
            }
            Err(why) => why,
        };
        match self.change.as_ref().map(|change| change.stage.clone()) {
            Some(Stage::Rest { .. }) => {
                self.ends_as(End::Refused(why));
                self.release(now);
            }
            Some(Stage::Plug { .. }) => {
                self.ends_as(End::Refused(why));
                self.stay(now);
            }
            Some(Stage::Back { .. }) => {
                self.say(&format!("the monitor refuses a size: {why}"));
                self.release(now);
            }
            _ => {}
        }
    }

    /// Asks each device to keep its present size, if it was asked for another one.
    fn keep_what_is_there(&mut self) {
        let Some(vm) = &self.vm else { return };
        let differs =
            vm.devices.iter().enumerate().filter(|(_, it)| it.size_bytes != it.requested_bytes);
        let asked = differs.map(|(device, it)| Action::Request { device, bytes: it.size_bytes });
        self.actions.extend(asked);
        self.change.iter_mut().for_each(|change| change.is_read = false);
    }

    /// Advances by one step, by time and readings.
    pub fn go_on(&mut self, now: u64) {
        let (Some(change), Some(vm)) = (&self.change, &self.vm) else { return };
        let mut asked = vm.devices.iter().zip(&change.to);
        let is_there = asked.all(|(it, to)| it.size_bytes == *to && it.requested_bytes == *to);
        let is_there = is_there && change.is_read;
        match change.stage {
            Stage::Rest { .. } if change.is_read && self.is_still() => self.set_aside(now, 0),
            Stage::Rest { until } if now >= until => {
                let why = "the guest is still changing, and does not come to rest";
                self.ends_as(End::Refused(why.into()));
                self.release(now);
            }
            // It has changed since it was asked to stay: it stays at its present size.
            Stage::Rest { .. } if change.is_read => self.keep_what_is_there(),
            Stage::Wait { until } if now >= until => self.set_aside(now, 0),
            Stage::Offline { until, .. } if now >= until => self.plug(now),
            Stage::Plug { .. } if is_there => self.arrive(now),
            Stage::Plug { until, .. } if now >= until => self.late(now),
            Stage::Back { .. } if is_there => self.release(now),
            Stage::Back { until, .. } if now >= until => {
                self.say("the devices do not come to rest");
                self.release(now);
            }
            Stage::Online { until, .. } if now >= until || !self.has_agent() => {
                self.say("the agent does not report new memory online");
                self.release(now);
            }
            Stage::Plug { until, again } if now >= again => {
                self.change.iter_mut().for_each(|change| {
                    change.stage = Stage::Plug { until, again: now + ASKED_AGAIN };
                });
                self.ask_devices();
            }
            Stage::Back { until, again } if now >= again => {
                self.change.iter_mut().for_each(|change| {
                    change.stage = Stage::Back { until, again: now + ASKED_AGAIN };
                });
                self.ask_devices();
            }
            _ => {}
        }
    }

    /// Waits until new memory is online, if an agent reports it and the guest can wait.
    fn arrive(&mut self, now: u64) {
        let (Some(change), Some(vm)) = (&self.change, &self.vm) else { return };
        let is_urgent = matches!(change.order.who, Who::Guest { cause: Cause::LastMoment, .. });
        if change.grows_by() == 0 || is_urgent || !self.has_agent() {
            return self.release(now);
        }
        let bytes = total(vm) - vm.boot_bytes;
        let id = self.new_id();
        self.enter(now, Stage::Online { id, until: now + ONLINE });
        self.tell(FromHost::Arrive { id, bytes, timeout_ms: (ONLINE / 1000) as u32 });
    }

    pub fn arrived(&mut self, now: u64, answered: u64, online: u64) {
        let (Some(change), Some(vm)) = (&self.change, &self.vm) else { return };
        let Stage::Online { id, .. } = change.stage else { return };
        if !self.is(id, answered) {
            return;
        }
        let plugged = total(vm) - vm.boot_bytes;
        if online < plugged {
            let (online, plugged) = (Size(online), Size(plugged));
            self.say(&format!(
                "the guest uses {online} of {plugged} that it was given: the rest stays offline"
            ));
        }
        self.release(now);
    }

    fn late(&mut self, now: u64) {
        let size = self.size();
        let Some(change) = &mut self.change else { return };
        let (who, kept) = (change.order.who, size.saturating_sub(change.aim));
        if change.order.roll_back {
            change.end = End::RolledBack;
            change.to = change.from.devices.iter().map(|it| it.size_bytes).collect();
            let until = now + self.settings.resize_timeout_us;
            change.enter(now, Stage::Back { until, again: now + ASKED_AGAIN });
            self.ask_devices();
        } else {
            change.end = End::Partial;
            self.stay(now);
        }
        self.keeps(now, who, kept);
    }

    /// The guest keeps its present size.
    fn stay(&mut self, now: u64) {
        let sizes = self.vm.iter().flat_map(|vm| &vm.devices).map(|it| it.size_bytes).collect();
        let Some(change) = &mut self.change else { return };
        change.to = sizes;
        change.enter(now, Stage::Back { until: now + REST, again: now + ASKED_AGAIN });
        self.ask_devices();
    }

    /// Releases what devices at rest have reserved beyond their size. After growth the file is examined in any case.
    fn release(&mut self, now: u64) {
        let (Some(change), Some(vm)) = (&self.change, &self.vm) else { return };
        let mut wanted = Vec::new();
        for (device, (it, was)) in vm.devices.iter().zip(&change.from.devices).enumerate() {
            let has_grown = it.size_bytes > was.size_bytes;
            let is_off = it.set_aside_bytes != it.size_bytes;
            if it.size_bytes == it.requested_bytes && (is_off || has_grown) {
                wanted.push(Action::Release { device, size_bytes: it.size_bytes });
            }
        }
        self.enter(now, Stage::Release { of: wanted.len() });
        self.actions.extend(wanted);
        self.end_if_released(now);
    }

    pub fn released(&mut self, now: u64, device: usize, set_aside: u64) {
        self.note_set_aside(device, set_aside);
        if let Some(Change { stage: Stage::Release { of }, .. }) = &mut self.change {
            *of = of.saturating_sub(1);
            self.end_if_released(now);
        }
    }

    fn end_if_released(&mut self, now: u64) {
        let Some(change) = &mut self.change else { return };
        if change.stage == (Stage::Release { of: 0 }) {
            change.enter(now, Stage::Release { of: 0 });
            let end = change.end.clone();
            self.end(now, end);
        }
    }
}
