//! An order that the guest's last status would refuse. The status is up to an interval old and does not include memory
//! that programs have freed since, so the agent is asked again before the order is refused.

use crate::agent::FromHost;
use crate::guest::HeldOrder;
use crate::settings::REPORT_US;
use crate::{Action, Guest, Order, Who};

impl Guest {
    /// Requests the guest's status before an operator's order is refused; false if that is useless. The memory manager
    /// and the guest repeat their orders themselves.
    pub(crate) fn hold_back(
        &mut self,
        now_us: u64,
        order: Order,
        actions: &mut Vec<Action>,
    ) -> bool {
        if order.who != Who::Operator || !self.agent_answers() {
            return false;
        }
        let id = self.new_id();
        self.held = Some(HeldOrder { order, id, until_us: now_us + REPORT_US });
        actions.push(Action::Tell(FromHost::Report { id }));
        true
    }

    /// The agent has sent the status.
    pub(crate) fn reported(&mut self, now_us: u64, answered: u64, actions: &mut Vec<Action>) {
        if self.held.is_some_and(|held| held.id == answered) {
            self.decide(now_us, actions);
        }
    }

    /// Does not wait for an agent that is gone, or takes too long.
    pub(crate) fn look_at_held(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let agent_answers = self.agent_answers();
        if self.held.is_some_and(|held| now_us >= held.until_us || !agent_answers) {
            self.decide(now_us, actions);
        }
    }

    fn decide(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        if let Some(HeldOrder { order, .. }) = self.held.take() {
            self.order_now(now_us, order, actions);
        }
    }

    /// The deadline of the decision.
    pub(crate) fn held_until_us(&self) -> Option<u64> {
        self.held.map(|held| held.until_us)
    }

    /// A newer order of the operator replaces a pending one.
    pub(crate) fn drop_held(&mut self, actions: &mut Vec<Action>) {
        if let Some(HeldOrder { order, .. }) = self.held.take() {
            self.unchanged(order, crate::End::Superseded, actions);
        }
    }
}
