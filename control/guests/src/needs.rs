//! What a guest wishes by its agent, and how often it is heard.

use crate::agent::FromHost;
use crate::settings::{MESSAGES_MAX, NEEDS_MAX};
use crate::{Action, Guest, Order, Who};

/// How often the guest was heard in this second, and what was not heard at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    second: u64,
    messages: u32,
    needs: u32,
    ignored: u64,
}

impl Needs {
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored
    }

    pub(crate) fn ignore(&mut self) {
        self.ignored += 1;
    }

    pub(crate) fn may_speak(&mut self, now_us: u64) -> bool {
        if self.second != now_us / 1_000_000 {
            *self = Self { second: now_us / 1_000_000, ignored: self.ignored, ..Self::default() };
        }
        self.messages += 1;
        self.within(self.messages <= MESSAGES_MAX)
    }

    fn may_wish(&mut self) -> bool {
        self.needs += 1;
        self.within(self.needs <= NEEDS_MAX)
    }

    fn within(&mut self, fits: bool) -> bool {
        if !fits {
            self.ignore();
        }
        fits
    }
}

impl Guest {
    /// The guest needs more. What it gets is answered when the change has ended.
    pub(crate) fn need(
        &mut self,
        now_us: u64,
        id: u64,
        bytes: u64,
        urgent: bool,
        actions: &mut Vec<Action>,
    ) {
        if !self.needs.may_wish() {
            return;
        }
        let Some(facts) = &self.facts else {
            return refuse(id, "the VM's monitor is out of reach", actions);
        };
        let (size, ceiling) = (facts.size_bytes(), self.ceiling_bytes(facts));
        if let Some(why) = self.refusal(size, urgent) {
            return refuse(id, why, actions);
        }
        let to_bytes = size.saturating_add(bytes).min(ceiling);
        // Rounding up must not go beyond what the guest may have.
        let room = (ceiling.saturating_sub(size)) / self.settings.section_bytes
            * self.settings.section_bytes;
        if bytes == 0 || room == 0 {
            return refuse(id, "the guest has all that it may have", actions);
        }
        let to_bytes = to_bytes.min(size + room);
        self.wish(now_us, Who::Guest { need: id, urgent }, to_bytes, actions);
    }

    /// The guest can do without so much.
    pub(crate) fn give(&mut self, now_us: u64, id: u64, bytes: u64, actions: &mut Vec<Action>) {
        if !self.needs.may_wish() {
            return;
        }
        let Some(facts) = &self.facts else {
            return refuse(id, "the VM's monitor is out of reach", actions);
        };
        let size = facts.size_bytes();
        let least = self.settings.least_bytes.max(facts.boot_bytes);
        if let Some(why) = self.refusal(size, false) {
            return refuse(id, why, actions);
        }
        let to_bytes = size.saturating_sub(bytes).max(least);
        if size.saturating_sub(to_bytes) < self.settings.section_bytes {
            return refuse(id, "less than a section can be taken back", actions);
        }
        self.wish(now_us, Who::Guest { need: id, urgent: false }, to_bytes, actions);
    }

    fn wish(&mut self, now_us: u64, who: Who, to_bytes: u64, actions: &mut Vec<Action>) {
        let order = Order { id: self.new_id(), who, to_bytes, roll_back: false, force: false };
        self.order(now_us, order, actions);
    }

    /// Why the guest's wishes do not count now. An urgent one breaks off what shrinks the guest, unless the operator forces
    /// it; what makes it grow goes on, and the agent asks again.
    fn refusal(&self, size_bytes: u64, urgent: bool) -> Option<&'static str> {
        if !self.settings.auto {
            return Some("the guest's size does not change by itself: auto is off");
        }
        let resize = self.resize.as_ref()?;
        let shrinks = resize.aim_bytes < size_bytes;
        let is_forced = resize.order.force && resize.order.who == Who::Operator;
        (!(urgent && shrinks && !is_forced)).then_some("a change of size is under way")
    }
}

pub(crate) fn refuse(id: u64, why: &str, actions: &mut Vec<Action>) {
    actions.push(Action::Tell(FromHost::Answer { id, granted_bytes: 0, why: Some(why.into()) }));
}
