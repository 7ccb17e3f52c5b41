//! The queue of a connection: its state, and what its waiting commands begin with.

use std::sync::Arc;
use std::time::Duration;

use spillway_serving::{CommandKind, Recorder};
use spillway_types::PAGE_BYTES;
use spillway_wire::kv::io;
use spillway_wire::nvme::{Command, Direction, Status, admin, block};
use spillway_wire::nvme_tcp::Framing;

use crate::admin::Admin;
use crate::authentication::Authentication;
use crate::blocks::BlockQueue;
use crate::context::Context;
use crate::controller::{Controller, ProvenClient};
use crate::outcome::Failure;
use crate::output::Output;
use crate::pools::PoolQueue;
use crate::quota::QuotaGuard;
use crate::reply::{PDU_DATA_BYTES_MAX, QueueState, Reply};
use crate::sink::{SHORT_BYTES_MAX, Sink};
use crate::source::{self, Outgoing, Source};
use crate::transfer::Transfers;

/// The queue of a connection.
pub(crate) struct Queue {
    pub(crate) controller: Arc<Controller>,
    pub(crate) number: u16,
    pub(crate) entries: u16,
    pub(crate) head: u16,
    pub(crate) flow_control: bool,
    /// The authentication of the host; none if the host need not authenticate.
    pub(crate) authentication: Option<Authentication>,
    /// The client as which the host was admitted on this queue. When the queue ends, the client leaves.
    pub(crate) admitted: Option<ProvenClient>,
    pub(crate) transfers: Transfers,
    pub(crate) role: Role,
}

/// What a queue is for.
pub(crate) enum Role {
    Admin(Admin),
    Blocks(BlockQueue),
    Pools(PoolQueue),
}

/// How a command begins that waited for room.
pub(crate) enum Begin {
    /// The host is to send its data.
    Receive(Sink),
    /// Its answer is sent in parts.
    Send(Source),
    /// It gets a value, whose answer may be sent in parts.
    Get,
    /// It is executed at once.
    Execute,
    /// It waits longer.
    Later,
}

impl Role {
    /// What a command of this queue does, for the metrics.
    pub(crate) const fn kind(&self, command: &Command) -> CommandKind {
        match (self, command.opcode) {
            (Self::Pools(_), io::RETRIEVE | io::TAKE) => CommandKind::Get,
            (Self::Pools(_), io::STORE) => CommandKind::Put,
            (Self::Pools(_), io::DELETE | io::FLUSH_OBJECT) => CommandKind::Remove,
            (Self::Blocks(_), block::READ) => CommandKind::Read,
            (Self::Blocks(_), block::WRITE) => CommandKind::Write,
            (Self::Blocks(_), block::WRITE_ZEROES | block::DATASET_MANAGEMENT) => {
                CommandKind::Discard
            }
            (Self::Blocks(_), block::FLUSH) => CommandKind::Flush,
            _ => CommandKind::Other,
        }
    }

    /// How a command begins that waited for room for its data or its long answer, now that there is room.
    pub(crate) fn begin(
        &mut self,
        context: &Context<'_>,
        command: &Command,
    ) -> Result<Begin, Failure> {
        let is_out = direction(command) == Some(Direction::Out);
        match self {
            Self::Pools(pools)
                if command.opcode == io::STORE && command.data.bytes as usize > PAGE_BYTES =>
            {
                let sink = pools.begin_store(context, command)?;
                return Ok(sink.map_or(Begin::Later, Begin::Receive));
            }
            Self::Pools(_) if matches!(command.opcode, io::RETRIEVE | io::TAKE) => {
                return Ok(Begin::Get);
            }
            Self::Blocks(blocks) if matches!(command.opcode, block::WRITE | block::COMPARE) => {
                return blocks.begin_write(context, command).map(Begin::Receive);
            }
            Self::Blocks(blocks) if command.opcode == block::READ => {
                return blocks.begin_read(context, command).map(Begin::Send);
            }
            _ if !is_out => return Ok(Begin::Execute),
            _ => {}
        }
        if command.data.bytes > SHORT_BYTES_MAX {
            return Err(Status::DATA_LENGTH.finally().into());
        }
        Ok(Begin::Receive(Sink::Short(Vec::with_capacity(command.data.bytes as usize))))
    }
}

impl Queue {
    /// Whether a command without data from the host has an answer that is longer than one PDU.
    pub(crate) fn is_long(&self, command: &Command) -> bool {
        direction(command) == Some(Direction::In)
            && command.data.bytes as usize > PDU_DATA_BYTES_MAX
            && self.number != 0
    }

    /// `worked` is how long it took to begin.
    pub(crate) fn begin_answer(
        &mut self,
        command: Command,
        source: Source,
        worked: Duration,
        held: QuotaGuard,
    ) {
        self.transfers.outgoing.push_back(Outgoing { command, source, sent: 0, worked, held });
    }

    /// Writes parts of long answers until the output is full.
    pub(crate) fn send_long(&mut self, framing: Framing, out: &mut Output, recorder: &Recorder) {
        if self.transfers.outgoing.is_empty() {
            return;
        }
        let mut outgoing = std::mem::take(&mut self.transfers.outgoing);
        let sent = |done: &Outgoing| self.record(recorder, &done.command, done.worked);
        source::send(&mut outgoing, out, |out, command| self.reply(out, framing, command), sent);
        self.transfers.outgoing = outgoing;
    }

    /// Records a command that ended, and how long it took.
    pub(crate) fn record(&self, recorder: &Recorder, command: &Command, took: Duration) {
        let kind = self.role.kind(command);
        recorder.record(kind, took);
        self.controller.traffic.count(kind, command.data.bytes);
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.authentication.as_ref().is_none_or(Authentication::is_done)
    }

    pub(crate) fn reply<'a>(
        &self,
        out: &'a mut Output,
        framing: Framing,
        command: &Command,
    ) -> Reply<'a> {
        Reply { out, framing, queue: self.state(), command: command.id }
    }

    pub(crate) fn state(&self) -> QueueState {
        QueueState { number: self.number, head: self.flow_control.then_some(self.head) }
    }
}

/// The direction of a command's data. The opcode says it, and for fabrics commands the command type.
pub(crate) fn direction(command: &Command) -> Option<Direction> {
    if command.opcode == admin::FABRICS {
        return Direction::of(command.namespace as u8);
    }
    Direction::of(command.opcode)
}
