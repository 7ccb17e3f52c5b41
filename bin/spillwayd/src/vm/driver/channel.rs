//! The agent's channel: connects, reads, greets again and closes it.

use std::time::{Duration, Instant};

use spillway_guests::Event;
use spillway_guests::agent::FromGuest;

use super::{Driver, RETRY};
use crate::vm::agent::Channel;

impl Driver {
    pub(super) fn look_at_agent(&mut self) {
        if self.channel.is_none() && Instant::now() >= self.try_agent_at {
            self.try_agent_at = Instant::now() + RETRY;
            // A guest without an agent is also served.
            self.channel = Channel::connect(&self.shared.agent).ok();
            if self.channel.is_some() {
                self.tell(Event::AgentConnected);
            }
        }
        let interval = Duration::from_millis(self.shared.guest().settings().interval_ms.into());
        let Some(channel) = &mut self.channel else { return };
        let said = channel.flush().and_then(|()| channel.read());
        let (garbled, is_silent) = (channel.garbled, channel.is_silent(interval));
        self.note_garbled(garbled);
        match said {
            Ok(said) => {
                let wishes =
                    |it: &FromGuest| matches!(it, FromGuest::Need { .. } | FromGuest::Give { .. });
                if said.iter().any(wishes) {
                    self.read_sizes();
                }
                for said in said {
                    self.tell(Event::Agent(said));
                }
                self.note_ignored();
                if is_silent {
                    self.tell(Event::AgentConnected);
                }
            }
            Err(_) => self.hang_up(),
        }
    }

    pub(super) fn note_garbled(&mut self, garbled: u64) {
        let mut notes = self.shared.notes();
        if garbled > 0 && notes.garbled == 0 {
            tracing::warn!(
                "vm {}: its agent's channel carries lines that are not messages",
                self.shared.name
            );
        }
        notes.garbled += garbled;
        if let Some(channel) = &mut self.channel {
            channel.garbled = 0;
        }
    }

    /// Logs the first ignored message; counts the others.
    pub(super) fn note_ignored(&self) {
        let ignored = self.shared.guest().view().ignored_messages;
        let mut notes = self.shared.notes();
        if ignored > 0 && !notes.has_said_ignored {
            notes.has_said_ignored = true;
            tracing::warn!(
                "vm {}: its agent sends too much, or impossible values: such messages are ignored, and counted as \
                 ignored messages",
                self.shared.name
            );
        }
    }

    pub(super) fn hang_up(&mut self) {
        if self.channel.take().is_some_and(|channel| channel.has_spoken) {
            tracing::info!("vm {}: its agent's channel is closed", self.shared.name);
        }
        self.try_agent_at = Instant::now() + RETRY;
        self.tell(Event::AgentGone);
    }
}
