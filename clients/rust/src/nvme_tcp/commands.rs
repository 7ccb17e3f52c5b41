//! The commands that a session sends, and the fields that it reads from identify data.

use spillway_wire::fabrics::{ControllerConfiguration, ControllerStatus, Fabrics, property};
use spillway_wire::identify::{self, CommandSet, IDENTIFY_BYTES, structure};
use spillway_wire::kv::{self, CreatePool};
use spillway_wire::nvme::{Command, Completion, FeaturesDwords, NumberOfQueues, admin, feature};

use super::call::{Call, Trouble};
use super::queue::Payload;

/// Most bytes that a call sends besides values.
pub(super) const INLINE_BYTES: usize = CreatePool::BYTES;

/// The command of a call on the pool with this number, and its data. Short data that is not the caller's `value` is
/// written to `inline`.
pub(super) fn of_call<'a>(
    call: &Call,
    pool: u32,
    value: &'a [u8],
    inline: &'a mut [u8; INLINE_BYTES],
) -> (Command, Payload<'a>) {
    match *call {
        Call::Store(_, key, bytes) => (kv::store(0, pool, key, bytes), Payload::Out(value)),
        Call::Retrieve(_, key, bytes) => {
            (kv::retrieve(kv::io::RETRIEVE, 0, pool, key, bytes), Payload::In(bytes))
        }
        Call::Take(_, key, bytes) => {
            (kv::retrieve(kv::io::TAKE, 0, pool, key, bytes), Payload::In(bytes))
        }
        Call::Delete(_, key) => (kv::with_key(kv::io::DELETE, 0, pool, key), Payload::None),
        Call::Exists(_, key) => (kv::with_key(kv::io::EXIST, 0, pool, key), Payload::None),
        Call::List(_, start, bytes) => (kv::list(0, pool, start, bytes), Payload::In(bytes)),
        Call::FlushObject(_, object) => (kv::flush_object(0, pool, object), Payload::None),
        Call::Create(spec) => {
            *inline = CreatePool(spec).encode();
            (Command::new(kv::admin::CREATE_POOL, 0, 0), Payload::Out(inline))
        }
        Call::Join(uuid) => {
            inline[..16].copy_from_slice(&uuid.to_be_bytes());
            (Command::new(kv::admin::JOIN_POOL, 0, 0), Payload::Out(&inline[..16]))
        }
        Call::Destroy(_) => (Command::new(kv::admin::DESTROY_POOL, 0, pool), Payload::None),
        Call::Pools(bytes) => (Command::new(kv::admin::LIST_POOLS, 0, 0), Payload::In(bytes)),
        Call::Statistics(bytes) => (Command::new(kv::admin::STATISTICS, 0, 0), Payload::In(bytes)),
    }
}

pub(super) const fn keep_alive() -> Command {
    Command::new(admin::KEEP_ALIVE, 0, 0)
}

pub(super) fn enable() -> Command {
    let value = ControllerConfiguration::ENABLED.0.into();
    Fabrics::PropertySet { offset: property::CC, wide: false, value }.encode(0)
}

pub(super) fn read_status() -> Command {
    Fabrics::PropertyGet { offset: property::CSTS, wide: false }.encode(0)
}

/// Whether a controller with this status is ready; `None` when it never will be.
pub(super) const fn is_ready(status: u64) -> Option<bool> {
    let status = ControllerStatus(status as u32);
    if status.is_fatal() { None } else { Some(status.is_ready()) }
}

pub(super) fn identify_controller() -> (Command, Payload<'static>) {
    let command = identify::identify(0, structure::CONTROLLER, 0, CommandSet::Block);
    (command, Payload::In(IDENTIFY_BYTES as u32))
}

/// Requests this many I/O queues.
pub(super) fn set_queues(queues: u16) -> Command {
    let mut command = Command::new(admin::SET_FEATURES, 0, 0);
    let less_one = (queues - 1).into();
    let asked = NumberOfQueues { submission_queues: less_one, completion_queues: less_one };
    let mut dwords = FeaturesDwords::of(&command);
    dwords.feature_identifier = feature::QUEUES;
    dwords.value = asked.encode().into();
    command.set_dwords(dwords.into());
    command
}

/// The number of queues that a result of [`set_queues`] grants.
pub(super) fn queues_granted(result: u64) -> u16 {
    let granted = NumberOfQueues::decode(result as u32);
    let less_one = granted.submission_queues.get().min(granted.completion_queues.get());
    less_one.saturating_add(1)
}

pub(super) fn list_pools(bytes: u32) -> (Command, Payload<'static>) {
    (Command::new(kv::admin::LIST_POOLS, 0, 0), Payload::In(bytes))
}

/// Checks that one of the association's own commands succeeded.
pub(super) fn succeeded(what: &'static str, completion: &Completion) -> Result<(), Trouble> {
    match completion.status.is_success() {
        true => Ok(()),
        false => Err(Trouble::Refused(what, completion.status.code().0)),
    }
}
