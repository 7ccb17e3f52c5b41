//! The Identify command.

use spillway_types::{PAGE_BYTES, VALUE_BYTES_MAX};
use spillway_wire::identify::{
    BlockNamespace, CommandSet, Controller, ControllerKind, IDENTIFY_BYTES, IdentifyDwords,
    PoolNamespace, command_sets, namespace_list, namespace_names, namespace_of_any, structure,
};
use spillway_wire::log_page::Event;
use spillway_wire::nvme::{ALL_NAMESPACES, Command, Status};

use crate::context::Context;
use crate::namespaces::{self, NAMESPACES_MAX};
use crate::subsystem::Subsystem;

/// Asynchronous Event Requests that a controller holds (AERL).
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;
/// Most bytes of data in a capsule of an I/O queue: a page.
const CAPSULE_DATA_BYTES: u32 = 4096;

type Answer = Result<[u8; IDENTIFY_BYTES], Status>;

/// The structure that a command asks for.
pub(crate) fn identify(context: &Context<'_>, command: &Command) -> Answer {
    let dwords = IdentifyDwords::of(command);
    let command_set = dwords.command_set_identifier;
    let its_set = match context.controller.subsystem {
        Subsystem::Pools => CommandSet::KeyValue,
        Subsystem::Blocks | Subsystem::Discovery => CommandSet::Block,
    };
    let is_its_set = command_set == its_set as u8;
    match dwords.controller_or_namespace_structure {
        structure::CONTROLLER => Ok(controller(context)),
        _ if context.controller.subsystem == Subsystem::Discovery => Err(Status::INVALID_FIELD),
        structure::NAMESPACE if its_set == CommandSet::Block => namespace(context, command),
        structure::NAMESPACE_OF_SET if is_its_set => match its_set {
            CommandSet::KeyValue => namespace(context, command),
            // For block namespaces this structure adds nothing to the one of CNS 00h.
            CommandSet::Block => known(context, command).map(|_| [0; IDENTIFY_BYTES]),
        },
        structure::NAMESPACE_LIST => list(context, command),
        structure::NAMESPACE_LIST_OF_SET if is_its_set => list(context, command),
        structure::NAMESPACE_LIST_OF_SET => Ok([0; IDENTIFY_BYTES]),
        structure::NAMESPACE_NAMES => {
            let name = known(context, command)?;
            let uuid = (its_set == CommandSet::Block).then_some(name);
            Ok(namespace_names(uuid, its_set))
        }
        // No limits besides those in the structure of CNS 01h.
        structure::CONTROLLER_OF_SET if command_set <= 1 => Ok([0; IDENTIFY_BYTES]),
        structure::NAMESPACE_OF_ANY => {
            known(context, command)?;
            Ok(namespace_of_any(its_set == CommandSet::Block))
        }
        structure::COMMAND_SETS => Ok(command_sets(1 << its_set as u8)),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn controller(context: &Context<'_>) -> [u8; IDENTIFY_BYTES] {
    let config = &context.target.config;
    let subsystem = context.controller.subsystem;
    let discovery = subsystem == Subsystem::Discovery;
    let blocks = subsystem == Subsystem::Blocks;
    // A transfer that exceeds the client's quota is refused, so it is not announced. A shift of 0 would mean no limit.
    let room_pages =
        context.controller.client().map(|client| client.quota.bytes_max() / PAGE_BYTES as u64);
    let room_shift = room_pages.map_or(u8::MAX, |pages| pages.max(2).ilog2() as u8);
    Controller {
        id: context.controller.id,
        kind: if discovery { ControllerKind::Discovery } else { ControllerKind::Io },
        serial: &context.target.serial(),
        version: env!("CARGO_PKG_VERSION"),
        subsystem: context.target.nqn(subsystem),
        transfer_shift: subsystem.transfer_shift().min(room_shift),
        // The discovery log never changes while the target runs, so its event never comes. A controller to which hosts may
        // stay connected announces it all the same (Base 2.1, section 3.1.3.3).
        events: if discovery {
            Event::DISCOVERY_CHANGED_BIT
        } else {
            Event::NAMESPACES_CHANGED_BIT
        },
        event_requests: EVENT_REQUESTS_MAX as u8 - 1,
        commands_max: config.queue_entries_max,
        namespaces_max: if discovery { 0 } else { NAMESPACES_MAX },
        block_commands: if blocks {
            Controller::COMPARE | Controller::DATASET_MANAGEMENT | Controller::WRITE_ZEROES
        } else {
            0
        },
        capsule_data_bytes: CAPSULE_DATA_BYTES,
    }
    .encode()
}

/// The identity of a command's namespace; an error if there is no such namespace.
fn known(context: &Context<'_>, command: &Command) -> Result<u128, Status> {
    let list = namespaces::list(context.target, context.controller);
    let found = list.iter().find(|(id, _)| *id == command.namespace);
    found.map(|(_, name)| *name).ok_or(Status::INVALID_NAMESPACE)
}

fn list(context: &Context<'_>, command: &Command) -> Answer {
    if command.namespace >= ALL_NAMESPACES - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let list = namespaces::list(context.target, context.controller);
    Ok(namespace_list(list.iter().map(|(id, _)| *id).filter(|&id| id > command.namespace)))
}

fn namespace(context: &Context<'_>, command: &Command) -> Answer {
    let number = command.namespace;
    if number == 0 || number > NAMESPACES_MAX {
        return Err(Status::INVALID_NAMESPACE);
    }
    let client = context.controller.client().ok_or(Status::INVALID_NAMESPACE)?;
    let target = context.target;
    // The structure of an inactive namespace is all zeros.
    let none = [0; IDENTIFY_BYTES];
    Ok(match context.controller.subsystem {
        Subsystem::Discovery => none,
        Subsystem::Blocks => namespaces::device(target, client.id, number).map_or(none, |device| {
            let geometry = device.geometry();
            let block_shift = geometry.block_size.bytes().ilog2() as u8;
            let used_pages = target.store.pools(client.id).ok().and_then(|pools| {
                pools.iter().find(|pool| pool.number == number).map(|pool| pool.pages)
            });
            let used_bytes = used_pages.unwrap_or(0) * PAGE_BYTES as u64;
            BlockNamespace {
                blocks: geometry.bytes >> block_shift,
                used_blocks: used_bytes >> block_shift,
                block_shift,
            }
            .encode()
        }),
        Subsystem::Pools => {
            let pool = namespaces::pool(target, client.id, number);
            let target_pages = target.store.statistics(client.id).map_or(0, |its| its.target_pages);
            pool.map_or(none, |pool| {
                PoolNamespace {
                    bytes: target_pages.saturating_mul(PAGE_BYTES as u64),
                    used_bytes: pool.pages * PAGE_BYTES as u64,
                    value_bytes_max: value_bytes_max(client.quota.bytes_max()),
                }
                .encode()
            })
        }
    })
}

/// Most bytes of a value: the store's limit, or the client's quota if that is less.
fn value_bytes_max(quota_bytes: u64) -> u32 {
    quota_bytes.min(VALUE_BYTES_MAX as u64) as u32
}
