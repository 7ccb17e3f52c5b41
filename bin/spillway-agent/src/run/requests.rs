//! Requests of programs to the agent and of the agent to the host, and their results.

use std::time::Duration;

use spillway_guests::agent::FromGuest;
use spillway_guests::call::Reply;
use spillway_types::Size;
use spillway_wire::ring::Reason;

use super::Agent;
use crate::programs::{NEED_TIME, Wanted};
use crate::watch::{Ask, Watch};

/// The origin of a request to the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    Watch,
    Program(u64),
}

impl Agent {
    pub(super) fn hear_programs(&mut self, now: Duration) {
        let Self { programs, system, watch, is_greeted, counted, .. } = self;
        let wanted = programs.go_on(now, || {
            let mut status = system.status();
            status.offline_bytes = counted.offline;
            let reserve_bytes = watch.as_ref().map_or(0, |watch| watch.terms().reserve);
            Reply::Status { host: *is_greeted, reserve_bytes, status }
        });
        for borrower in self.programs.borrowers() {
            match &self.windows {
                Some(windows) => windows.lend(borrower),
                None => borrower.refuse(Reason::NoPages),
            }
        }
        for Wanted { client, ask } in wanted {
            let possible = self.watch.as_ref().map_or(0, Watch::possible_now);
            let why = match ask {
                _ if !self.is_greeted => "the host is not there",
                Ask::Need { .. } if possible == 0 => {
                    "the guest holds as much as the host allows, or as its kernel can describe"
                }
                Ask::Need { bytes, urgent } => {
                    let bytes = bytes.min(possible);
                    self.ask(now, Ask::Need { bytes, urgent }, Origin::Program(client));
                    continue;
                }
                Ask::Give { .. } => {
                    self.ask(now, ask, Origin::Program(client));
                    continue;
                }
            };
            self.programs.answer(now, client, 0, Some(why.into()));
        }
    }

    pub(super) fn ask(&mut self, now: Duration, ask: Ask, origin: Origin) {
        let id = self.next_id;
        self.next_id += 1;
        self.asked.insert(id, (now, origin, ask));
        self.port.say(&match ask {
            Ask::Need { bytes, urgent } => {
                let wait = if let Origin::Program(_) = origin { NEED_TIME } else { Duration::ZERO };
                FromGuest::Need { id, bytes, urgent, wait_ms: wait.as_millis() as u32 }
            }
            Ask::Give { bytes } => FromGuest::Give { id, bytes },
        });
    }

    pub(super) fn answered(&mut self, now: Duration, id: u64, granted: u64, why: Option<String>) {
        let (Some((since, origin, ask)), Some(watch)) = (self.asked.remove(&id), &mut self.watch)
        else {
            return;
        };
        let (Ask::Need { bytes, .. } | Ask::Give { bytes }) = ask;
        // Growing rounds up to blocks, so it may be a little more.
        let granted = granted.min(bytes.saturating_add(self.blocks.bytes()));
        match origin {
            Origin::Watch => {
                watch.answered(now, ask, granted);
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                let what = match ask {
                    Ask::Need { urgent: true, .. } => "needs at once",
                    Ask::Need { .. } => "needs soon",
                    Ask::Give { .. } => "can give back",
                };
                let (bytes, granted) = (Size(bytes), Size(granted));
                let ms = (now - since).as_millis();
                eprintln!("spillway-agent: {what} {bytes}, granted {granted} after {ms} ms{why}");
            }
            Origin::Program(client) => {
                self.programs.answer(now, client, granted, why);
            }
        }
    }
}
