//! Long answers. They are sent in parts, at the speed at which the host receives them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::Device;
use spillway_store::LongGet;
use spillway_wire::nvme::Command;

use crate::outcome::{Failure, device_failure};
use crate::output::Output;
use crate::quota::QuotaGuard;
use crate::reply::{PDU_DATA_BYTES_MAX, Reply};

/// Where the data of a long answer comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// From the frames of the store, the first `bytes` of the value.
    Value { get: LongGet, bytes: u64 },
    /// From a block device, from its byte `offset` on.
    Blocks { device: Arc<dyn Device>, offset: u64, bytes: u64 },
}

/// A command whose answer is being sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) command: Command,
    pub(crate) source: Source,
    pub(crate) sent: u64,
    /// How long it took to begin, and its parts.
    pub(crate) worked: Duration,
    pub(crate) held: QuotaGuard,
}

impl Source {
    fn bytes(&self) -> u64 {
        match self {
            Self::Value { bytes, .. } | Self::Blocks { bytes, .. } => *bytes,
        }
    }

    /// The result in the completion: the length of a value.
    fn result(&self) -> u64 {
        match self {
            Self::Value { get, .. } => get.length() as u64,
            Self::Blocks { .. } => 0,
        }
    }

    fn read(&mut self, at: u64, room: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::Value { get, .. } => {
                let given = get.pull(room);
                debug_assert_eq!(given, room.len());
                Ok(())
            }
            Self::Blocks { device, offset, .. } => {
                device.read(*offset + at, room).map_err(device_failure)
            }
        }
    }
}

impl Outgoing {
    /// Writes the next part. True if the answer ends with it.
    fn part(&mut self, reply: &mut Reply<'_>) -> bool {
        let began = Instant::now();
        let (at, left) = (self.sent, self.source.bytes() - self.sent);
        let bytes = left.min(PDU_DATA_BYTES_MAX as u64);
        let (last, result) = (bytes == left, self.source.result());
        let written = reply.part(at as usize, bytes as usize, |room| {
            self.source.read(at, room)?;
            Ok((room.len(), result, last))
        });
        self.sent += bytes;
        self.worked += began.elapsed();
        if let Err(failure) = written {
            reply.complete(Err(failure));
            return true;
        }
        last
    }
}

/// Writes parts of the answers, in order, until the output is full. `reply` makes the reply to a command, and
/// `done` is called for each answer that ends.
pub(crate) fn send<'a>(
    outgoing: &mut VecDeque<Outgoing>,
    out: &'a mut Output,
    reply: impl for<'b> Fn(&'b mut Output, &Command) -> Reply<'b>,
    done: impl Fn(&Outgoing),
) {
    while !out.is_full()
        && let Some(first) = outgoing.front_mut()
    {
        let command = first.command;
        if first.part(&mut reply(out, &command))
            && let Some(ended) = outgoing.pop_front()
        {
            done(&ended);
            out.keep(ended.held);
        }
    }
}
