//! QEMU's events.

use std::collections::VecDeque;
use std::mem;

use serde::Deserialize;
use serde_json::Value;

/// Most queued events.
pub const EVENTS_MAX: usize = 256;

/// An event of the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `MEMORY_DEVICE_SIZE_CHANGE`: a virtio-mem device grew or shrank. QEMU sends at most one per second, so the size
    /// may have changed again: read it with [`crate::Monitor::size`].
    SizeChange {
        /// The device.
        id: String,
        /// Its size then.
        bytes: u64,
    },
    /// The VM was reset: virtio-mem devices are empty again.
    Reset,
    /// The guest or QEMU shuts down.
    Shutdown,
    /// The virtual CPUs have stopped.
    Stop,
    /// They have resumed.
    Resume,
    /// `MIGRATION`: a migration to another host has begun or ended, with or without success. QEMU sends it only after
    /// [`crate::Monitor::tell_migration`].
    Migration {
        /// Whether it is in progress.
        is_under_way: bool,
    },
    /// Another event, by name.
    Other(String),
}

/// Queued events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Oldest first.
    pub seen: VecDeque<Event>,
    /// The number of events that did not fit.
    pub lost: u64,
}

impl Events {
    /// Adds one. If the queue is full, drops events of other kinds before those that resizing depends on, and old
    /// ones before new ones.
    pub(crate) fn push(&mut self, event: Event) {
        if self.seen.len() >= EVENTS_MAX {
            self.lost += 1;
            let other = self.seen.iter().position(|seen| matches!(seen, Event::Other(_)));
            self.seen.remove(other.unwrap_or(0));
        }
        self.seen.push_back(event);
    }

    /// Takes all events.
    pub(crate) fn take(&mut self) -> Self {
        mem::take(self)
    }
}

impl Event {
    /// Decodes an event from its name and its `data`.
    pub(crate) fn read(name: &str, data: Value) -> Self {
        #[derive(Deserialize)]
        struct SizeChange {
            id: String,
            size: u64,
        }

        match name {
            "MEMORY_DEVICE_SIZE_CHANGE" => match serde_json::from_value::<SizeChange>(data) {
                Ok(change) => Self::SizeChange { id: change.id, bytes: change.size },
                Err(_) => Self::Other(name.to_owned()),
            },
            "MIGRATION" => {
                let status = data["status"].as_str().unwrap_or_default();
                let is_over = matches!(status, "completed" | "failed" | "cancelled");
                Self::Migration { is_under_way: !is_over }
            }
            "RESET" => Self::Reset,
            "SHUTDOWN" => Self::Shutdown,
            "STOP" => Self::Stop,
            "RESUME" => Self::Resume,
            _ => Self::Other(name.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_flood_pushes_out_what_matters_least() {
        let mut events = Events::default();
        events.push(Event::Reset);
        for number in 0..EVENTS_MAX + 5 {
            events.push(Event::Other(number.to_string()));
        }
        assert_eq!((events.seen.len(), events.lost), (EVENTS_MAX, 6));
        assert_eq!(events.seen[0], Event::Reset);
        assert_eq!(events.seen[1], Event::Other("6".to_owned()));
        for _ in 0..EVENTS_MAX {
            events.push(Event::Stop);
        }
        assert!(!events.seen.contains(&Event::Reset), "with no others left the oldest goes");
        assert_eq!(events.take().seen.len(), EVENTS_MAX);
        assert_eq!(events, Events::default());
    }

    #[test]
    fn a_migration_is_under_way_until_it_is_over() {
        for (status, is_under_way) in [
            ("setup", true),
            ("active", true),
            ("cancelling", true),
            ("completed", false),
            ("failed", false),
            ("cancelled", false),
        ] {
            let event = Event::read("MIGRATION", json!({ "status": status }));
            assert_eq!(event, Event::Migration { is_under_way });
        }
    }

    #[test]
    fn a_size_change_without_a_device_is_just_an_event() {
        let name = "MEMORY_DEVICE_SIZE_CHANGE";
        let change = Event::read(name, json!({"id": "vm0", "size": 128 << 20, "qom-path": "/x"}));
        assert_eq!(change, Event::SizeChange { id: "vm0".to_owned(), bytes: 128 << 20 });
        assert_eq!(Event::read(name, json!({"size": 1})), Event::Other(name.to_owned()));
        assert_eq!(Event::read(name, Value::Null), Event::Other(name.to_owned()));
    }
}
