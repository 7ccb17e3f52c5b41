//! Requests of a guest through its agent.

use crate::agent::FromHost;
use crate::need::Need;
use crate::settings::WAITING_MAX;
use crate::{Action, Cause, Facts, Guest, Order, Who};

const UNDER_WAY: &str = "a change of size is in progress";

impl Guest {
    /// The guest needs more memory. The answer follows at the end of the change. A program's request waits for the end
    /// of a change in progress.
    pub(crate) fn need(&mut self, now_us: u64, need: Need, actions: &mut Vec<Action>) {
        if !self.needs.may_wish() {
            return;
        }
        let size_bytes = self.facts.as_ref().map_or(0, Facts::size_bytes);
        let may_wait = need.cause == Cause::Program && now_us < need.until_us;
        match self.refusal(size_bytes, need.cause) {
            Some(UNDER_WAY) if may_wait && self.waiting.len() < WAITING_MAX => {
                self.waiting.push_back(need);
            }
            Some(why) => refuse(need.id, why, actions),
            None => self.grow(now_us, need, actions),
        }
    }

    /// Processes programs' waiting requests once no change is in progress; refuses those that have timed out.
    pub(crate) fn take_up(&mut self, now_us: u64, is_read: bool, actions: &mut Vec<Action>) {
        self.waiting.retain(|need| {
            let is_late = now_us >= need.until_us;
            if is_late {
                refuse(need.id, "the guest's size was changing all that time", actions);
            }
            !is_late
        });
        while is_read
            && self.resize.is_none()
            && let Some(need) = self.waiting.pop_front()
        {
            match self.refusal(0, Cause::Program) {
                Some(why) => refuse(need.id, why, actions),
                None => self.grow(now_us, need, actions),
            }
        }
    }

    fn grow(&mut self, now_us: u64, need: Need, actions: &mut Vec<Action>) {
        let Need { id, bytes, cause, until_us } = need;
        let Some(facts) = &self.facts else {
            return refuse(id, "the VM's monitor is out of reach", actions);
        };
        let (size, ceiling) = (facts.size_bytes(), self.ceiling_bytes(facts));
        let to_bytes = size.saturating_add(bytes).min(ceiling);
        // Rounding up must not exceed the guest's limit.
        let room = (ceiling.saturating_sub(size)) / self.settings.section_bytes
            * self.settings.section_bytes;
        if bytes == 0 || room == 0 {
            return refuse(id, "the guest has its largest size", actions);
        }
        let to_bytes = to_bytes.min(size + room);
        self.wish(now_us, Who::Guest { need: id, cause, until_us }, to_bytes, actions);
    }

    /// The guest offers memory.
    pub(crate) fn give(&mut self, now_us: u64, id: u64, bytes: u64, actions: &mut Vec<Action>) {
        if !self.needs.may_wish() {
            return;
        }
        let Some(facts) = &self.facts else {
            return refuse(id, "the VM's monitor is out of reach", actions);
        };
        let size = facts.size_bytes();
        let least = self.settings.least_bytes.max(facts.boot_bytes);
        if let Some(why) = self.refusal(size, Cause::Foreseen) {
            return refuse(id, why, actions);
        }
        let to_bytes = size.saturating_sub(bytes).max(least);
        if size.saturating_sub(to_bytes) < self.settings.section_bytes {
            return refuse(id, "less than a section can be taken back", actions);
        }
        let who = Who::Guest { need: id, cause: Cause::Foreseen, until_us: now_us };
        self.wish(now_us, who, to_bytes, actions);
    }

    fn wish(&mut self, now_us: u64, who: Who, to_bytes: u64, actions: &mut Vec<Action>) {
        let order = Order { id: self.new_id(), who, to_bytes, roll_back: false, force: false };
        self.order(now_us, order, actions);
    }

    /// Why the guest's requests are refused now. An urgent request stops a change that shrinks the guest, unless the
    /// operator forces it, and replaces a change that waits for memory. A change that grows the guest continues, and
    /// the agent asks again.
    fn refusal(&self, size_bytes: u64, cause: Cause) -> Option<&'static str> {
        if !self.settings.auto {
            return Some("the guest's size does not change by itself: auto is off");
        }
        let resize = self.resize.as_ref()?;
        let shrinks = resize.aim_bytes < size_bytes;
        let is_forced = resize.order.force && resize.order.who == Who::Operator;
        let gives_way = (shrinks && !is_forced) || resize.waits_with_time() || resize.is_plugged();
        (!(cause == Cause::LastMoment && gives_way)).then_some(UNDER_WAY)
    }
}

pub(crate) fn refuse(id: u64, why: &str, actions: &mut Vec<Action>) {
    actions.push(Action::Tell(FromHost::Answer { id, granted_bytes: 0, why: Some(why.into()) }));
}
