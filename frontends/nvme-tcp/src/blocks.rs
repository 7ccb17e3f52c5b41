//! I/O queues of block namespaces.

use std::collections::HashMap;
use std::sync::Arc;

use spillway_block::Device;
use spillway_wire::nvme::{ALL_NAMESPACES, Command, DatasetManagementDwords, Range, Status, block};

use crate::context::Context;
use crate::namespaces;
use crate::outcome::{Failure, Outcome, device_failure};
use crate::reply::{PDU_DATA_BYTES_MAX, Reply};
use crate::sink::Sink;
use crate::source::Source;

/// An I/O queue of a client's block devices.
#[derive(Debug, Default)]
pub(crate) struct BlockQueue {
    /// The devices that commands have used, by namespace id.
    devices: HashMap<u32, Arc<dyn Device>>,
}

/// A range of a device, in bytes.
struct Span {
    offset: u64,
    bytes: u64,
}

impl BlockQueue {
    pub(crate) fn execute(
        &mut self,
        context: &Context<'_>,
        command: &Command,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) {
        let outcome = match command.opcode {
            block::FLUSH => self.flush(context, command.namespace),
            block::READ | block::WRITE | block::COMPARE | block::WRITE_ZEROES => {
                match self.transfer(context, command, data, reply) {
                    Some(outcome) => outcome,
                    None => return,
                }
            }
            block::DATASET_MANAGEMENT => self.dataset(context, command, data),
            _ => Err(Status::INVALID_OPCODE.finally().into()),
        };
        if outcome.as_ref().is_err_and(|failure| failure.status.code() == Status::INVALID_NAMESPACE)
        {
            self.devices.remove(&command.namespace);
        }
        reply.complete(outcome);
    }

    /// The device of a namespace id.
    fn device(&mut self, context: &Context<'_>, number: u32) -> Result<&dyn Device, Failure> {
        use std::collections::hash_map::Entry;
        match self.devices.entry(number) {
            Entry::Occupied(entry) => Ok(&**entry.into_mut()),
            Entry::Vacant(entry) => {
                let client = context.controller.client();
                let device =
                    client.and_then(|client| namespaces::device(context.target, client.id, number));
                let device = device.ok_or(Status::INVALID_NAMESPACE.finally())?;
                Ok(&**entry.insert(device))
            }
        }
    }

    fn flush(&mut self, context: &Context<'_>, number: u32) -> Outcome {
        // Linux flushes one namespace at a time. A host may also flush all: completed writes need no flush, so this has
        // nothing to do.
        if number == ALL_NAMESPACES {
            return Ok(0);
        }
        self.device(context, number)?.flush().map_err(device_failure)?;
        Ok(0)
    }

    /// The device and the range of a command that moves data.
    fn place(
        &mut self,
        context: &Context<'_>,
        command: &Command,
    ) -> Result<(Arc<dyn Device>, Span), Failure> {
        self.device(context, command.namespace)?;
        let device = Arc::clone(&self.devices[&command.namespace]);
        let span = span(&*device, command.first_block(), command.blocks().into())?;
        if u64::from(command.data.bytes) != span.bytes {
            return Err(Status::DATA_LENGTH.finally().into());
        }
        Ok((device, span))
    }

    /// Where the data of a write or compare goes if it follows the command.
    pub(crate) fn begin_write(
        &mut self,
        context: &Context<'_>,
        command: &Command,
    ) -> Result<Sink, Failure> {
        let (device, Span { offset, .. }) = self.place(context, command)?;
        Ok(match command.opcode {
            block::WRITE => Sink::Write { device, offset },
            _ => Sink::Compare { device, offset },
        })
    }

    /// Where the data of a read comes from if it is longer than one PDU.
    pub(crate) fn begin_read(
        &mut self,
        context: &Context<'_>,
        command: &Command,
    ) -> Result<Source, Failure> {
        let (device, Span { offset, bytes }) = self.place(context, command)?;
        Ok(Source::Blocks { device, offset, bytes })
    }

    /// Executes a command on a range of blocks. `None` if the answer is already written.
    fn transfer(
        &mut self,
        context: &Context<'_>,
        command: &Command,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) -> Option<Outcome> {
        let device = match self.device(context, command.namespace) {
            Ok(device) => device,
            Err(failure) => return Some(Err(failure)),
        };
        let span = match span(device, command.first_block(), command.blocks().into()) {
            Ok(span) => span,
            Err(failure) => return Some(Err(failure)),
        };
        if command.opcode == block::WRITE_ZEROES {
            let done = device.write_zeroes(span.offset, span.bytes).map(|()| 0);
            return Some(done.map_err(device_failure));
        }
        if u64::from(command.data.bytes) != span.bytes {
            return Some(Err(Status::DATA_LENGTH.finally().into()));
        }
        match command.opcode {
            block::WRITE => {
                Some(device.write(span.offset, data).map(|()| 0).map_err(device_failure))
            }
            block::COMPARE => Some(match device.compare(span.offset, data) {
                Ok(true) => Ok(0),
                Ok(false) => Err(Status::COMPARE_FAILURE.finally().into()),
                Err(error) => Err(device_failure(error)),
            }),
            _ => read(device, &span, reply).err().map(Err),
        }
    }

    fn dataset(&mut self, context: &Context<'_>, command: &Command, data: &[u8]) -> Outcome {
        let dwords = DatasetManagementDwords::of(command);
        let count = usize::from(dwords.number_of_ranges) + 1;
        let device = self.device(context, command.namespace)?;
        let ranges = data.get(..count * Range::BYTES).ok_or(Status::DATA_LENGTH.finally())?;
        // The other attributes are access hints, which make no difference to memory.
        if dwords.attributes.get() & Range::DEALLOCATE == 0 {
            return Ok(0);
        }
        let (ranges, _) = ranges.as_chunks();
        for range in ranges.iter().map(Range::decode) {
            let span = span(device, range.first_block, range.blocks.into())?;
            device.deallocate(span.offset, span.bytes).map_err(device_failure)?;
        }
        Ok(0)
    }
}

/// Reads a range, one PDU at a time.
fn read(device: &dyn Device, span: &Span, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let mut at = 0;
    while at < span.bytes {
        let bytes = (span.bytes - at).min(PDU_DATA_BYTES_MAX as u64) as usize;
        let last = at + bytes as u64 == span.bytes;
        reply.part(at as usize, bytes, |room| {
            device.read(span.offset + at, room).map_err(device_failure)?;
            Ok((bytes, 0, last))
        })?;
        at += bytes as u64;
    }
    Ok(())
}

/// The bytes of a device that a range of blocks occupies.
fn span(device: &dyn Device, first_block: u64, blocks: u64) -> Result<Span, Failure> {
    let geometry = device.geometry();
    let block_bytes = u64::from(geometry.block_size.bytes());
    let end = first_block.checked_add(blocks).filter(|&end| end <= geometry.bytes / block_bytes);
    if end.is_none() {
        return Err(Status::OUT_OF_RANGE.finally().into());
    }
    Ok(Span { offset: first_block * block_bytes, bytes: blocks * block_bytes })
}
