//! A change of size, stage by stage.
//!
//! ```text
//!  grow     (rest) -> reserve -> plug -> online ------> release -> done
//!  shrink             offline -> plug ----------------> release -> done
//!  late                          plug -> freeze or back -> release -> done
//! ```
//!
//! The host reserves memory before it asks the guest, and releases memory after the guest has unplugged it. So a device
//! is never asked for more than the pool has reserved, and the pool never frees memory that the guest may still take.

use spillway_types::Size;

use crate::agent::FromHost;
use crate::needs::refuse;
use crate::plan::spread;
use crate::settings::{ARRIVE_US, FREEZE_US, NEED_RETRY_US, NUDGE_US};
use crate::stage::{Resize, Stage};
use crate::{Action, Cause, Device, End, Facts, Guest, Order, Outcome, Times, Who};

impl Guest {
    /// Starts an order, which replaces the one in progress; or refuses it before anything changes.
    pub(crate) fn order(&mut self, now_us: u64, order: Order, actions: &mut Vec<Action>) {
        if order.who == Who::Operator {
            self.drop_held(actions);
        }
        let is_too_full =
            self.plan(&order).is_ok_and(|(size, to, _)| self.check(&order, size, to).is_err());
        if !is_too_full || !self.hold_back(now_us, order, actions) {
            self.order_now(now_us, order, actions);
        }
    }

    /// The same, with the present state.
    pub(crate) fn order_now(&mut self, now_us: u64, order: Order, actions: &mut Vec<Action>) {
        let planned = self.plan(&order).and_then(|planned| {
            self.check(&order, planned.0, planned.1)?;
            Ok(planned)
        });
        let (from_bytes, aim_bytes, to) = match planned {
            Ok(planned) => planned,
            Err(why) => return self.unchanged(order, End::Refused(why), actions),
        };
        self.supersede(now_us, order.who, actions);
        let from = self.sizes(|device| device.size_bytes);
        self.resize = Some(Resize {
            order,
            aim_bytes,
            from_bytes,
            reserved: vec![0; to.len()],
            from,
            to,
            stage: Stage::Reserve { device: 0 },
            is_read: true,
            began_us: now_us,
            stage_began_us: now_us,
            times: Times::default(),
            end: End::Reached,
            has_offlined: false,
            is_put_back: false,
            dry: None,
        });
        self.reserve_from(now_us, 0, actions);
    }

    /// Adopts a change in progress in a VM to which the daemon attached.
    pub(crate) fn begin_adopted(&mut self, now_us: u64, order: Order) {
        self.resize = Some(Resize {
            order,
            aim_bytes: order.to_bytes,
            from_bytes: self.facts.as_ref().map_or(0, Facts::size_bytes),
            from: self.sizes(|device| device.size_bytes),
            to: self.sizes(|device| device.requested_bytes),
            reserved: self.sizes(|_| 0),
            stage: Stage::Wait { until_us: now_us },
            is_read: true,
            began_us: now_us,
            stage_began_us: now_us,
            times: Times::default(),
            end: End::Reached,
            has_offlined: true,
            is_put_back: false,
            dry: None,
        });
    }

    /// Ends an order before anything has changed.
    pub(crate) fn unchanged(&mut self, order: Order, end: End, actions: &mut Vec<Action>) {
        let size_bytes = self.facts.as_ref().map_or(0, Facts::size_bytes);
        if let End::Refused(why) = &end {
            self.answer(&order, size_bytes, size_bytes, Some(why), actions);
        }
        actions.push(Action::Done(Outcome {
            order,
            end,
            from_bytes: size_bytes,
            aim_bytes: order.to_bytes,
            size_bytes,
            times: Times::default(),
        }));
    }

    /// The newest order wins. It takes over what was reserved for the older one. A program that waits for memory
    /// continues to wait.
    fn supersede(&mut self, now_us: u64, by: Who, actions: &mut Vec<Action>) {
        if let Some(mut resize) = self.resize.take() {
            let size_bytes = self.facts.as_ref().map_or(0, Facts::size_bytes);
            let kept_bytes = size_bytes.saturating_sub(resize.aim_bytes);
            if !resize.is_plugged() {
                resize.end = End::Superseded;
            }
            if let Some(need) = resize.program().filter(|need| now_us < need.until_us) {
                resize.is_put_back = true;
                self.waiting.push_front(need);
            }
            if matches!(by, Who::Guest { .. }) {
                self.note_kept(now_us, &resize.order, kept_bytes);
            }
            self.done(now_us, resize, actions);
        }
    }

    pub(crate) fn lost(&mut self, now_us: u64, why: &str, actions: &mut Vec<Action>) {
        if let Some(mut resize) = self.resize.take() {
            resize.end = End::Lost(why.into());
            self.done(now_us, resize, actions);
        }
    }

    fn sizes(&self, of: impl Fn(&Device) -> u64) -> Vec<u64> {
        self.facts.iter().flat_map(|facts| &facts.devices).map(of).collect()
    }

    /// Reserves memory for the first device, from `device` on, that needs more than this order has reserved. Memory
    /// reserved by an earlier order or a killed daemon may not lie where the guest plugs next, so it is released first.
    fn reserve_from(&mut self, now_us: u64, device: usize, actions: &mut Vec<Action>) {
        let sizes = self.sizes(|device| device.size_bytes);
        let set_aside = self.sizes(|device| device.set_aside_bytes);
        let is_still = self.is_still();
        let Some(resize) = &mut self.resize else { return };
        let has = |at: usize| sizes[at].max(resize.reserved[at]);
        let next = (device..resize.to.len()).find(|&at| resize.to[at] > has(at));
        match next {
            Some(_) if !is_still => {
                resize.enter(now_us, Stage::Rest { until_us: now_us + FREEZE_US });
                self.hold(actions);
            }
            Some(device) => {
                let more_bytes = resize.to[device] - has(device);
                let (size_bytes, has_more) = (sizes[device], set_aside[device] > has(device));
                resize.enter(now_us, Stage::Reserve { device });
                if has_more {
                    actions.push(Action::Release { device, size_bytes });
                }
                actions.push(Action::Reserve { device, more_bytes });
            }
            None if resize.aim_bytes < resize.from_bytes && self.agent_answers() => {
                self.offline(now_us, actions);
            }
            None => self.plug(now_us, actions),
        }
    }

    /// Whether the guest is neither plugging nor unplugging.
    fn is_still(&self) -> bool {
        let mut devices = self.facts.iter().flat_map(|facts| &facts.devices);
        devices.all(|device| device.size_bytes == device.requested_bytes)
    }

    /// Requests the present size of each device.
    fn hold(&mut self, actions: &mut Vec<Action>) {
        let (Some(resize), Some(facts)) = (&mut self.resize, &self.facts) else { return };
        resize.is_read = false;
        for (at, device) in facts.devices.iter().enumerate() {
            if device.requested_bytes != device.size_bytes {
                actions.push(Action::Request { device: at, bytes: device.size_bytes });
            }
        }
    }

    pub(crate) fn agent_answers(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.hello.is_some())
    }

    pub(crate) fn reserved(
        &mut self,
        now_us: u64,
        device: usize,
        result: Result<u64, String>,
        actions: &mut Vec<Action>,
    ) {
        let is_awaited =
            self.resize.as_ref().is_some_and(|resize| resize.stage == Stage::Reserve { device });
        match result {
            Ok(set_aside_bytes) => {
                self.set_aside(device, set_aside_bytes);
                if is_awaited && let Some(resize) = &mut self.resize {
                    resize.reserved[device] = resize.to[device];
                    self.reserve_from(now_us, device, actions);
                }
            }
            Err(why) if is_awaited => self.dry(now_us, why, actions),
            Err(_) => {}
        }
    }

    fn set_aside(&mut self, device: usize, bytes: u64) {
        let devices = self.facts.iter_mut().flat_map(|facts| &mut facts.devices);
        if let Some(device) = devices.into_iter().nth(device) {
            device.set_aside_bytes = bytes;
        }
    }

    /// The pool can't provide that much. A guest in need waits for memory of others, and then takes what is available.
    /// An adopted change ends where it is. Other orders are refused.
    fn dry(&mut self, now_us: u64, why: String, actions: &mut Vec<Action>) {
        let half = self.half();
        let Some(resize) = &mut self.resize else { return };
        let why = resize.dry.get_or_insert(why).clone();
        match (resize.order.who, half) {
            (Who::Guest { until_us, .. }, _) if now_us < until_us => {
                resize.enter(now_us, Stage::Wait { until_us: now_us + NEED_RETRY_US });
            }
            (Who::Guest { .. }, Some((aim_bytes, to))) => {
                (resize.aim_bytes, resize.to) = (aim_bytes, to);
                self.reserve_from(now_us, 0, actions);
            }
            (Who::Guest { .. }, None) => {
                let waited_s = (now_us - resize.began_us) / 1_000_000;
                resize.end = End::Refused(match waited_s {
                    0 => why,
                    _ => format!("{why}; no guest gave any in {waited_s} s"),
                });
                self.release(now_us, actions);
            }
            (Who::Daemon, _) => {
                resize.end = End::Partial;
                self.freeze(now_us, actions);
            }
            (Who::Operator | Who::Manager, _) => {
                resize.end = End::Refused(why);
                self.release(now_us, actions);
            }
        }
    }

    /// Half of the growth, if that is at least a section: the guest's size then, and each device's.
    fn half(&self) -> Option<(u64, Vec<u64>)> {
        let (resize, facts) = (self.resize.as_ref()?, self.facts.as_ref()?);
        let section = self.settings.section_bytes;
        let half = resize.aim_bytes.saturating_sub(resize.from_bytes) / 2 / section * section;
        let aim_bytes = resize.from_bytes + half;
        let to = spread(&facts.devices, aim_bytes - facts.boot_bytes)?;
        (half > 0).then_some((aim_bytes, to))
    }

    fn offline(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let id = self.new_id();
        let timeout_us = self.settings.offline_timeout_us;
        let Some(resize) = &mut self.resize else { return };
        // Includes time for the answer to arrive.
        resize.enter(now_us, Stage::Offline { id, until_us: now_us + timeout_us + timeout_us / 4 });
        resize.has_offlined = true;
        let timeout_ms = u32::try_from(timeout_us / 1000).unwrap_or(u32::MAX);
        let bytes = resize.from_bytes - resize.aim_bytes;
        actions.push(Action::Tell(FromHost::Offline { id, bytes, timeout_ms }));
    }

    /// The device's request does not depend on how much is offline. Blocks that go offline after the end come online
    /// again.
    pub(crate) fn offlined(
        &mut self,
        now_us: u64,
        answered: u64,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(resize) = &self.resize else {
            if bytes > 0 {
                actions.push(Action::Tell(FromHost::Online));
            }
            return;
        };
        if matches!(resize.stage, Stage::Offline { id, .. } if id == answered) {
            self.plug(now_us, actions);
        }
    }

    fn plug(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let until_us = now_us + self.settings.resize_timeout_us;
        let Some(resize) = &mut self.resize else { return };
        resize.enter(now_us, Stage::Plug { until_us, nudge_at_us: now_us + NUDGE_US });
        self.request(actions);
    }

    /// Requests the devices' aims.
    fn request(&mut self, actions: &mut Vec<Action>) {
        let (Some(resize), Some(facts)) = (&mut self.resize, &self.facts) else { return };
        for (at, (device, &bytes)) in facts.devices.iter().zip(&resize.to).enumerate() {
            if device.requested_bytes != bytes || device.size_bytes != bytes {
                resize.is_read = false;
                actions.push(Action::Request { device: at, bytes });
            }
        }
    }

    pub(crate) fn requested(
        &mut self,
        now_us: u64,
        device: usize,
        result: Result<u64, String>,
        actions: &mut Vec<Action>,
    ) {
        let why = match result {
            Ok(bytes) => {
                let devices = self.facts.iter_mut().flat_map(|facts| &mut facts.devices);
                if let Some(device) = devices.into_iter().nth(device) {
                    device.requested_bytes = bytes;
                }
                return;
            }
            Err(why) => why,
        };
        let Some(resize) = &mut self.resize else { return };
        match resize.stage {
            Stage::Rest { .. } => {
                resize.end = End::Refused(why);
                self.release(now_us, actions);
            }
            Stage::Plug { .. } => {
                resize.end = End::Refused(why);
                self.freeze(now_us, actions);
            }
            Stage::Freeze { .. } => {
                actions.push(Action::Say(format!("the monitor refuses a size: {why}")));
                self.release(now_us, actions);
            }
            _ => {}
        }
    }

    /// Advances the change by time and the devices' sizes.
    pub(crate) fn advance(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let (is_there, is_still) = (self.is_there(), self.is_still());
        let agent_answers = self.agent_answers();
        let Some(resize) = &mut self.resize else { return };
        match &mut resize.stage {
            Stage::Rest { .. } if is_still && resize.is_read => {
                self.reserve_from(now_us, 0, actions)
            }
            Stage::Rest { until_us } if now_us >= *until_us => {
                resize.end =
                    End::Refused("the guest is still changing, and does not come to rest".into());
                self.release(now_us, actions);
            }
            // It continued while it was stopped: it may keep that.
            Stage::Rest { .. } if resize.is_read => self.hold(actions),
            Stage::Wait { until_us } if now_us >= *until_us => {
                self.reserve_from(now_us, 0, actions)
            }
            Stage::Offline { until_us, .. } if now_us >= *until_us => self.plug(now_us, actions),
            Stage::Plug { .. } if is_there => self.arrive(now_us, actions),
            Stage::Freeze { .. } if is_there => self.release(now_us, actions),
            Stage::Online { until_us, .. } if now_us >= *until_us || !agent_answers => {
                actions.push(Action::Say("the agent does not report new memory online".into()));
                self.release(now_us, actions);
            }
            Stage::Plug { until_us, .. } if now_us >= *until_us => self.late(now_us, actions),
            Stage::Freeze { until_us, .. } if now_us >= *until_us => {
                actions.push(Action::Say("the devices do not come to rest".into()));
                self.release(now_us, actions);
            }
            Stage::Plug { nudge_at_us, .. } | Stage::Freeze { nudge_at_us, .. }
                if now_us >= *nudge_at_us =>
            {
                *nudge_at_us = now_us + NUDGE_US;
                self.request(actions);
            }
            _ => {}
        }
    }

    /// The devices have reached their aims. The last plugged memory goes online a moment later, which the agent
    /// reports. A guest in need notices that itself.
    fn arrive(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let agent_answers = self.agent_answers();
        let plugged_bytes = self.sizes(|device| device.size_bytes).iter().sum();
        let id = self.new_id();
        let Some(resize) = &mut self.resize else { return };
        let has_grown = resize.aim_bytes > resize.from_bytes;
        let is_urgent = matches!(resize.order.who, Who::Guest { cause: Cause::LastMoment, .. });
        if !has_grown || is_urgent || !agent_answers {
            return self.release(now_us, actions);
        }
        resize.enter(now_us, Stage::Online { id, until_us: now_us + ARRIVE_US });
        let timeout_ms = (ARRIVE_US / 1000) as u32;
        actions.push(Action::Tell(FromHost::Arrive { id, bytes: plugged_bytes, timeout_ms }));
    }

    /// No more memory will come online.
    pub(crate) fn arrived(
        &mut self,
        now_us: u64,
        answered: u64,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        let plugged_bytes: u64 = self.sizes(|device| device.size_bytes).iter().sum();
        let Some(resize) = &self.resize else { return };
        if !matches!(resize.stage, Stage::Online { id, .. } if id == answered) {
            return;
        }
        if bytes < plugged_bytes {
            let (online, plugged) = (Size(bytes), Size(plugged_bytes));
            actions.push(Action::Say(format!(
                "the guest uses {online} of {plugged} that it was given: the rest stays offline"
            )));
        }
        self.release(now_us, actions);
    }

    fn is_there(&self) -> bool {
        let (Some(resize), Some(facts)) = (&self.resize, &self.facts) else { return false };
        let mut devices = facts.devices.iter().zip(&resize.to);
        resize.is_read
            && devices.all(|(device, &to)| device.size_bytes == to && device.requested_bytes == to)
    }

    /// The change timed out.
    fn late(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let timeout_us = self.settings.resize_timeout_us;
        let size_bytes = self.facts.as_ref().map_or(0, Facts::size_bytes);
        let Some(resize) = &mut self.resize else { return };
        let order = resize.order;
        let kept_bytes = size_bytes.saturating_sub(resize.aim_bytes);
        if resize.order.roll_back {
            resize.end = End::RolledBack;
            resize.to.clone_from(&resize.from);
            let until_us = now_us + timeout_us;
            resize.enter(now_us, Stage::Freeze { until_us, nudge_at_us: now_us + NUDGE_US });
            self.request(actions);
        } else {
            resize.end = End::Partial;
            self.freeze(now_us, actions);
        }
        self.note_kept(now_us, &order, kept_bytes);
    }

    /// The guest stays where it is.
    fn freeze(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let sizes = self.sizes(|device| device.size_bytes);
        let Some(resize) = &mut self.resize else { return };
        resize.to = sizes;
        resize.enter(
            now_us,
            Stage::Freeze { until_us: now_us + FREEZE_US, nudge_at_us: now_us + NUDGE_US },
        );
        self.request(actions);
    }

    /// For devices at rest, only their present size stays reserved. For the others, everything stays
    /// reserved.
    fn release(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let (Some(resize), Some(facts)) = (&mut self.resize, &self.facts) else { return };
        let mut waits = 0;
        for (at, device) in facts.devices.iter().enumerate() {
            let size_bytes = device.size_bytes;
            // Memory reserved by a killed daemon may lie elsewhere than what the guest took, so the file is examined.
            let has_grown = resize.from.get(at).is_some_and(|&from| from < size_bytes);
            let is_settled = device.set_aside_bytes == size_bytes && !has_grown;
            if size_bytes == device.requested_bytes && !is_settled {
                actions.push(Action::Release { device: at, size_bytes });
                waits += 1;
            }
        }
        resize.enter(now_us, Stage::Release { waits });
        self.end_if_released(now_us, actions);
    }

    pub(crate) fn released(
        &mut self,
        now_us: u64,
        device: usize,
        set_aside_bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        self.set_aside(device, set_aside_bytes);
        if let Some(Resize { stage: Stage::Release { waits }, .. }) = &mut self.resize {
            *waits = waits.saturating_sub(1);
            self.end_if_released(now_us, actions);
        }
    }

    fn end_if_released(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let is_over =
            self.resize.as_ref().is_some_and(|resize| resize.stage == Stage::Release { waits: 0 });
        if is_over && let Some(mut resize) = self.resize.take() {
            resize.enter(now_us, Stage::Release { waits: 0 });
            self.done(now_us, resize, actions);
        }
    }

    fn done(&mut self, now_us: u64, mut resize: Resize, actions: &mut Vec<Action>) {
        resize.times.total_us = now_us - resize.began_us;
        // If all of it was taken, nothing is left to come online.
        if resize.has_offlined {
            actions.push(Action::Tell(FromHost::Online));
        }
        let size_bytes = self.facts.as_ref().map_or(0, Facts::size_bytes);
        let why = match &resize.end {
            End::Reached => None,
            End::Partial | End::RolledBack => Some("the guest could not change in time"),
            End::Superseded => Some("a newer order took its place"),
            End::Refused(why) | End::Lost(why) => Some(why.as_str()),
        };
        if !resize.is_put_back {
            self.answer(&resize.order, resize.from_bytes, size_bytes, why, actions);
        }
        actions.push(Action::Done(Outcome {
            order: resize.order,
            end: resize.end,
            from_bytes: resize.from_bytes,
            aim_bytes: resize.aim_bytes,
            size_bytes,
            times: resize.times,
        }));
    }

    /// Sends the guest the result of its request.
    fn answer(
        &self,
        order: &Order,
        from: u64,
        to: u64,
        why: Option<&str>,
        actions: &mut Vec<Action>,
    ) {
        let Who::Guest { need, .. } = order.who else { return };
        match why {
            Some(why) if from == to => {
                let short: String = why.chars().take(crate::agent::TEXT_MAX).collect();
                refuse(need, &short, actions);
            }
            _ => {
                let granted_bytes = from.abs_diff(to);
                actions.push(Action::Tell(FromHost::Answer { id: need, granted_bytes, why: None }));
            }
        }
    }
}
