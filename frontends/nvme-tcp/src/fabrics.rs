//! Fabrics commands: making queues, properties, authentication.

use std::mem::offset_of;
use std::sync::{Arc, PoisonError};

use spillway_types::Denied;
use spillway_wire::auth::{HASH_BYTES_MAX, MESSAGE_BYTES_MAX};
use spillway_wire::fabrics::{
    ANY_CONTROLLER, AuthTransfer, Connect, ConnectCommand, ConnectData, ConnectResult,
    ControllerCapabilities, ControllerConfiguration, ControllerStatus, Fabrics, VERSION,
    invalid_parameter, kind, property,
};
use spillway_wire::nvme::{Command, Status, admin};

use crate::admin::Admin;
use crate::authentication::{Authentication, Names};
use crate::blocks::BlockQueue;
use crate::connection::Connection;
use crate::controller::{Controller, Host, ProvenClient, Subsystem};
use crate::error::Error;
use crate::pools::PoolQueue;
use crate::queue::{Queue, Role};
use crate::reply::{Failure, Outcome, Reply};
use crate::transfer::Transfers;

/// Offsets of parameters in the command, for the result of a Connect that is refused.
const QUEUE_AT: u16 = offset_of!(ConnectCommand, queue_id) as u16;
const QUEUE_ENTRIES_AT: u16 = offset_of!(ConnectCommand, submission_queue_size) as u16;

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

impl Connection {
    /// The first command of a connection.
    pub(crate) fn connect(
        &mut self,
        now_ms: u64,
        command: &Command,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) {
        let is_connect =
            command.opcode == admin::FABRICS && command.namespace as u8 == kind::CONNECT;
        let outcome = match Fabrics::decode(command).filter(|_| is_connect) {
            Some(Fabrics::Connect(connect)) => self.connect_queue(now_ms, connect, data),
            _ => Err(Status::SEQUENCE.finally().into()),
        };
        if let Some(queue) = &self.queue {
            reply.queue.number = queue.number;
            reply.queue.head = queue.flow_control.then_some(queue.head);
        }
        if let Err(failure) = &outcome {
            self.complaint = Some(format!("refused to connect a queue: {}", failure.status));
        }
        reply.complete(outcome);
    }

    fn connect_queue(&mut self, now_ms: u64, connect: Connect, data: &[u8]) -> Outcome {
        let asked = ConnectData::decode(data).map_err(|error| match error {
            spillway_wire::Error::Field("host NQN") => bad_data(ConnectData::HOST_AT),
            spillway_wire::Error::Field(_) => bad_data(ConnectData::SUBSYSTEM_AT),
            _ => Status::DATA_LENGTH.finally().into(),
        })?;
        if connect.format != 0 {
            return Err(Status::CONNECT_FORMAT.finally().into());
        }
        let entries = connect.queue_entries.checked_add(1);
        let entries = entries.filter(|&n| n > 1 && n <= self.target.config.queue_entries_max);
        let entries = entries.ok_or(bad_parameter(QUEUE_ENTRIES_AT))?;
        let subsystem = self.target.subsystem(asked.subsystem);
        let subsystem = subsystem.ok_or(bad_data(ConnectData::SUBSYSTEM_AT))?;
        let host = Host { nqn: asked.host.to_owned(), id: asked.host_id, name: self.name.clone() };
        let (mut authentication, admitted) = self.admit(subsystem, &host)?;
        let made = if connect.queue == 0 {
            self.new_controller(asked.controller, subsystem, host)
        } else {
            self.known_controller(connect.queue, asked.controller, subsystem, &host)
        };
        let controller = match made {
            Ok(controller) => controller,
            Err(failure) => {
                self.leave(admitted);
                return Err(failure);
            }
        };
        if let Some(authentication) = &mut authentication {
            authentication.set_names(Names {
                host: controller.host.nqn.clone(),
                subsystem: self.target.nqn(subsystem).to_owned(),
            });
        } else if let (Some(client), None) = (&admitted, controller.client()) {
            self.target.establish(&controller, client.clone());
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
        self.queue = Some(Queue {
            controller,
            number: connect.queue,
            entries,
            head: 1,
            flow_control: connect.attributes & Connect::NO_FLOW_CONTROL == 0,
            authentication,
            admitted,
            transfers: Transfers::default(),
            role,
        });
        Ok(result.encode())
    }

    /// What a host must prove, or as whom it is let in at once. The discovery subsystem says the same to
    /// everybody, so everybody may ask it.
    fn admit(
        &self,
        subsystem: Subsystem,
        host: &Host,
    ) -> Result<(Option<Authentication>, Option<ProvenClient>), Failure> {
        if subsystem == Subsystem::Discovery {
            return Ok((None, None));
        }
        let mut key = [0; HASH_BYTES_MAX];
        let secret = || self.target.access.host_secret(&host.nqn, &mut key);
        // Its certificate has proven who it is.
        if let Some(bytes) = host.name.is_none().then(secret).flatten() {
            let key = key[..bytes.min(HASH_BYTES_MAX)].to_vec();
            let secret = &self.target.config.controller_secret;
            let secret = secret.read().unwrap_or_else(PoisonError::into_inner).clone();
            let own = secret.map(|its| its.key_of(self.target.nqn(subsystem)));
            let own = own.map(|(key, bytes)| key[..bytes].to_vec());
            return Ok((Some(Authentication::new(key, own)), None));
        }
        match self.target.admit(host) {
            Ok(client) => Ok((None, Some(client))),
            Err(Error::Denied(Denied::Connections)) => Err(Status::CONNECT_BUSY.into()),
            Err(_) => Err(Status::CONNECT_HOST.finally().into()),
        }
    }

    fn leave(&self, admitted: Option<ProvenClient>) {
        if let Some(client) = admitted {
            self.target.access.leave(client.id);
        }
    }

    fn new_controller(
        &self,
        asked: u16,
        subsystem: Subsystem,
        host: Host,
    ) -> Result<Arc<Controller>, Failure> {
        if asked != ANY_CONTROLLER {
            return Err(bad_data(ConnectData::CONTROLLER_AT));
        }
        let controller = self.target.add_controller(subsystem, host, self.local);
        let controller = controller.ok_or(Status::CONNECT_BUSY)?;
        controller.add_queue(0, &self.waker);
        Ok(controller)
    }

    fn known_controller(
        &self,
        queue: u16,
        asked: u16,
        subsystem: Subsystem,
        host: &Host,
    ) -> Result<Arc<Controller>, Failure> {
        let controller = self.target.controller(asked);
        let controller = controller.filter(|its| its.subsystem == subsystem && its.host == *host);
        let controller = controller.ok_or(bad_data(ConnectData::CONTROLLER_AT))?;
        if subsystem == Subsystem::Discovery || queue > self.target.config.io_queues_max {
            return Err(bad_parameter(QUEUE_AT));
        }
        if !controller.is_enabled() {
            return Err(Status::SEQUENCE.finally().into());
        }
        if !controller.add_queue(queue, &self.waker) {
            return Err(Status::CONNECT_BUSY.into());
        }
        Ok(controller)
    }

    /// A fabrics command on a queue that is connected.
    pub(crate) fn fabrics(
        &mut self,
        now_ms: u64,
        command: &Command,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) {
        let Some(queue) = &mut self.queue else { return };
        let fabrics = Fabrics::decode(command);
        match fabrics {
            Some(Fabrics::AuthSend(transfer)) => {
                let outcome = self.auth_send(&transfer, data);
                reply.complete(outcome);
                return;
            }
            Some(Fabrics::AuthReceive(transfer)) => {
                self.auth_receive(&transfer, command, reply);
                return;
            }
            _ => {}
        }
        if !queue.is_authenticated() {
            reply.complete(Err(Status::AUTHENTICATION_REQUIRED.finally().into()));
            return;
        }
        let entries = self.target.config.queue_entries_max;
        let outcome = match (&mut queue.role, fabrics) {
            (Role::Admin(admin), Some(Fabrics::PropertyGet { offset, wide })) => {
                property_get(admin, queue.controller.subsystem, entries, offset, wide)
            }
            (Role::Admin(admin), Some(Fabrics::PropertySet { offset, value, .. })) => {
                property_set(admin, &queue.controller, offset, value as u32, now_ms)
            }
            // The connection ends when the host closes it.
            (Role::Blocks(_) | Role::Pools(_), Some(Fabrics::Disconnect)) => Ok(0),
            (_, Some(Fabrics::Connect(_))) => Err(Status::SEQUENCE.finally().into()),
            (_, Some(_)) => Err(Status::INVALID_FIELD.finally().into()),
            (_, None) => Err(Status::INVALID_OPCODE.finally().into()),
        };
        reply.complete(outcome);
    }

    fn auth_send(&mut self, transfer: &AuthTransfer, data: &[u8]) -> Outcome {
        let Some(queue) = &mut self.queue else { return Err(Status::SEQUENCE.into()) };
        let Some(authentication) = &mut queue.authentication else {
            return Err(Status::INVALID_FIELD.finally().into());
        };
        if !transfer.is_in_band() || transfer.bytes as usize != data.len() {
            return Err(Status::INVALID_FIELD.finally().into());
        }
        let failed = authentication.receive(data);
        if failed.is_some() {
            self.target.access.authentication_failed();
        }
        self.complaint = failed.or(self.complaint.take());
        self.let_in();
        Ok(0)
    }

    fn auth_receive(&mut self, transfer: &AuthTransfer, command: &Command, reply: &mut Reply<'_>) {
        let Some(queue) = &mut self.queue else { return };
        let room = (command.data.bytes as usize).min(MESSAGE_BYTES_MAX);
        let (Some(authentication), true) = (&mut queue.authentication, transfer.is_in_band())
        else {
            reply.complete(Err(Status::INVALID_FIELD.finally().into()));
            return;
        };
        reply.fill(room, |room| match authentication.send(room) {
            Some(bytes) => Ok((bytes, 0)),
            None => Err(Status::DATA_LENGTH.finally().into()),
        });
        self.let_in();
    }

    /// Lets the host in when it has just proven who it is.
    fn let_in(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let Some(authentication) = &mut queue.authentication else { return };
        if !authentication.is_done() || queue.admitted.is_some() {
            return;
        }
        match self.target.admit(&queue.controller.host) {
            Ok(client) => {
                queue.admitted = Some(client.clone());
                if queue.controller.client().is_none() {
                    self.target.establish(&queue.controller, client);
                }
            }
            Err(error) => {
                let host = &queue.controller.host.nqn;
                self.complaint = Some(format!("host {host:?} is not let in: {error}"));
                authentication.revoke();
            }
        }
    }
}

/// The property CAP.
fn capabilities(subsystem: Subsystem, queue_entries: u16) -> ControllerCapabilities {
    const TIMEOUT_10_S: u8 = 20;
    ControllerCapabilities {
        maximum_queue_entries_supported: queue_entries - 1,
        contiguous_queues_required: true,
        timeout: TIMEOUT_10_S,
        command_sets_supported: match subsystem {
            Subsystem::Blocks | Subsystem::Discovery => ControllerCapabilities::NVM_COMMAND_SET,
            // Linux asks for the command set of each namespace only of a controller that says so.
            Subsystem::Pools => ControllerCapabilities::IO_COMMAND_SETS,
        },
    }
}

fn property_get(
    admin: &Admin,
    subsystem: Subsystem,
    queue_entries: u16,
    offset: u32,
    wide: bool,
) -> Outcome {
    let (value, is_wide) = match offset {
        property::CAP => (capabilities(subsystem, queue_entries).encode(), true),
        property::VS => (VERSION.into(), false),
        property::CC => (admin.configuration.0.into(), false),
        property::CSTS => (status_of(admin.configuration).0.into(), false),
        // None of these does anything here.
        property::NSSR | property::CRTO => (0, false),
        _ => return Err(Status::INVALID_FIELD.finally().into()),
    };
    if wide == is_wide { Ok(value) } else { Err(Status::INVALID_FIELD.finally().into()) }
}

fn status_of(configuration: ControllerConfiguration) -> ControllerStatus {
    let ready = if configuration.is_enabled() { ControllerStatus::READY } else { 0 };
    let shutdown =
        if configuration.is_shutdown() { ControllerStatus::SHUTDOWN_COMPLETE } else { 0 };
    ControllerStatus(ready | shutdown)
}

fn property_set(
    admin: &mut Admin,
    controller: &Controller,
    offset: u32,
    value: u32,
    now_ms: u64,
) -> Outcome {
    if offset != property::CC {
        return Err(Status::INVALID_FIELD.finally().into());
    }
    let configuration = ControllerConfiguration(value);
    let enabled = configuration.is_enabled() && !configuration.is_shutdown();
    if enabled != controller.is_enabled() {
        controller.set_enabled(enabled);
    }
    admin.configuration = configuration;
    admin.heard(now_ms);
    Ok(0)
}
