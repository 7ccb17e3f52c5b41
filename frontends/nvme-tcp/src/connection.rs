//! A connection: PDUs in, commands to where they belong, answers out. No I/O, no clock.
//!
//! ```text
//!  accepted --ICReq/ICResp--> initialized --Connect--> queue --(authentication)--> ready
//! ```
//! The first queue of an association is its admin queue, which makes the controller; when its connection
//! ends, the controller ends, and with it the connections of its I/O queues.

use std::net::SocketAddr;
use std::sync::{Arc, RwLockReadGuard};

use spillway_wire::nvme::{Command, DataPointer, Direction, Status, admin};
use spillway_wire::nvme_tcp::{
    ADMIN_CAPSULE_DATA_BYTES, DIGEST_BYTES, Framing, HEADER_BYTES_MAX, InitRequest, InitResponse,
    Pdu, Terminate, decode,
};

use crate::admin::Admin;
use crate::authentication::Authentication;
use crate::blocks::BlockQueue;
use crate::controller::{Client, Controller, Subsystem, Waker};
use crate::error::Error;
use crate::output::Output;
use crate::pools::PoolQueue;
use crate::quota::Held;
use crate::reply::{PDU_DATA_BYTES_MAX, QueueState, Reply, write_pdu};
use crate::target::Target;
use crate::transfer::{Next, Transfers};

/// Longest PDU that a host may send.
pub const PDU_BYTES_MAX: usize = PDU_DATA_BYTES_MAX + HEADER_BYTES_MAX + DIGEST_BYTES;
/// The keep-alive time of the discovery subsystem where the host asks for none, as in Linux's target.
const DISCOVERY_KEEP_ALIVE_MS: u32 = 120_000;
/// How often a connection looks whether there is room for a command that waits for it.
const ROOM_POLL_MS: u64 = 2;

/// A connection of a host.
pub struct Connection {
    pub(crate) target: Arc<Target>,
    pub(crate) local: SocketAddr,
    /// What the host's certificate calls it, over TLS.
    pub(crate) name: Option<String>,
    pub(crate) waker: Waker,
    /// Until when its queue must be ready.
    handshake_until_ms: u64,
    framing: Option<Framing>,
    pub(crate) queue: Option<Queue>,
}

/// The queue that a connection carries.
pub(crate) struct Queue {
    pub(crate) controller: Arc<Controller>,
    pub(crate) number: u16,
    pub(crate) entries: u16,
    pub(crate) head: u16,
    pub(crate) flow_control: bool,
    /// What the host has to prove; none when it need not.
    pub(crate) authentication: Option<Authentication>,
    /// As whom it was let in: to be counted out at the end.
    pub(crate) admitted: Option<Client>,
    pub(crate) transfers: Transfers,
    pub(crate) role: Role,
}

/// What a queue is for.
pub(crate) enum Role {
    Admin(Admin),
    Blocks(BlockQueue),
    Pools(PoolQueue),
}

/// What a command is carried out with.
pub(crate) struct Context<'a> {
    pub(crate) target: &'a Target,
    pub(crate) controller: &'a Controller,
    pub(crate) now_ms: u64,
}

/// Where a command's data is.
enum Placement<'a> {
    Here(&'a [u8]),
    Transport,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = self.queue.as_ref().map(|queue| (&queue.controller, queue.number));
        f.debug_struct("Connection").field("queue", &queue).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(
        target: Arc<Target>,
        local: SocketAddr,
        name: Option<String>,
        now_ms: u64,
        waker: Waker,
    ) -> Self {
        let handshake_until_ms = now_ms + target.config.handshake_timeout_ms;
        Self { target, local, name, waker, handshake_until_ms, framing: None, queue: None }
    }

    /// Takes bytes from the host and carries out what they ask; how many bytes were taken. What is not
    /// taken comes again, with more behind it: either a PDU is not whole (the next call takes nothing
    /// either), or the output is full, or the connection has just got its queue.
    ///
    /// # Errors
    /// The connection is to be closed, once the output is sent.
    pub fn receive(&mut self, now_ms: u64, input: &[u8], out: &mut Output) -> Result<usize, Error> {
        let taken = self.receive_all(now_ms, input, out);
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
            let Some((pdu, bytes)) = decode(&input[taken..], self.framing(), PDU_BYTES_MAX)? else {
                break;
            };
            self.pdu(now_ms, pdu, out)?;
            taken += bytes;
            // From here on the controller may be ended by others.
            if controller.is_none() && self.queue.is_some() {
                break;
            }
        }
        Ok(taken)
    }

    /// Keeps the controller from ending meanwhile.
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

    /// Does what time or others demand. To be called when the waker was, and at [`Self::deadline_ms`].
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn poll(&mut self, now_ms: u64, out: &mut Output) -> Result<(), Error> {
        let controller = self.queue.as_ref().map(|queue| Arc::clone(&queue.controller));
        let _open = self.enter(controller.as_deref())?;
        if !self.is_ready() && now_ms >= self.handshake_until_ms {
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

    /// When [`Self::poll`] is to be called at the latest.
    pub fn deadline_ms(&self, now_ms: u64) -> Option<u64> {
        if !self.is_ready() {
            return Some(self.handshake_until_ms);
        }
        let queue = self.queue.as_ref()?;
        if queue.transfers.has_waiting() {
            return Some(now_ms + ROOM_POLL_MS);
        }
        match &queue.role {
            Role::Admin(admin) => admin.keep_alive_until_ms(),
            Role::Blocks(_) | Role::Pools(_) => None,
        }
    }

    /// Whether the host has a queue and has proven who it is.
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
                    return Err(Error::Protocol("more data in a capsule than there may be"));
                }
                self.command(now_ms, &command, data, out)
            }
            (Pdu::HostData(part, data), Some(framing)) => {
                let Some(queue) = &mut self.queue else {
                    return Err(Error::Protocol("data before Connect"));
                };
                match queue.transfers.receive(&part, data)? {
                    Next::Nothing => {}
                    Next::Grant(grant) => write_pdu(out, framing, &Pdu::ReadyToTransfer(grant)),
                    Next::Done(command, data, held) => {
                        self.execute(now_ms, &command, &data, out);
                        drop((data, held));
                        self.start_waiting(now_ms, out);
                    }
                }
                Ok(())
            }
            (Pdu::HostTerminate(terminate), _) => Err(Error::Terminated(terminate.status)),
            _ => Err(Error::Protocol("a PDU out of order")),
        }
    }

    fn initialize(&mut self, request: InitRequest, out: &mut Output) -> Result<(), Error> {
        if request.version != 0 || request.alignment > 31 {
            return Err(Error::Protocol("a format of PDUs that is not known"));
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
            let queue = QueueState { number: 0, head: None };
            let mut reply = Reply { out, framing, queue, command: command.id };
            self.connect(now_ms, command, capsule, &mut reply);
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
        let needs_room = match placement {
            Placement::Transport => true,
            Placement::Here(_) => {
                direction(command) == Some(Direction::In)
                    && bytes as usize > PDU_DATA_BYTES_MAX
                    && queue.number != 0
            }
        };
        match placement {
            Placement::Here(data) if !needs_room => self.execute(now_ms, command, data, out),
            _ => {
                let client = queue.controller.client().filter(|_| queue.is_authenticated());
                let allowed = client.map_or(0, |client| client.quota.bytes_max());
                if u64::from(bytes) > allowed.min(queue.transfer_bytes_max()) {
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

    /// Goes on with commands that waited for room.
    fn start_waiting(&mut self, now_ms: u64, out: &mut Output) {
        while !out.is_full() {
            let framing = self.framing();
            let Some(queue) = &mut self.queue else { return };
            if !queue.transfers.has_waiting() {
                return;
            }
            let Some(client) = queue.controller.client() else { return };
            let Some((command, held)) = queue.transfers.next_waiting(&client.quota) else { return };
            if direction(&command) == Some(Direction::Out) {
                let grant = queue.transfers.begin(command, held);
                write_pdu(out, framing, &Pdu::ReadyToTransfer(grant));
            } else {
                self.execute_held(now_ms, &command, out, held);
            }
        }
    }

    /// Carries out a command with a long answer.
    fn execute_held(&mut self, now_ms: u64, command: &Command, out: &mut Output, held: Held) {
        self.execute(now_ms, command, &[], out);
        out.keep(held);
    }

    /// Carries out a command whose data is all there.
    fn execute(&mut self, now_ms: u64, command: &Command, data: &[u8], out: &mut Output) {
        let framing = self.framing();
        let Some(queue) = &mut self.queue else { return };
        let mut reply = queue.reply(out, framing, command);
        if command.opcode == admin::FABRICS {
            self.fabrics(now_ms, command, data, &mut reply);
            return;
        }
        if !queue.is_authenticated() {
            reply.complete(Err(Status::AUTHENTICATION_REQUIRED.finally().into()));
            return;
        }
        let context = Context { target: &self.target, controller: &queue.controller, now_ms };
        match &mut queue.role {
            Role::Admin(admin) => admin.execute(&context, self.local, command, data, &mut reply),
            Role::Blocks(blocks) => blocks.execute(&context, command, data, &mut reply),
            Role::Pools(pools) => pools.execute(&context, command, data, &mut reply),
        }
    }
}

impl Queue {
    pub(crate) fn is_authenticated(&self) -> bool {
        self.authentication.as_ref().is_none_or(Authentication::is_done)
    }

    /// Most bytes of data of a command.
    fn transfer_bytes_max(&self) -> u64 {
        match self.controller.subsystem {
            Subsystem::Discovery => 0,
            subsystem => 4096 << subsystem.transfer_shift(),
        }
    }

    fn reply<'a>(&self, out: &'a mut Output, framing: Framing, command: &Command) -> Reply<'a> {
        let head = self.flow_control.then_some(self.head);
        let queue = QueueState { number: self.number, head };
        Reply { out, framing, queue, command: command.id }
    }
}

impl Subsystem {
    /// log2 of the pages of 4096 bytes that a command moves at most (MDTS).
    pub(crate) const fn transfer_shift(self) -> u8 {
        match self {
            Self::Pools => 12,
            Self::Blocks | Self::Discovery => 8,
        }
    }

    /// The keep-alive time that is granted, 0 for none. Anybody may ask the discovery subsystem, so there
    /// it has an end.
    pub(crate) const fn keep_alive_ms(self, asked_ms: u32) -> u32 {
        match (self, asked_ms) {
            (Self::Discovery, 0) => DISCOVERY_KEEP_ALIVE_MS,
            _ => asked_ms,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        queue.controller.remove_queue(queue.number);
        if queue.number == 0 {
            self.target.remove_controller(&queue.controller);
        }
        if let Some(client) = queue.admitted {
            self.target.access.leave(client.id);
        }
    }
}

/// The way of a command's data. Fabrics commands say it in their type.
fn direction(command: &Command) -> Option<Direction> {
    if command.opcode == admin::FABRICS {
        return Direction::of(command.namespace as u8);
    }
    Direction::of(command.opcode)
}

/// Where the data of a command is that a host sends.
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
