//! Fabrics commands on a connected queue: properties and authentication. [`crate::connect`] has the first command.

use spillway_wire::auth::MESSAGE_BYTES_MAX;
use spillway_wire::fabrics::{
    AuthTransfer, ControllerCapabilities, ControllerConfiguration, ControllerStatus, Fabrics,
    VERSION, property,
};
use spillway_wire::nvme::{Command, Status};

use crate::admin::Admin;
use crate::controller::Controller;
use crate::outcome::{Failure, Outcome};
use crate::queue::{Queue, Role};
use crate::reply::Reply;
use crate::subsystem::Subsystem;
use crate::target::Target;

/// Executes a fabrics command. Gives a text for the log if the host was not admitted.
pub(crate) fn execute(
    target: &Target,
    queue: &mut Queue,
    now_ms: u64,
    command: &Command,
    data: &[u8],
    reply: &mut Reply<'_>,
) -> Option<String> {
    let outcome = match Fabrics::decode(command) {
        Some(Fabrics::AuthSend(transfer)) => {
            let (outcome, failed) = match auth_send(target, queue, &transfer, data) {
                Ok(failed) => (Ok(0), admit(target, queue).or(failed)),
                Err(failure) => (Err(failure), None),
            };
            reply.complete(outcome);
            return failed;
        }
        Some(Fabrics::AuthReceive(transfer)) => {
            return auth_receive(target, queue, &transfer, command, reply);
        }
        _ if !queue.is_authenticated() => Err(Status::AUTHENTICATION_REQUIRED.finally().into()),
        fabrics => on_ready_queue(target, queue, now_ms, fabrics),
    };
    reply.complete(outcome);
    None
}

/// Executes a command on a queue whose host has authenticated, or need not.
fn on_ready_queue(
    target: &Target,
    queue: &mut Queue,
    now_ms: u64,
    fabrics: Option<Fabrics>,
) -> Outcome {
    let entries = target.config.queue_entries_max;
    match (&mut queue.role, fabrics) {
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
    }
}

/// Takes a message of the authentication. Gives a text for the log if it makes the authentication fail.
fn auth_send(
    target: &Target,
    queue: &mut Queue,
    transfer: &AuthTransfer,
    data: &[u8],
) -> Result<Option<String>, Failure> {
    let Some(authentication) = &mut queue.authentication else {
        return Err(Status::INVALID_FIELD.finally().into());
    };
    if !transfer.is_in_band() || transfer.bytes as usize != data.len() {
        return Err(Status::INVALID_FIELD.finally().into());
    }
    let failed = authentication.receive(data);
    if failed.is_some() {
        target.access.authentication_failed();
    }
    Ok(failed)
}

/// Sends a message of the authentication. Gives a text for the log if the host is not admitted.
fn auth_receive(
    target: &Target,
    queue: &mut Queue,
    transfer: &AuthTransfer,
    command: &Command,
    reply: &mut Reply<'_>,
) -> Option<String> {
    let room = (command.data.bytes as usize).min(MESSAGE_BYTES_MAX);
    let (Some(authentication), true) = (&mut queue.authentication, transfer.is_in_band()) else {
        reply.complete(Err(Status::INVALID_FIELD.finally().into()));
        return None;
    };
    reply.fill(room, |room| match authentication.send(room) {
        Some(bytes) => Ok((bytes, 0)),
        None => Err(Status::DATA_LENGTH.finally().into()),
    });
    admit(target, queue)
}

/// Admits the host if it has just proven who it is. Gives a text for the log if it is not admitted.
fn admit(target: &Target, queue: &mut Queue) -> Option<String> {
    let authentication = queue.authentication.as_mut()?;
    if !authentication.is_done() || queue.admitted.is_some() {
        return None;
    }
    match target.admit(&queue.controller.host) {
        Ok(client) => {
            queue.admitted = Some(client.clone());
            if queue.controller.client().is_none() {
                target.controllers.establish(&queue.controller, client);
            }
            None
        }
        Err(error) => {
            authentication.revoke();
            let host = &queue.controller.host.nqn;
            Some(format!("host {host:?} is not let in: {error}"))
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
        // These have no effect here.
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
