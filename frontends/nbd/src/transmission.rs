//! The transmission phase, without I/O on sockets: decodes requests, executes them on the device, encodes replies.

use std::time::{Duration, Instant};

use spillway_block::{Device, Extent};
use spillway_serving::{CommandKind, Recorder};
use spillway_types::PAGE_BYTES;
use spillway_wire::nbd::{
    CHUNK_BYTES, Chunk, Command, Failure, REQUEST_BYTES, Request, SIMPLE_REPLY_BYTES, chunk,
    error_payload, extent_flags, request_flags, simple_reply,
};

use crate::batch::Batch;
use crate::buffer::Output;
use crate::error::Error;
use crate::session::{ALLOCATION_ID, Session};

/// Most bytes that one request may read or write.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Most extents in one reply.
const EXTENTS_MAX: usize = 64;
/// Bytes of the longest reply without data.
const REPLY_BYTES: usize = CHUNK_BYTES + 4 + 8 * EXTENTS_MAX;
/// Bytes before the data of a read in a structured reply's chunk.
const DATA_HEADER_BYTES: usize = CHUNK_BYTES + 8;

/// The reason why [`Transmission::advance`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The next request is incomplete.
    NeedInput,
    /// The output must be sent first.
    NeedRoom,
    /// The peer has requested the end. Send the output and close.
    End,
}

/// The request in progress.
#[derive(Clone, Copy, Debug)]
enum TransmissionState {
    /// None; a request comes next.
    Idle,
    /// A write whose data is being received.
    Taking { cookie: u64, offset: u64, left: u32, failure: Option<Failure>, worked: Duration },
    /// A read whose data is being sent.
    Sending { cookie: u64, offset: u64, left: u32, begun: bool, worked: Duration },
    /// None; the peer has requested the end.
    Ended,
}

/// A connection to an export.
#[derive(Debug)]
pub struct Transmission {
    session: Session,
    state: TransmissionState,
    recorder: Option<Recorder>,
}

impl Transmission {
    /// A transmission after the handshake.
    pub const fn new(session: Session) -> Self {
        Self { session, state: TransmissionState::Idle, recorder: None }
    }

    /// The same, with the latencies of its requests recorded.
    pub fn recorded(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Records that requests of these commands took so long.
    fn record(&self, command: Command, worked: Duration) {
        let kind = match command {
            Command::Read => CommandKind::Read,
            Command::Write => CommandKind::Write,
            Command::Trim | Command::WriteZeroes => CommandKind::Discard,
            Command::Flush => CommandKind::Flush,
            _ => CommandKind::Other,
        };
        if let Some(recorder) = &self.recorder {
            recorder.record(kind, worked);
        }
    }

    /// Executes the requests in `input`, as far as `output` has room for the replies. Returns the number of consumed
    /// bytes, and what it needs to continue. The capacity of `output` must be at least 64 KiB and a page.
    ///
    /// # Errors
    /// The peer violated the protocol, or the device failed in the middle of a reply. Close the connection.
    pub fn advance(
        &mut self,
        input: &[u8],
        output: &mut Output,
    ) -> Result<(usize, Progress), Error> {
        let mut rest = input;
        let progress = loop {
            let stop = match self.state {
                TransmissionState::Idle if self.batch(&mut rest, output) => None,
                TransmissionState::Idle => self.start(&mut rest, output)?,
                TransmissionState::Taking { .. } => self.take(&mut rest, output),
                TransmissionState::Sending { .. } => self.send(output)?,
                TransmissionState::Ended => Some(Progress::End),
            };
            if let Some(progress) = stop {
                break progress;
            }
        };
        Ok((input.len() - rest.len(), progress))
    }

    fn device(&self) -> &dyn Device {
        &*self.session.device
    }

    /// Executes requests that arrived together as a batch, if there are at least two and the device supports batches.
    /// Returns whether it did.
    fn batch(&self, rest: &mut &[u8], output: &mut Output) -> bool {
        let most = self.device().batch_max();
        if most < 2 {
            return false;
        }
        let read_flags = if self.session.structured { request_flags::DF } else { 0 };
        let batch = Batch::gather(rest, most, output.room(), self.session.structured, |request| {
            let flags = if request.command == Command::Read { read_flags } else { 0 };
            self.objection(request, flags).is_none()
        });
        if batch.len() < 2 {
            return false;
        }
        let began = Instant::now();
        batch.carry_out(rest, output, |requests| self.device().batch(requests));
        let worked = began.elapsed();
        batch.commands().for_each(|command| self.record(command, worked));
        *rest = &rest[batch.used..];
        true
    }

    /// Starts the next request.
    fn start(&mut self, rest: &mut &[u8], output: &mut Output) -> Result<Option<Progress>, Error> {
        let Some((header, after)) = rest.split_first_chunk::<REQUEST_BYTES>() else {
            return Ok(Some(Progress::NeedInput));
        };
        if output.room() < REPLY_BYTES {
            return Ok(Some(Progress::NeedRoom));
        }
        *rest = after;
        let began = Instant::now();
        let request = Request::decode(header)?;
        let Request { cookie, offset, bytes, .. } = request;
        let answer = match request.command {
            Command::Disconnect => {
                self.state = TransmissionState::Ended;
                return Ok(None);
            }
            Command::Write => {
                if bytes > REQUEST_BYTES_MAX {
                    return Err(Error::Refused("a write is longer than 32 MiB"));
                }
                let failure = self.objection(&request, 0);
                let worked = began.elapsed();
                self.state =
                    TransmissionState::Taking { cookie, offset, left: bytes, failure, worked };
                return Ok(None);
            }
            Command::Read => match self.read_objection(&request, output) {
                None if bytes > 0 => {
                    let (left, begun, worked) = (bytes, false, began.elapsed());
                    self.state = TransmissionState::Sending { cookie, offset, left, begun, worked };
                    return Ok(None);
                }
                objection => objection,
            },
            Command::BlockStatus => {
                let progress = self.tell_status(&request, output);
                self.record(request.command, began.elapsed());
                return Ok(progress);
            }
            Command::Flush => self.check(&request, 0, |_| self.device().flush()),
            Command::Trim => {
                self.check(&request, 0, |device| device.deallocate(offset, u64::from(bytes)))
            }
            Command::WriteZeroes => {
                let flags = request_flags::NO_HOLE | request_flags::FAST_ZERO;
                self.check(&request, flags, |device| device.write_zeroes(offset, u64::from(bytes)))
            }
            // There is nothing to cache: all data is available already.
            Command::Cache => self.check(&request, 0, |_| Ok(())),
            Command::Other(_) => Some(Failure::Invalid),
        };
        self.push_answer(output, cookie, request.command == Command::Read, answer);
        self.record(request.command, began.elapsed());
        Ok(None)
    }

    /// The error of a request with an invalid range or other flags than `flags` and FUA. FUA is always allowed, because
    /// a write lasts as long as the store from the moment of its reply.
    fn objection(&self, request: &Request, flags: u16) -> Option<Failure> {
        if request.flags & !(flags | request_flags::FUA) != 0 {
            return Some(Failure::Invalid);
        }
        if request.command == Command::Flush {
            return None;
        }
        let end = request.offset.checked_add(u64::from(request.bytes));
        let inside = end.is_some_and(|end| end <= self.device().bytes());
        let writes = matches!(request.command, Command::Write | Command::WriteZeroes);
        let failure = if writes { Failure::NoSpace } else { Failure::Invalid };
        (!inside).then_some(failure)
    }

    /// Executes a request without data, if it is valid. Returns the error, if any.
    fn check(
        &self,
        request: &Request,
        flags: u16,
        act: impl FnOnce(&dyn Device) -> Result<(), spillway_block::Error>,
    ) -> Option<Failure> {
        self.objection(request, flags).or_else(|| act(self.device()).err().map(failure_of))
    }

    fn read_objection(&self, request: &Request, output: &Output) -> Option<Failure> {
        let flags = if self.session.structured { request_flags::DF } else { 0 };
        let in_one = request.flags & request_flags::DF != 0;
        if request.bytes > REQUEST_BYTES_MAX {
            return Some(Failure::Invalid);
        }
        self.objection(request, flags).or_else(|| {
            let fits = request.bytes as usize <= piece_bytes_max(output);
            (in_one && !fits).then_some(Failure::Overflow)
        })
    }

    /// Answers a request whose reply has no data.
    fn push_answer(&self, output: &mut Output, cookie: u64, read: bool, failure: Option<Failure>) {
        // Once structured replies are agreed on, every reply to a read must be structured.
        if !(self.session.structured && read) {
            return output.push(&simple_reply(cookie, failure));
        }
        match failure {
            None => {
                let chunk = Chunk { kind: chunk::NONE, done: true, cookie, bytes: 0 };
                output.push(&chunk.encode());
            }
            Some(failure) => push_error(output, cookie, failure),
        }
    }

    /// Writes received data, in whole pages as far as possible. A partial page in the middle waits for the rest of its
    /// data.
    fn take(&mut self, rest: &mut &[u8], output: &mut Output) -> Option<Progress> {
        let TransmissionState::Taking { cookie, mut offset, mut left, mut failure, mut worked } =
            self.state
        else {
            return None;
        };
        let began = Instant::now();
        let there = rest.len().min(left as usize);
        let piece = if there == left as usize { there } else { cut_at_page(offset, there) };
        let (data, after) = rest.split_at(piece);
        if piece > 0 && failure.is_none() {
            failure = self.device().write(offset, data).err().map(failure_of);
        }
        *rest = after;
        offset = offset.wrapping_add(piece as u64);
        left -= piece as u32;
        worked += began.elapsed();
        if left > 0 {
            self.state = TransmissionState::Taking { cookie, offset, left, failure, worked };
            return Some(Progress::NeedInput);
        }
        // There was room for the reply when the write began, and no other reply was appended since.
        self.push_answer(output, cookie, false, failure);
        self.record(Command::Write, worked);
        self.state = TransmissionState::Idle;
        None
    }

    /// Appends the next piece of a read. A reply that fits the buffer is complete before any of it is sent, so an error
    /// can still replace it.
    fn send(&mut self, output: &mut Output) -> Result<Option<Progress>, Error> {
        let TransmissionState::Sending { cookie, mut offset, mut left, mut begun, mut worked } =
            self.state
        else {
            return Ok(None);
        };
        let most = piece_bytes_max(output);
        let whole = left as usize <= most;
        let piece = if whole { left as usize } else { cut_at_page(offset, most) };
        if output.room() < DATA_HEADER_BYTES + piece {
            return Ok(Some(Progress::NeedRoom));
        }
        let began = Instant::now();
        let before = output.filled();
        if self.session.structured {
            let bytes = 8 + piece as u32;
            let chunk = Chunk { kind: chunk::OFFSET_DATA, done: whole, cookie, bytes };
            output.push(&chunk.encode());
            output.push(&offset.to_be_bytes());
        } else if !begun {
            output.push(&simple_reply(cookie, None));
        }
        if let Err(error) = self.device().read(offset, output.grow(piece)) {
            if !self.session.structured && begun {
                // The peer has already received the header of a successful reply.
                return Err(error.into());
            }
            output.shrink_to(before);
            self.push_answer(output, cookie, true, Some(failure_of(error)));
            self.record(Command::Read, worked + began.elapsed());
            self.state = TransmissionState::Idle;
            return Ok(None);
        }
        offset += piece as u64;
        left -= piece as u32;
        begun = true;
        worked += began.elapsed();
        self.state = match left {
            0 => {
                self.record(Command::Read, worked);
                TransmissionState::Idle
            }
            left => TransmissionState::Sending { cookie, offset, left, begun, worked },
        };
        Ok(None)
    }

    /// Answers a request for block status: which parts of a range are stored.
    fn tell_status(&self, request: &Request, output: &mut Output) -> Option<Progress> {
        let one = request.flags & request_flags::REQ_ONE != 0;
        let mut extents = [Extent::default(); EXTENTS_MAX];
        let room = &mut extents[..if one { 1 } else { EXTENTS_MAX }];
        let failure = self.objection(request, request_flags::REQ_ONE).or_else(|| {
            let possible = self.session.allocation && request.bytes > 0;
            (!possible).then_some(Failure::Invalid)
        });
        let told = match failure {
            Some(failure) => Err(failure),
            None => self
                .device()
                .status(request.offset, u64::from(request.bytes), room)
                .map_err(failure_of),
        };
        match told {
            Ok(filled) => push_extents(output, request.cookie, &extents[..filled]),
            Err(failure) if self.session.structured => push_error(output, request.cookie, failure),
            Err(failure) => output.push(&simple_reply(request.cookie, Some(failure))),
        }
        None
    }
}

/// Most bytes of data in one piece: the whole pages that fit an empty buffer.
fn piece_bytes_max(output: &Output) -> usize {
    (output.capacity() - DATA_HEADER_BYTES.max(SIMPLE_REPLY_BYTES)) / PAGE_BYTES * PAGE_BYTES
}

/// Shortens a piece that begins at `offset` so that it ends at a page boundary; to 0 if it ends within its first page.
fn cut_at_page(offset: u64, bytes: usize) -> usize {
    let over = offset.wrapping_add(bytes as u64) % PAGE_BYTES as u64;
    bytes.saturating_sub(over as usize)
}

fn push_error(output: &mut Output, cookie: u64, failure: Failure) {
    let payload = error_payload(failure);
    let chunk = Chunk { kind: chunk::ERROR, done: true, cookie, bytes: payload.len() as u32 };
    output.push(&chunk.encode());
    output.push(&payload);
}

fn push_extents(output: &mut Output, cookie: u64, extents: &[Extent]) {
    let bytes = 4 + 8 * extents.len() as u32;
    output.push(&Chunk { kind: chunk::BLOCK_STATUS, done: true, cookie, bytes }.encode());
    output.push(&ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        let flags = if extent.stored { 0 } else { extent_flags::HOLE | extent_flags::ZERO };
        // Extents lie within the request, whose length has 32 bits.
        output.push(&(extent.bytes as u32).to_be_bytes());
        output.push(&flags.to_be_bytes());
    }
}

/// The error for the peer. Logs the details.
fn failure_of(error: spillway_block::Error) -> Failure {
    tracing::debug!(%error, "a request to a block device failed");
    Failure::Io
}
