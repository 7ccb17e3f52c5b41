//! What an association does when time passes: keep alives, and the end of what takes too long.

use super::{ADMIN, Association, CallState, KEEP_ALIVE, Pending};
use crate::nvme_tcp::call::{Outcome, Trouble};
use crate::nvme_tcp::commands;
use crate::nvme_tcp::phase::Phase;
use crate::nvme_tcp::queue::Payload;

impl Association {
    /// Handles the passing of time: sends keep alives, and ends calls and associations that have run out of time.
    pub fn tick(&mut self, now_us: u64) {
        if let Some(trouble) = self.overdue(now_us) {
            self.end(trouble, now_us);
        }
        self.expire(now_us);
        let period_us = self.settings.keep_alive_us / 3;
        let live = matches!(self.phase, Phase::Up | Phase::Mending { .. });
        if live && self.keep_alive_sent_us.is_none() && self.keep_alive_at_us <= now_us {
            let command = commands::keep_alive();
            if self.queues[ADMIN].submit(KEEP_ALIVE, command, Payload::None).is_ok() {
                self.keep_alive_sent_us = Some(now_us);
                self.keep_alive_at_us = now_us + period_us;
            }
        }
    }

    /// When [`Self::tick`] must be called next, µs.
    pub fn tick_at(&self) -> u64 {
        let calls = self.active().iter().filter_map(|pending| match pending.state {
            CallState::Waiting => Some(pending.deadline_us),
            CallState::Sent { at_us, .. } => {
                Some(pending.deadline_us.min(at_us + self.settings.command_timeout_us))
            }
            _ => None,
        });
        let calls_us = calls.min().unwrap_or(u64::MAX);
        let phase_us = match self.phase {
            Phase::Down { .. } | Phase::Stopped => u64::MAX,
            Phase::Starting { until_us, .. } => until_us,
            Phase::Mending { since_us } => {
                self.alive_until().min(since_us + self.settings.command_timeout_us)
            }
            Phase::Up => self.alive_until(),
        };
        calls_us.min(phase_us)
    }

    /// When the next keep alive is due, or the deadline of the last one's answer.
    fn alive_until(&self) -> u64 {
        match self.keep_alive_sent_us {
            Some(at_us) => at_us + self.settings.command_timeout_us,
            None => self.keep_alive_at_us,
        }
    }

    /// Why the association must end now; `None` if it need not.
    fn overdue(&self, now_us: u64) -> Option<Trouble> {
        let timeout_us = self.settings.command_timeout_us;
        let live = match self.phase {
            Phase::Down { .. } | Phase::Stopped => return None,
            Phase::Starting { until_us, .. } => {
                return (until_us <= now_us).then_some(Trouble::Silent);
            }
            Phase::Mending { since_us } => since_us + timeout_us > now_us,
            Phase::Up => true,
        };
        let late = |pending: &Pending| match pending.state {
            CallState::Sent { at_us, .. } => {
                at_us + timeout_us <= now_us || pending.deadline_us <= now_us
            }
            // The failed call leaves a doubt, which only a new association settles.
            CallState::Waiting => pending.deadline_us <= now_us && self.leaves_doubt(&pending.call),
            _ => false,
        };
        let silent = self.keep_alive_sent_us.is_some_and(|at_us| at_us + timeout_us <= now_us);
        (!live || silent || self.active().iter().any(late)).then_some(Trouble::Silent)
    }

    /// Fails the calls whose deadline has passed. None of them is in flight.
    fn expire(&mut self, now_us: u64) {
        for ticket in 0..self.top {
            let pending = &self.pending[ticket];
            if pending.state == CallState::Waiting && pending.deadline_us <= now_us {
                self.fail(ticket, Outcome::Unreachable(self.trouble));
            }
        }
    }
}
