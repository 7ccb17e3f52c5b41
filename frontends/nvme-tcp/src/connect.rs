//! Connect, the first command of a connection: it makes the connection's queue.
//!
//! The first queue of an association is its admin queue, which makes the controller. The I/O queues name the controller
//! that they belong to.

use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use spillway_types::Denied;
use spillway_wire::auth::HASH_BYTES_MAX;
use spillway_wire::fabrics::{
    ANY_CONTROLLER, Connect, ConnectCommand, ConnectData, ConnectResult, Fabrics,
    invalid_parameter, kind,
};
use spillway_wire::nvme::{Command, Status, admin};

use crate::admin::Admin;
use crate::authentication::{Authentication, Names};
use crate::blocks::BlockQueue;
use crate::controller::{Controller, Host, ProvenClient, Waker};
use crate::error::Error;
use crate::outcome::Failure;
use crate::pools::PoolQueue;
use crate::queue::{Queue, Role};
use crate::subsystem::Subsystem;
use crate::target::Target;
use crate::transfer::Transfers;

/// Offsets of parameters in the command, for the result of a Connect that is refused.
const QUEUE_AT: u16 = offset_of!(ConnectCommand, queue_id) as u16;
const QUEUE_ENTRIES_AT: u16 = offset_of!(ConnectCommand, submission_queue_size) as u16;

/// What is known of a connection before its first command.
pub(crate) struct Origin {
    /// The target's address to which the host connected.
    pub(crate) local: SocketAddr,
    /// The name in the host's certificate; none without TLS.
    pub(crate) name: Option<String>,
    pub(crate) waker: Waker,
}

/// A Connect refused for a parameter of the command.
fn bad_parameter(at: u16) -> Failure {
    let status = Status::CONNECT_PARAMETERS.finally();
    Failure { status, result: invalid_parameter(false, at) }
}

/// A Connect refused for a parameter of its data.
fn bad_data(at: u16) -> Failure {
    let status = Status::CONNECT_PARAMETERS.finally();
    Failure { status, result: invalid_parameter(true, at) }
}

/// Executes the first command of a connection: the queue that it makes, and the result in its completion.
pub(crate) fn connect(
    target: &Target,
    origin: &Origin,
    now_ms: u64,
    command: &Command,
    data: &[u8],
) -> Result<(Queue, u64), Failure> {
    let is_connect = command.opcode == admin::FABRICS && command.namespace as u8 == kind::CONNECT;
    match Fabrics::decode(command).filter(|_| is_connect) {
        Some(Fabrics::Connect(connect)) => make_queue(target, origin, now_ms, connect, data),
        _ => Err(Status::SEQUENCE.finally().into()),
    }
}

fn make_queue(
    target: &Target,
    origin: &Origin,
    now_ms: u64,
    connect: Connect,
    data: &[u8],
) -> Result<(Queue, u64), Failure> {
    let asked = ConnectData::decode(data).map_err(|error| match error {
        spillway_wire::Error::Field("host NQN") => bad_data(ConnectData::HOST_AT),
        spillway_wire::Error::Field(_) => bad_data(ConnectData::SUBSYSTEM_AT),
        _ => Status::DATA_LENGTH.finally().into(),
    })?;
    if connect.format != 0 {
        return Err(Status::CONNECT_FORMAT.finally().into());
    }
    let entries = connect.queue_entries.checked_add(1);
    let entries = entries.filter(|&n| n > 1 && n <= target.config.queue_entries_max);
    let entries = entries.ok_or(bad_parameter(QUEUE_ENTRIES_AT))?;
    let subsystem = target.subsystem(asked.subsystem);
    let subsystem = subsystem.ok_or(bad_data(ConnectData::SUBSYSTEM_AT))?;
    let host = Host { nqn: asked.host.to_owned(), id: asked.host_id, name: origin.name.clone() };
    let (mut authentication, admitted) = admit(target, subsystem, &host)?;
    let made = if connect.queue == 0 {
        new_controller(target, origin, asked.controller, subsystem, host)
    } else {
        known_controller(target, origin, connect.queue, asked.controller, subsystem, &host)
    };
    let controller = match made {
        Ok(controller) => controller,
        Err(failure) => {
            if let Some(client) = admitted {
                target.access.leave(client.id);
            }
            return Err(failure);
        }
    };
    if let Some(authentication) = &mut authentication {
        authentication.set_names(Names {
            host: controller.host.nqn.clone(),
            subsystem: target.nqn(subsystem).to_owned(),
        });
    } else if let (Some(client), None) = (&admitted, controller.client()) {
        target.controllers.establish(&controller, client.clone());
    }
    let result =
        ConnectResult { controller: controller.id, authenticate: authentication.is_some() };
    let role = match (connect.queue, subsystem) {
        (0, _) | (_, Subsystem::Discovery) => {
            Role::Admin(Admin::new(now_ms, subsystem.keep_alive_ms(connect.keep_alive_ms)))
        }
        (_, Subsystem::Blocks) => Role::Blocks(BlockQueue::default()),
        (_, Subsystem::Pools) => Role::Pools(PoolQueue::default()),
    };
    let queue = Queue {
        controller,
        number: connect.queue,
        entries,
        head: 1,
        flow_control: connect.attributes & Connect::NO_FLOW_CONTROL == 0,
        authentication,
        admitted,
        transfers: Transfers::default(),
        role,
    };
    Ok((queue, result.encode()))
}

/// What a host must prove, or the client as which it is admitted at once. Any host may connect to the discovery
/// subsystem, which tells all hosts the same.
fn admit(
    target: &Target,
    subsystem: Subsystem,
    host: &Host,
) -> Result<(Option<Authentication>, Option<ProvenClient>), Failure> {
    if subsystem == Subsystem::Discovery {
        return Ok((None, None));
    }
    let mut key = [0; HASH_BYTES_MAX];
    let secret = || target.access.host_secret(&host.nqn, &mut key);
    // A host with a certificate has proven who it is.
    if let Some(bytes) = host.name.is_none().then(secret).flatten() {
        let key = key[..bytes.min(HASH_BYTES_MAX)].to_vec();
        let secret = &target.config.controller_secret;
        let secret = secret.read().unwrap_or_else(PoisonError::into_inner).clone();
        let own = secret.map(|its| its.key_of(target.nqn(subsystem)));
        let own = own.map(|(key, bytes)| key[..bytes].to_vec());
        return Ok((Some(Authentication::new(key, own)), None));
    }
    match target.admit(host) {
        Ok(client) => Ok((None, Some(client))),
        Err(Error::Denied(Denied::Connections)) => Err(Status::CONNECT_BUSY.into()),
        Err(_) => Err(Status::CONNECT_HOST.finally().into()),
    }
}

fn new_controller(
    target: &Target,
    origin: &Origin,
    asked: u16,
    subsystem: Subsystem,
    host: Host,
) -> Result<Arc<Controller>, Failure> {
    if asked != ANY_CONTROLLER {
        return Err(bad_data(ConnectData::CONTROLLER_AT));
    }
    let controller = target.controllers.add(subsystem, host, origin.local);
    let controller = controller.ok_or(Status::CONNECT_BUSY)?;
    controller.add_queue(0, &origin.waker);
    Ok(controller)
}

fn known_controller(
    target: &Target,
    origin: &Origin,
    queue: u16,
    asked: u16,
    subsystem: Subsystem,
    host: &Host,
) -> Result<Arc<Controller>, Failure> {
    let controller = target.controllers.get(asked);
    let controller = controller.filter(|its| its.subsystem == subsystem && its.host == *host);
    let controller = controller.ok_or(bad_data(ConnectData::CONTROLLER_AT))?;
    if subsystem == Subsystem::Discovery || queue > target.config.io_queues_max {
        return Err(bad_parameter(QUEUE_AT));
    }
    if !controller.is_enabled() {
        return Err(Status::SEQUENCE.finally().into());
    }
    if !controller.add_queue(queue, &origin.waker) {
        return Err(Status::CONNECT_BUSY.into());
    }
    Ok(controller)
}
