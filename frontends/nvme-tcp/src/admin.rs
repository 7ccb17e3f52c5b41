//! The admin queue: features, logs, asynchronous events and keep-alive.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use spillway_wire::fabrics::ControllerConfiguration;
use spillway_wire::identify::LIST_ENTRIES;
use spillway_wire::kv;
use spillway_wire::log_page::{self, DiscoveryEntry, ERROR_ENTRY_BYTES, Event, GetLogPage, log};
use spillway_wire::nvme::{
    ALL_NAMESPACES, AbortDwords, Command, FeaturesDwords, NumberOfQueues, Status, admin, block,
    feature,
};

use crate::context::Context;
use crate::identify::{EVENT_REQUESTS_MAX, identify};
use crate::namespaces;
use crate::outcome::Outcome;
use crate::pools;
use crate::reply::Reply;
use crate::subsystem::Subsystem;

/// A controller ends if the host is silent for so many keep-alive timeouts. Hosts send Keep Alive once in half a
/// timeout, and may be late for a moment.
const KEEP_ALIVE_TIMES: u64 = 2;
/// Most bytes of a log that one command may ask for.
const LOG_BYTES_MAX: u64 = 1 << 20;

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
                Ok(bytes) => return reply_data(command, &bytes, reply),
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

    /// The part of a log page that the command asks for.
    fn log(
        &mut self,
        context: &Context<'_>,
        local: SocketAddr,
        command: &Command,
    ) -> Result<Vec<u8>, Status> {
        let get = GetLogPage::decode(command);
        if get.bytes > LOG_BYTES_MAX || get.bytes > command.data.bytes.into() {
            return Err(Status::INVALID_FIELD);
        }
        let subsystem = context.controller.subsystem;
        let page = match (get.log, subsystem) {
            (log::DISCOVERY, Subsystem::Discovery) => discovery(context, local),
            (log::ERRORS, _) => vec![0; ERROR_ENTRY_BYTES],
            (log::HEALTH, _) => log_page::health().to_vec(),
            (log::FIRMWARE, _) => log_page::firmware(env!("CARGO_PKG_VERSION")).to_vec(),
            (log::CHANGED_NAMESPACES, Subsystem::Blocks | Subsystem::Pools) => {
                self.changed_namespaces(&get)
            }
            (log::COMMANDS, _) => commands(subsystem, get.command_set),
            _ => return Err(Status::INVALID_LOG),
        };
        let start = usize::try_from(get.offset).ok().filter(|&start| start <= page.len());
        let mut rest = page[start.ok_or(Status::INVALID_FIELD)?..].to_vec();
        rest.resize(get.bytes as usize, 0);
        Ok(rest)
    }

    fn changed_namespaces(&mut self, get: &GetLogPage) -> Vec<u8> {
        let ids: Vec<u32> = if self.changed.len() > LIST_ENTRIES {
            vec![ALL_NAMESPACES]
        } else {
            self.changed.iter().copied().collect()
        };
        if !get.retain_event {
            self.changed.clear();
            self.told = false;
        }
        spillway_wire::identify::namespace_list(ids.into_iter()).to_vec()
    }
}

fn reply_data(command: &Command, bytes: &[u8], reply: &mut Reply<'_>) {
    if (command.data.bytes as usize) < bytes.len() {
        reply.complete(Err(Status::DATA_LENGTH.finally().into()));
    } else {
        reply.data(bytes, 0);
    }
}

/// How many of the I/O queues asked for are granted.
fn queues_granted(context: &Context<'_>, asked: NumberOfQueues) -> NumberOfQueues {
    let max = context.target.config.io_queues_max - 1;
    NumberOfQueues {
        submission_queues: asked.submission_queues.get().min(max).into(),
        completion_queues: asked.completion_queues.get().min(max).into(),
    }
}

/// The discovery log. Every host gets the same two subsystems, whether it may connect to them or not.
fn discovery(context: &Context<'_>, local: SocketAddr) -> Vec<u8> {
    let entries = [Subsystem::Blocks, Subsystem::Pools].map(|subsystem| DiscoveryEntry {
        subsystem: context.target.nqn(subsystem).to_owned(),
        address: local,
        secure: context.controller.host.name.is_some(),
    });
    log_page::discovery(1, &entries)
}

fn commands(subsystem: Subsystem, command_set: u8) -> Vec<u8> {
    const COMMON: [u8; 7] = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ];
    const OF_POOLS: [u8; 5] = [
        kv::admin::CREATE_POOL,
        kv::admin::JOIN_POOL,
        kv::admin::DESTROY_POOL,
        kv::admin::STATISTICS,
        kv::admin::LIST_POOLS,
    ];
    let blocks = [
        (block::FLUSH, false),
        (block::WRITE, true),
        (block::READ, false),
        (block::COMPARE, false),
        (block::WRITE_ZEROES, true),
        (block::DATASET_MANAGEMENT, true),
    ];
    let values = [
        (kv::io::STORE, true),
        (kv::io::RETRIEVE, false),
        (kv::io::LIST, false),
        (kv::io::DELETE, true),
        (kv::io::EXIST, false),
        (kv::io::FLUSH_OBJECT, true),
        (kv::io::TAKE, true),
    ];
    let page = match (subsystem, command_set) {
        (Subsystem::Pools, 1) => {
            log_page::commands(&[COMMON.as_slice(), OF_POOLS.as_slice()].concat(), &values)
        }
        (Subsystem::Blocks, 0) => log_page::commands(&COMMON, &blocks),
        _ => log_page::commands(&COMMON, &[]),
    };
    page.to_vec()
}
