//! A connection: PDUs in, their commands to where they are executed, answers out. No I/O, and a clock only to measure
//! commands.
//!
//! ```text
//!  accepted --ICReq/ICResp--> initialized --Connect--> queue --(authentication)--> ready
//! ```
//! When the connection of an admin queue ends, its controller ends, and with it the connections of the controller's I/O
//! queues.

use std::net::SocketAddr;
use std::sync::{Arc, RwLockReadGuard};
use std::time::Instant;

use spillway_serving::Recorder;
use spillway_wire::Error as WireError;
use spillway_wire::nvme::{Command, DataPointer, Direction, Status, admin};
use spillway_wire::nvme_tcp::{
    ADMIN_CAPSULE_DATA_BYTES, DIGEST_BYTES, Framing, HEADER_BYTES_MAX, InitRequest, InitResponse,
    Pdu, Terminate, Transfer, decode, decode_damaged, is_host_data,
};

use crate::connect::{Origin, connect};
use crate::context::Context;
use crate::controller::{Controller, Waker};
use crate::error::Error;
use crate::fabrics;
use crate::output::Output;
use crate::patience::{Owed, Patience, What};
use crate::queue::{Begin, Queue, Role, direction};
use crate::reply::{PDU_DATA_BYTES_MAX, QueueState, Reply, write_pdu};
use crate::target::Target;
use crate::transfer::Next;

/// Most bytes of a PDU that a host may send.
pub const PDU_BYTES_MAX: usize = PDU_DATA_BYTES_MAX + HEADER_BYTES_MAX + DIGEST_BYTES;
/// How often a connection checks whether there is room for a command that waits for it.
const ROOM_POLL_MS: u64 = 2;

/// A connection of a host.
pub struct Connection {
    target: Arc<Target>,
    origin: Origin,
    /// When its queue must be ready.
    handshake_until_ms: u64,
    framing: Option<Framing>,
    patience: Patience,
    /// Bytes of all whole PDUs that have arrived.
    taken_bytes: u64,
    queue: Option<Queue>,
    /// Why the host or a command of it was refused, until [`Self::complaint`] takes it for the log.
    complaint: Option<String>,
    recorder: Recorder,
}

/// Where the data is that a host sends for a command.
enum Placement<'a> {
    /// In the capsule; empty if the host sends none.
    Here(&'a [u8]),
    /// In PDUs of its own, which the host sends when it is told to.
    Transport,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = self.queue.as_ref().map(|queue| (&queue.controller, queue.number));
        f.debug_struct("Connection").field("queue", &queue).finish_non_exhaustive()
    }
}

impl Connection {
    /// A new connection of a host to `target`, at the target's address `local`. `name` is the name in the host's
    /// certificate: over TLS the host is that client, whatever name it gives, and need not authenticate. `waker` is
    /// called, on any thread, when [`Self::poll`] has something to do.
    pub fn new(
        target: Arc<Target>,
        local: SocketAddr,
        name: Option<String>,
        now_ms: u64,
        waker: Waker,
    ) -> Self {
        let handshake_until_ms = now_ms + target.config.handshake_timeout_ms;
        Self {
            recorder: target.recorder(),
            target,
            origin: Origin { local, name, waker },
            handshake_until_ms,
            framing: None,
            patience: Patience::default(),
            taken_bytes: 0,
            queue: None,
            complaint: None,
        }
    }

    /// Takes bytes from the host and executes their commands. Gives how many bytes it took; pass the rest again, with
    /// later bytes behind it. Bytes remain if the last PDU is incomplete, if the output is full, or if the connection
    /// has just got its queue.
    ///
    /// # Errors
    /// Send the output, then close the connection.
    pub fn receive(&mut self, now_ms: u64, input: &[u8], out: &mut Output) -> Result<usize, Error> {
        let taken = self.receive_all(now_ms, input, out).and_then(|taken| {
            self.taken_bytes += taken as u64;
            self.check_progress(now_ms, &input[taken..], out)?;
            Ok(taken)
        });
        if let Err(error) = &taken {
            let terminate = match error {
                Error::Wire(error) => Some(Terminate::from(*error)),
                Error::Protocol(_) => Some(Terminate { status: Terminate::SEQUENCE, detail: 0 }),
                _ => None,
            };
            if let Some(terminate) = terminate {
                write_pdu(out, self.framing(), &Pdu::ControllerTerminate(terminate));
            }
        }
        taken
    }

    fn receive_all(&mut self, now_ms: u64, input: &[u8], out: &mut Output) -> Result<usize, Error> {
        let controller = self.queue.as_ref().map(|queue| Arc::clone(&queue.controller));
        let _open = self.enter(controller.as_deref())?;
        self.start_waiting(now_ms, out);
        let mut taken = 0;
        while !out.is_full() {
            let rest = &input[taken..];
            let bytes = match decode(rest, self.framing(), PDU_BYTES_MAX) {
                Ok(Some((pdu, bytes))) => {
                    self.pdu(now_ms, pdu, out)?;
                    bytes
                }
                Ok(None) => break,
                Err(WireError::DataDigest) => self.damaged_pdu(now_ms, rest, out)?,
                Err(error) => return Err(error.into()),
            };
            taken += bytes;
            // The new controller can be ended by another thread, and the loop does not hold it open: see `enter`.
            if controller.is_none() && self.queue.is_some() {
                break;
            }
        }
        Ok(taken)
    }

    /// Keeps the controller from ending until the guard is dropped.
    fn enter<'a>(
        &self,
        controller: Option<&'a Controller>,
    ) -> Result<Option<RwLockReadGuard<'a, bool>>, Error> {
        let Some(controller) = controller else { return Ok(None) };
        let open = controller.enter().ok_or(Error::ControllerGone)?;
        let is_io = self.queue.as_ref().is_some_and(|queue| queue.number != 0);
        if is_io && !controller.is_enabled() {
            return Err(Error::ControllerGone);
        }
        Ok(Some(open))
    }

    /// Checks deadlines, tells the host of changed namespaces, and continues waiting commands. Call it after the waker
    /// was called, and at [`Self::deadline_ms`].
    ///
    /// # Errors
    /// Close the connection.
    pub fn poll(&mut self, now_ms: u64, out: &mut Output) -> Result<(), Error> {
        let controller = self.queue.as_ref().map(|queue| Arc::clone(&queue.controller));
        let _open = self.enter(controller.as_deref())?;
        if !self.is_ready() && now_ms >= self.handshake_until_ms {
            self.target.access.handshake_late();
            return Err(Error::Silent);
        }
        let framing = self.framing();
        if let Some(queue) = &mut self.queue
            && let Role::Admin(admin) = &mut queue.role
        {
            if admin.keep_alive_until_ms().is_some_and(|until| now_ms >= until) {
                return Err(Error::Silent);
            }
            let state = QueueState { number: 0, head: queue.flow_control.then_some(queue.head) };
            let mut reply = Reply { out, framing, queue: state, command: 0 };
            let context = Context { target: &self.target, controller: &queue.controller, now_ms };
            admin.tell_changes(&context, &mut reply);
        }
        self.start_waiting(now_ms, out);
        Ok(())
    }

    /// The latest time at which to call [`Self::poll`].
    pub fn deadline_ms(&self, now_ms: u64) -> Option<u64> {
        if !self.is_ready() {
            return Some(self.handshake_until_ms);
        }
        let queue = self.queue.as_ref()?;
        let room_ms = queue.transfers.has_waiting().then_some(now_ms + ROOM_POLL_MS);
        let host_ms = match &queue.role {
            Role::Admin(admin) => admin.keep_alive_until_ms(),
            Role::Blocks(_) | Role::Pools(_) => None,
        };
        [room_ms, host_ms, self.patience.until_ms()].into_iter().flatten().min()
    }

    /// Why the host was not admitted, got no queue, or had a command fail for damaged data, since the last call: a text
    /// for the log. Any host can cause any number of them, so limit how many you log.
    pub const fn complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Whether the host was admitted as a client. Hosts of the discovery subsystem never are: it tells all hosts the
    /// same.
    pub fn is_admitted(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.admitted.is_some())
    }

    /// Whether parts of an answer remain for which the output had no room. If so, send the output and call
    /// [`Self::receive`] again, even without new bytes.
    pub fn sends_more(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.transfers.outgoing.is_empty())
    }

    /// Checks that the host continues with what it has begun to send. `rest` is the beginning of a PDU.
    fn check_progress(&mut self, now_ms: u64, rest: &[u8], out: &Output) -> Result<(), Error> {
        let Some(queue) = self.queue.as_ref().filter(|queue| queue.is_authenticated()) else {
            return Ok(());
        };
        if out.is_full() {
            self.patience.rest();
            return Ok(());
        }
        let timeout_ms = self.target.config.data_timeout_ms;
        let bytes = queue.transfers.owed_bytes();
        let rest_bytes = rest.len() as u64;
        let owed = if bytes == 0 {
            let came = self.taken_bytes + rest_bytes;
            Owed { what: What::Pdu, bytes: u64::from(!rest.is_empty()), came }
        } else {
            let more = if is_host_data(rest) { rest_bytes } else { 0 };
            Owed { what: What::Granted, bytes, came: queue.transfers.came_bytes() + more }
        };
        if self.patience.look(now_ms, owed, timeout_ms) {
            return Ok(());
        }
        let mut client = queue.controller.host.nqn.clone();
        if let Some(its) = queue.controller.client() {
            self.target.access.name(its.id, &mut |name| client = name.to_owned());
        }
        Err(Error::Stalled { client, bytes: owed.bytes, seconds: timeout_ms / 1000 })
    }

    /// Whether the host has a queue, and has authenticated if it must.
    fn is_ready(&self) -> bool {
        self.queue.as_ref().is_some_and(Queue::is_authenticated)
    }

    fn framing(&self) -> Framing {
        self.framing.unwrap_or_default()
    }

    fn pdu(&mut self, now_ms: u64, pdu: Pdu<'_>, out: &mut Output) -> Result<(), Error> {
        match (pdu, self.framing) {
            (Pdu::InitRequest(request), None) => self.initialize(request, out),
            (Pdu::Command(command, data), Some(_)) => {
                if data.len() > ADMIN_CAPSULE_DATA_BYTES {
                    return Err(Error::Protocol("more data in a capsule than is allowed"));
                }
                self.command(now_ms, &command, data, out)
            }
            (Pdu::HostData(part, data), Some(framing)) => {
                self.host_data(now_ms, (&part, Some(data)), framing, out)
            }
            (Pdu::HostTerminate(terminate), _) => Err(Error::Terminated(terminate.status)),
            _ => Err(Error::Protocol("an unexpected PDU")),
        }
    }

    /// Takes data of a command, which follows its command; `None` if the data is damaged.
    fn host_data(
        &mut self,
        now_ms: u64,
        (part, data): (&Transfer, Option<&[u8]>),
        framing: Framing,
        out: &mut Output,
    ) -> Result<(), Error> {
        let Some(queue) = &mut self.queue else {
            return Err(Error::Protocol("data before Connect"));
        };
        match queue.transfers.receive(part, data)? {
            Next::Nothing => {}
            Next::Grant(grant) => write_pdu(out, framing, &Pdu::ReadyToTransfer(grant)),
            Next::Execute(command, data, held) => {
                self.execute(now_ms, &command, &data, out);
                drop((data, held));
                self.start_waiting(now_ms, out);
            }
            Next::Done(command, outcome, worked) => {
                queue.reply(out, framing, &command).complete(outcome);
                queue.record(&self.recorder, &command, worked);
                self.start_waiting(now_ms, out);
            }
        }
        Ok(())
    }

    /// Fails the command of a PDU whose data is damaged, so that the host tries it again (TCP 1.0, section 3.5, digest
    /// error handling). The connection goes on. Gives the length of the PDU.
    fn damaged_pdu(&mut self, now_ms: u64, input: &[u8], out: &mut Output) -> Result<usize, Error> {
        let framing = self.framing();
        let decoded = decode_damaged(input, framing, PDU_BYTES_MAX)?;
        let Some((pdu, bytes)) = decoded else { return Ok(0) };
        self.target.count_damaged();
        self.complaint = Some("the digest of data is wrong: its command fails".into());
        match pdu {
            Pdu::Command(command, _) => {
                let queue = match &mut self.queue {
                    Some(queue) => {
                        queue.head = (queue.head + 1) % queue.entries;
                        queue.state()
                    }
                    None => QueueState { number: 0, head: None },
                };
                let mut reply = Reply { out, framing, queue, command: command.id };
                reply.complete(Err(Status::TRANSPORT.into()));
            }
            Pdu::HostData(part, _) => self.host_data(now_ms, (&part, None), framing, out)?,
            _ => return Err(Error::Protocol("an unexpected PDU")),
        }
        Ok(bytes)
    }

    fn initialize(&mut self, request: InitRequest, out: &mut Output) -> Result<(), Error> {
        if request.version != 0 || request.alignment > 31 {
            return Err(Error::Protocol("an unknown PDU format"));
        }
        let InitRequest { header_digest, data_digest, alignment, .. } = request;
        let response = InitResponse {
            version: 0,
            alignment: 0,
            header_digest,
            data_digest,
            host_data_bytes_max: PDU_DATA_BYTES_MAX as u32,
        };
        write_pdu(out, Framing::default(), &Pdu::InitResponse(response));
        self.framing = Some(Framing { header_digest, data_digest, alignment });
        Ok(())
    }

    fn command(
        &mut self,
        now_ms: u64,
        command: &Command,
        capsule: &[u8],
        out: &mut Output,
    ) -> Result<(), Error> {
        let framing = self.framing();
        let Some(queue) = &mut self.queue else {
            self.connect(now_ms, command, capsule, out);
            return Ok(());
        };
        queue.head = (queue.head + 1) % queue.entries;
        let placement = match placement(command, capsule) {
            Ok(placement) => placement,
            Err(status) => {
                queue.reply(out, framing, command).complete(Err(status.finally().into()));
                return Ok(());
            }
        };
        let bytes = command.data.bytes;
        match placement {
            Placement::Here(data) if !queue.is_long(command) => {
                self.execute(now_ms, command, data, out);
            }
            _ => {
                let client = queue.controller.client().filter(|_| queue.is_authenticated());
                let allowed = client.map_or(0, |client| client.quota.bytes_max());
                if u64::from(bytes) > allowed.min(queue.controller.subsystem.transfer_bytes_max()) {
                    let status = Status::INVALID_FIELD.finally();
                    queue.reply(out, framing, command).complete(Err(status.into()));
                    return Ok(());
                }
                if queue.transfers.len() >= usize::from(queue.entries) {
                    return Err(Error::Protocol("more commands than the queue has entries"));
                }
                queue.transfers.wait(*command);
                self.start_waiting(now_ms, out);
            }
        }
        Ok(())
    }

    /// Executes the first command.
    fn connect(&mut self, now_ms: u64, command: &Command, data: &[u8], out: &mut Output) {
        let framing = self.framing();
        match connect(&self.target, &self.origin, now_ms, command, data) {
            Ok((queue, result)) => {
                queue.reply(out, framing, command).complete(Ok(result));
                self.queue = Some(queue);
            }
            Err(failure) => {
                self.complaint = Some(format!("refused to connect a queue: {}", failure.status));
                let queue = QueueState { number: 0, head: None };
                let mut reply = Reply { out, framing, queue, command: command.id };
                reply.complete(Err(failure));
            }
        }
    }

    /// Continues long answers, and starts commands that waited for room.
    fn start_waiting(&mut self, now_ms: u64, out: &mut Output) {
        let framing = self.framing();
        while let Some(queue) = &mut self.queue {
            queue.send_long(framing, out, &self.recorder);
            if out.is_full() {
                return;
            }
            let Some(command) = queue.transfers.next_waiting() else { return };
            let client = queue.controller.client();
            let held = client.and_then(|client| client.quota.hold(command.data.bytes.into()));
            let Some(held) = held else { return };
            let context = Context { target: &self.target, controller: &queue.controller, now_ms };
            let began = Instant::now();
            let begun = queue.role.begin(&context, &command);
            if matches!(begun, Ok(Begin::Later)) {
                return;
            }
            queue.transfers.waited();
            match begun {
                Ok(Begin::Receive(sink)) => {
                    let grant = queue.transfers.begin(command, sink, began.elapsed(), held);
                    write_pdu(out, framing, &Pdu::ReadyToTransfer(grant));
                }
                Ok(Begin::Send(source)) => {
                    queue.begin_answer(command, source, began.elapsed(), held);
                }
                Ok(Begin::Get) => {
                    let mut reply = queue.reply(out, framing, &command);
                    if let Role::Pools(pools) = &mut queue.role {
                        match pools.get_long(&context, &command, &mut reply) {
                            Some(source) => {
                                queue.begin_answer(command, source, began.elapsed(), held);
                            }
                            None => queue.record(&self.recorder, &command, began.elapsed()),
                        }
                    }
                }
                Ok(Begin::Execute) => self.execute(now_ms, &command, &[], out),
                Ok(Begin::Later) => {}
                Err(failure) => {
                    queue.reply(out, framing, &command).complete(Err(failure));
                    queue.record(&self.recorder, &command, began.elapsed());
                }
            }
        }
    }

    /// Executes a command whose data is complete, and records how long that takes.
    fn execute(&mut self, now_ms: u64, command: &Command, data: &[u8], out: &mut Output) {
        let began = Instant::now();
        self.dispatch(now_ms, command, data, out);
        if let Some(queue) = &self.queue {
            queue.record(&self.recorder, command, began.elapsed());
        }
    }

    fn dispatch(&mut self, now_ms: u64, command: &Command, data: &[u8], out: &mut Output) {
        let framing = self.framing();
        let Some(queue) = &mut self.queue else { return };
        let mut reply = queue.reply(out, framing, command);
        if command.opcode == admin::FABRICS {
            let refused = fabrics::execute(&self.target, queue, now_ms, command, data, &mut reply);
            self.complaint = refused.or(self.complaint.take());
            return;
        }
        if !queue.is_authenticated() {
            reply.complete(Err(Status::AUTHENTICATION_REQUIRED.finally().into()));
            return;
        }
        let context = Context { target: &self.target, controller: &queue.controller, now_ms };
        match &mut queue.role {
            Role::Admin(admin) => {
                admin.execute(&context, self.origin.local, command, data, &mut reply);
            }
            Role::Blocks(blocks) => blocks.execute(&context, command, data, &mut reply),
            Role::Pools(pools) => pools.execute(&context, command, data, &mut reply),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        queue.controller.remove_queue(queue.number);
        if queue.number == 0 {
            self.target.controllers.remove(&queue.controller);
        }
        if let Some(client) = queue.admitted {
            self.target.access.leave(client.id);
        }
    }
}

/// Where the data is that a host sends for a command.
fn placement<'a>(command: &Command, capsule: &'a [u8]) -> Result<Placement<'a>, Status> {
    if command.flags != Command::SGL {
        return Err(Status::INVALID_FIELD);
    }
    let direction = direction(command).ok_or(Status::INVALID_OPCODE)?;
    let DataPointer { address, bytes, kind } = command.data;
    match (direction, kind) {
        (Direction::Out, DataPointer::IN_CAPSULE) => {
            let data = usize::try_from(address).ok().and_then(|start| capsule.get(start..));
            let data = data.ok_or(Status::DESCRIPTOR_OFFSET)?;
            data.get(..bytes as usize).map(Placement::Here).ok_or(Status::DATA_LENGTH)
        }
        (Direction::Out, DataPointer::TRANSPORT) if bytes != 0 => Ok(Placement::Transport),
        (Direction::In, DataPointer::TRANSPORT) => Ok(Placement::Here(&[])),
        (Direction::In, _) => Err(Status::DESCRIPTOR_TYPE),
        (Direction::Out, DataPointer::TRANSPORT) | (Direction::None, _) => Ok(Placement::Here(&[])),
        (Direction::Out, _) => Err(Status::DESCRIPTOR_TYPE),
    }
}
