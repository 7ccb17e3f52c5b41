//! Replies to commands: PDUs in the output.

use spillway_wire::nvme::{Completion, Status};
use spillway_wire::nvme_tcp::{Framing, HEADER_BYTES_MAX, Pdu, Transfer, finish_data};

use crate::outcome::{Failure, Outcome};
use crate::output::Output;

/// Most bytes of data of one PDU, in both directions.
pub(crate) const PDU_DATA_BYTES_MAX: usize = 128 << 10;

/// The fields of a completion that describe the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueState {
    pub(crate) number: u16,
    /// The head of the submission queue; `None` without flow control.
    pub(crate) head: Option<u16>,
}

/// Answers one command.
pub(crate) struct Reply<'a> {
    pub(crate) out: &'a mut Output,
    pub(crate) framing: Framing,
    pub(crate) queue: QueueState,
    pub(crate) command: u16,
}

impl Reply<'_> {
    /// Completes the command.
    pub(crate) fn complete(&mut self, outcome: Outcome) {
        let (result, status) = match outcome {
            Ok(result) => (result, Status::SUCCESS),
            Err(failure) => (failure.result, failure.status),
        };
        let completion = Completion {
            result,
            queue_head: self.queue.head.unwrap_or(0xffff),
            queue: self.queue.number,
            id: self.command,
            status,
            phase: false,
        };
        self.pdu(&Pdu::Response(completion));
    }

    /// Writes a PDU without data.
    pub(crate) fn pdu(&mut self, pdu: &Pdu<'_>) {
        write_pdu(self.out, self.framing, pdu);
    }

    /// Sends `data` and completes the command with `result`.
    pub(crate) fn data(&mut self, data: &[u8], result: u64) {
        let mut offset = 0;
        while offset < data.len() {
            let bytes = (data.len() - offset).min(PDU_DATA_BYTES_MAX);
            let last = offset + bytes == data.len();
            let part = &data[offset..offset + bytes];
            let filled: Result<_, Failure> = self.part(offset, bytes, |room| {
                room.copy_from_slice(part);
                Ok((bytes, result, last))
            });
            // Copying does not fail.
            debug_assert!(filled.is_ok());
            offset += bytes;
        }
        if data.is_empty() {
            self.complete(Ok(result));
        }
    }

    /// Sends up to `room_bytes` of data and completes the command. `fill` writes the data directly into the output, and
    /// gives its length and the result.
    pub(crate) fn fill(
        &mut self,
        room_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(usize, u64), Failure>,
    ) {
        debug_assert!(room_bytes <= PDU_DATA_BYTES_MAX);
        let filled = self.part(0, room_bytes, |room| {
            let (bytes, result) = fill(room)?;
            Ok((bytes, result, true))
        });
        if let Err(failure) = filled {
            self.complete(Err(failure));
        }
    }

    /// Sends one PDU with the data from `offset` on. `fill` writes the data, and gives its length, the result, and
    /// whether it is the last part, which completes the command.
    pub(crate) fn part(
        &mut self,
        offset: usize,
        room_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(usize, u64, bool), Failure>,
    ) -> Result<(), Failure> {
        let data_at = self.framing.data_bytes(room_bytes) - room_bytes - self.digest_bytes();
        let room = self.out.room(room_bytes + HEADER_BYTES_MAX + self.digest_bytes());
        let (bytes, result, last) = fill(&mut room[data_at..data_at + room_bytes])?;
        if bytes == 0 {
            self.complete(Ok(result));
            return Ok(());
        }
        // A PDU of data can report success, but neither a result nor the head that flow control needs.
        let success = last && result == 0 && self.queue.head.is_none();
        let transfer = Transfer {
            command: self.command,
            tag: 0,
            offset: offset as u32,
            bytes: bytes as u32,
            last,
            success,
        };
        let length = transfer
            .begin_controller_data(self.framing, room)
            .and_then(|start| finish_data(room, start..start + bytes, self.framing))
            .map_err(|_| Failure::from(Status::INTERNAL))?;
        self.out.filled(length);
        if last && !success {
            self.complete(Ok(result));
        }
        Ok(())
    }

    const fn digest_bytes(&self) -> usize {
        if self.framing.data_digest { 4 } else { 0 }
    }
}

/// Writes a PDU that carries no data.
pub(crate) fn write_pdu(out: &mut Output, framing: Framing, pdu: &Pdu<'_>) {
    let room = out.room(HEADER_BYTES_MAX);
    // The longest header and its digest fit.
    let bytes = pdu.encode(framing, room).unwrap_or(0);
    debug_assert_ne!(bytes, 0);
    out.filled(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_wire::nvme_tcp::decode;

    fn reply(out: &mut Output, framing: Framing, head: Option<u16>) -> Reply<'_> {
        Reply { out, framing, queue: QueueState { number: 1, head }, command: 7 }
    }

    /// All PDUs in the output: data, and completions.
    fn read(out: &Output, framing: Framing) -> (Vec<u8>, Vec<Completion>, bool) {
        let (mut data, mut completions, mut success) = (Vec::new(), Vec::new(), false);
        let mut rest = out.pending();
        while let Some((pdu, taken)) = decode(rest, framing, 1 << 20).unwrap() {
            match pdu {
                Pdu::ControllerData(transfer, part) => {
                    assert_eq!(transfer.offset as usize, data.len());
                    data.extend_from_slice(part);
                    success |= transfer.success;
                }
                Pdu::Response(completion) => completions.push(completion),
                other => panic!("{other:?}"),
            }
            rest = &rest[taken..];
        }
        (data, completions, success)
    }

    #[test]
    fn data_without_a_result_needs_no_completion_without_flow_control() {
        for framing in
            [Framing::default(), Framing { header_digest: true, data_digest: true, alignment: 3 }]
        {
            let mut out = Output::default();
            let fill = |room: &mut [u8]| {
                room[..100].fill(5);
                Ok((100, 0))
            };
            reply(&mut out, framing, None).fill(4096, fill);
            assert_eq!(read(&out, framing), (vec![5; 100], vec![], true));

            let mut out = Output::default();
            reply(&mut out, framing, Some(3)).fill(4096, fill);
            let (data, completions, success) = read(&out, framing);
            assert_eq!((data.len(), completions[0].queue_head, success), (100, 3, false));
        }
    }

    #[test]
    fn long_data_is_cut() {
        let data: Vec<u8> = (0..300_000u32).map(|byte| byte as u8).collect();
        let mut out = Output::default();
        reply(&mut out, Framing::default(), None).data(&data, 9);
        let (read, completions, _) = read(&out, Framing::default());
        assert_eq!(read, data);
        assert_eq!((completions.len(), completions[0].result), (1, 9));
    }

    #[test]
    fn a_failure_sends_no_data() {
        let mut out = Output::default();
        let failure = Failure { status: Status::VALUE_SIZE, result: 99 };
        reply(&mut out, Framing::default(), None).fill(64, |_| Err(failure));
        let (data, completions, _) = read(&out, Framing::default());
        assert!(data.is_empty());
        assert_eq!((completions[0].status, completions[0].result), (Status::VALUE_SIZE, 99));
    }
}
