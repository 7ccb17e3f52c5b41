//! The admin queue: features, asynchronous events, keep-alive, and logs.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use spillway_wire::fabrics::ControllerConfiguration;
use spillway_wire::identify::{IDENTIFY_BYTES, IdentifyDwords, structure};
use spillway_wire::log_page::Event;
use spillway_wire::nvme::{
    AbortDwords, Command, FeaturesDwords, NumberOfQueues, Status, admin, feature,
};

use crate::context::Context;
use crate::identify::{EVENT_REQUESTS_MAX, identify};
use crate::namespaces;
use crate::outcome::Outcome;
use crate::pools;
use crate::reply::Reply;
use crate::subsystem::Subsystem;

mod logs;

/// A controller ends if the host is silent for so many keep-alive timeouts. Hosts send Keep Alive once in half a
/// timeout, and may be late for a moment.
const KEEP_ALIVE_TIMES: u64 = 2;
/// The features that can be set and got.
const FEATURES: [u8; 3] = [feature::QUEUES, feature::ASYNC_EVENTS, feature::KEEP_ALIVE];

/// The state of an admin queue.
#[derive(Debug)]
pub(crate) struct Admin {
    /// The property CC.
    pub(crate) configuration: ControllerConfiguration,
    keep_alive_ms: u32,
    heard_ms: u64,
    /// Ids of outstanding Asynchronous Event Requests.
    event_requests: Vec<u16>,
    /// Asynchronous Event Configuration (feature 0Bh).
    events: u32,
    /// The host was told that namespaces changed, and has not read the log since.
    told: bool,
    /// The namespaces when changes were last looked for; none before the first time.
    known: Option<Vec<(u32, u128)>>,
    /// The host has read the list of namespaces.
    listed: bool,
    /// Ids of namespaces that changed since the host last read the log.
    changed: BTreeSet<u32>,
}

impl Admin {
    pub(crate) fn new(now_ms: u64, keep_alive_ms: u32) -> Self {
        Self {
            configuration: ControllerConfiguration::default(),
            keep_alive_ms,
            heard_ms: now_ms,
            event_requests: Vec::new(),
            events: 0,
            told: false,
            known: None,
            listed: false,
            changed: BTreeSet::new(),
        }
    }

    /// The host sent a sign of life.
    pub(crate) fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// When the controller ends unless the host sends a sign of life.
    pub(crate) fn keep_alive_until_ms(&self) -> Option<u64> {
        let timeout_ms = u64::from(self.keep_alive_ms) * KEEP_ALIVE_TIMES;
        (timeout_ms != 0).then_some(self.heard_ms + timeout_ms)
    }

    pub(crate) fn execute(
        &mut self,
        context: &Context<'_>,
        local: SocketAddr,
        command: &Command,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) {
        self.heard(context.now_ms);
        let subsystem = context.controller.subsystem;
        let outcome = match command.opcode {
            admin::IDENTIFY => match identify(context, command) {
                Ok(bytes) => {
                    reply_data(command, &bytes, reply);
                    if begins_list(command) {
                        self.list_was_read(context, reply);
                    }
                    return;
                }
                Err(status) => Err(status.finally().into()),
            },
            admin::GET_LOG_PAGE => match self.log(context, local, command) {
                Ok(bytes) => return reply_data(command, &bytes, reply),
                Err(status) => Err(status.finally().into()),
            },
            admin::ASYNC_EVENT => {
                if self.event_requests.len() < EVENT_REQUESTS_MAX {
                    self.event_requests.push(command.id);
                    return self.tell_changes(context, reply);
                }
                Err(Status::ASYNC_EVENT_LIMIT.finally().into())
            }
            admin::KEEP_ALIVE => {
                reply.complete(Ok(0));
                return self.look_for_changes(context, reply);
            }
            admin::SET_FEATURES => self.set_feature(context, command),
            admin::GET_FEATURES => self.feature(context, command),
            admin::ABORT => self.abort(command, reply),
            _ if subsystem == Subsystem::Pools => {
                match pools::admin(context, command, data, reply) {
                    Some(outcome) => outcome,
                    None => return,
                }
            }
            _ => Err(Status::INVALID_OPCODE.finally().into()),
        };
        reply.complete(outcome);
    }

    fn set_feature(&mut self, context: &Context<'_>, command: &Command) -> Outcome {
        let dwords = FeaturesDwords::of(command);
        let value = dwords.value.get();
        match dwords.feature_identifier {
            feature::QUEUES => {
                let asked = NumberOfQueues::decode(value);
                if asked.submission_queues == u16::MAX || asked.completion_queues == u16::MAX {
                    return Err(Status::INVALID_FIELD.finally().into());
                }
                Ok(queues_granted(context, asked).encode().into())
            }
            feature::ASYNC_EVENTS => {
                self.events = value;
                Ok(0)
            }
            feature::KEEP_ALIVE => {
                self.keep_alive_ms = context.controller.subsystem.keep_alive_ms(value);
                Ok(0)
            }
            _ => Err(Status::INVALID_FIELD.finally().into()),
        }
    }

    fn feature(&self, context: &Context<'_>, command: &Command) -> Outcome {
        match FeaturesDwords::of(command).feature_identifier {
            feature::QUEUES => {
                let all = NumberOfQueues {
                    submission_queues: u16::MAX.into(),
                    completion_queues: u16::MAX.into(),
                };
                Ok(queues_granted(context, all).encode().into())
            }
            feature::ASYNC_EVENTS => Ok(self.events.into()),
            feature::KEEP_ALIVE => Ok(self.keep_alive_ms.into()),
            _ => Err(Status::INVALID_FIELD.finally().into()),
        }
    }

    /// Aborts an Asynchronous Event Request. Other outstanding commands wait for the host itself, so they are not
    /// aborted.
    fn abort(&mut self, command: &Command, reply: &mut Reply<'_>) -> Outcome {
        const NOT_ABORTED: u64 = 1;
        let dwords = AbortDwords::of(command);
        let queue = dwords.submission_queue_identifier.get();
        let id = dwords.command_identifier.get();
        let found = self.event_requests.iter().position(|&request| queue == 0 && request == id);
        let Some(found) = found else { return Ok(NOT_ABORTED) };
        self.event_requests.remove(found);
        let mut aborted = Reply { out: reply.out, command: id, ..*reply };
        aborted.complete(Err(Status::ABORTED.into()));
        Ok(0)
    }

    /// Completes an Asynchronous Event Request if namespaces changed and the host has enabled that event.
    pub(crate) fn tell_changes(&mut self, context: &Context<'_>, reply: &mut Reply<'_>) {
        if context.controller.take_namespaces_changed() || self.known.is_none() {
            self.look_for_changes(context, reply);
        } else {
            self.tell(reply);
        }
    }

    fn look_for_changes(&mut self, context: &Context<'_>, reply: &mut Reply<'_>) {
        if context.controller.subsystem == Subsystem::Discovery {
            return;
        }
        let now = namespaces::list(context.target, context.controller);
        if let Some(known) = &self.known {
            let came = now.iter().filter(|namespace| !known.contains(namespace));
            let went = known.iter().filter(|namespace| !now.contains(namespace));
            self.changed.extend(came.chain(went).map(|(id, _)| *id));
        }
        self.known = Some(now);
        self.tell(reply);
    }

    /// Behind the first list of namespaces that the host reads, reports all of them as changed: it may know them by
    /// other identities.
    ///
    /// When Linux finds another identity under a known id in a scan, it only removes its disk. It adds the new one in the
    /// next scan. The scan comes with each association, so the change must be reported behind its list: an earlier event
    /// causes no second scan. Which identities the host knows from earlier associations, a new controller can't tell,
    /// as it has no state of them. The log is for that: it names what was added or changed since the host last read it
    /// (Base 2.1, section 5.1.12.1.5; the event: section 5.1.2).
    fn list_was_read(&mut self, context: &Context<'_>, reply: &mut Reply<'_>) {
        if !std::mem::replace(&mut self.listed, true) {
            let all = namespaces::list(context.target, context.controller);
            self.changed.extend(all.iter().map(|(id, _)| *id));
            self.tell(reply);
        }
    }

    fn tell(&mut self, reply: &mut Reply<'_>) {
        let wanted = self.events & Event::NAMESPACES_CHANGED_BIT != 0;
        if self.changed.is_empty() || self.told || !wanted {
            return;
        }
        if let Some(request) = self.event_requests.pop() {
            let mut event = Reply { out: reply.out, command: request, ..*reply };
            event.complete(Ok(Event::NAMESPACES_CHANGED.encode()));
            self.told = true;
        }
    }
}

fn reply_data(command: &Command, bytes: &[u8], reply: &mut Reply<'_>) {
    if (command.data.bytes as usize) < bytes.len() {
        reply.complete(Err(Status::DATA_LENGTH.finally().into()));
    } else {
        reply.data(bytes, 0);
    }
}

/// Whether the command gets the beginning of the list of active namespaces.
fn begins_list(command: &Command) -> bool {
    let structure = IdentifyDwords::of(command).controller_or_namespace_structure;
    let is_list = matches!(structure, structure::NAMESPACE_LIST | structure::NAMESPACE_LIST_OF_SET);
    is_list && command.namespace == 0 && command.data.bytes as usize >= IDENTIFY_BYTES
}

/// How many of the I/O queues asked for are granted.
fn queues_granted(context: &Context<'_>, asked: NumberOfQueues) -> NumberOfQueues {
    let max = context.target.config.io_queues_max - 1;
    NumberOfQueues {
        submission_queues: asked.submission_queues.get().min(max).into(),
        completion_queues: asked.completion_queues.get().min(max).into(),
    }
}
