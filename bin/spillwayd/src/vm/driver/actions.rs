//! Executes the state machine's actions: memory, sizes, messages to the agent, and the end of an order.

use spillway_guests::{Action, End, Event, Outcome, Who};
use spillway_sections::Usage;

use super::Driver;
use crate::config::Way;

impl Driver {
    pub(super) fn carry_out(&mut self, action: Action) -> Option<Event> {
        let (name, pool) = (&self.shared.name, &self.shared.pool);
        match action {
            Action::Reserve { device, more_bytes } => {
                let result = match &self.attached {
                    None => Err("the VM's monitor is out of reach".to_owned()),
                    Some(attached) => {
                        let reserved = attached.reserve(name, pool, device, more_bytes);
                        reserved.map_err(|error| error.to_string())
                    }
                };
                Some(Event::Reserved { device, result })
            }
            Action::Request { device, bytes } => {
                let result = match &mut self.attached {
                    None => Err("the VM's monitor is out of reach".to_owned()),
                    Some(attached) => attached.request(device, bytes).map(|()| bytes),
                };
                Some(Event::Requested { device, result })
            }
            Action::Release { device, size_bytes } => {
                let attached = self.attached.as_ref()?;
                match attached.settle(name, pool, device, size_bytes) {
                    Ok(set_aside_bytes) => Some(Event::Released { device, set_aside_bytes }),
                    Err(error) => {
                        tracing::error!("vm {name}: can't release memory: {error}");
                        let file = attached.file(device);
                        let set_aside_bytes =
                            still_set_aside(&pool.usage(), name, file, size_bytes);
                        Some(Event::Released { device, set_aside_bytes })
                    }
                }
            }
            Action::Tell(said) => {
                if let Some(channel) = &mut self.channel
                    && channel.tell(&said).is_err()
                {
                    // The next read finds it closed.
                    tracing::debug!("vm {name}: its agent's channel is closed");
                }
                None
            }
            Action::Done(outcome) => {
                self.done(outcome);
                None
            }
            Action::Say(line) => {
                tracing::info!("vm {name}: {line}");
                None
            }
        }
    }

    pub(super) fn done(&mut self, mut outcome: Outcome) {
        let name = &self.shared.name;
        if let (End::Refused(why), None) = (&mut outcome.end, &self.attached) {
            let problem = self.shared.notes().problem.clone().unwrap_or_default();
            *why = match self.shared.way {
                Way::Monitor(_) => format!(
                    "{why}: {problem}; start the VM with what `spillway vm args {name}` prints"
                ),
                Way::Libvirt { .. } => format!("{why}: {problem}"),
            };
        }
        let size = spillway_types::Size;
        let (from, aim, now) =
            (size(outcome.from_bytes), size(outcome.aim_bytes), size(outcome.size_bytes));
        let who = match outcome.order.who {
            Who::Operator => "operator",
            Who::Manager => "memory manager",
            Who::Guest { .. } => "guest",
            Who::Daemon => "daemon",
        };
        let ms = outcome.times.total_us / 1000;
        self.shared.notes().count(&outcome.end);
        match &outcome.end {
            End::Reached => {
                tracing::info!("vm {name}: {from} to {now} in {ms} ms ({who})");
            }
            End::Refused(why) => {
                // A guest that repeats a refused request gets an answer, but only the first refusal
                // is logged at this level.
                if matches!(outcome.order.who, Who::Guest { .. }) {
                    tracing::debug!("vm {name}: refused ({who}): {why}");
                } else {
                    tracing::warn!("vm {name}: refused ({who}): {why}");
                }
            }
            End::Superseded => {
                tracing::info!(
                    "vm {name}: {from} to {aim} stopped at {now}: a newer order ({who})"
                );
            }
            End::Partial => {
                tracing::warn!("vm {name}: {from} to {aim} reached only {now} in {ms} ms ({who})");
            }
            End::RolledBack => {
                tracing::warn!(
                    "vm {name}: {from} to {aim} rolled back to {now} after {ms} ms ({who})"
                );
            }
            End::Lost(why) => {
                tracing::warn!("vm {name}: {from} to {aim} stopped: {why} ({who})");
            }
        }
        if let Some(told) = self.told.remove(&outcome.order.id) {
            // The requester may be gone.
            let _ = told.send(outcome);
        }
    }
}

/// What counts as reserved for a device whose reservation could not be reduced: the former reservation, or else what
/// the guest has.
pub(super) fn still_set_aside(usage: &Usage, name: &str, file: u8, size_bytes: u64) -> u64 {
    let device = usage.guests.get(name).and_then(|guest| guest.devices.get(&file));
    device.map_or(size_bytes, |device| device.set_aside_bytes)
}
