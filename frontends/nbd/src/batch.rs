//! Batches of requests that arrived together, for a device that sends its requests over a network.

use spillway_block::{Data, Request as BlockRequest};
use spillway_wire::nbd::{
    CHUNK_BYTES, Chunk, Command, Failure, REQUEST_BYTES, Request, SIMPLE_REPLY_BYTES, chunk,
    error_payload, simple_reply,
};

use crate::buffer::Output;

/// Most requests of one batch.
pub const BATCH_MAX: usize = 64;
/// Most bytes of a request in a batch. A longer request keeps the device busy by itself.
const BYTES_MAX: u32 = 64 << 10;
/// Bytes before the data of a read in a structured reply.
const DATA_HEADER_BYTES: usize = CHUNK_BYTES + 8;

/// A request of a batch.
#[derive(Clone, Copy, Debug)]
struct Member {
    request: Request,
    /// The offset of a write's data in the input.
    data_at: usize,
}

/// Complete requests from the front of the input, whose replies fit the output.
#[derive(Debug)]
pub struct Batch {
    members: [Option<Member>; BATCH_MAX],
    count: usize,
    /// Bytes of the input that the requests take.
    pub used: usize,
    reply_bytes: usize,
    structured: bool,
}

impl Batch {
    /// Gathers at most `most` requests whose replies take at most `room` bytes. Stops at a request that `fits` rejects.
    pub fn gather(
        input: &[u8],
        most: usize,
        room: usize,
        structured: bool,
        fits: impl Fn(&Request) -> bool,
    ) -> Self {
        let members = [None; BATCH_MAX];
        let mut batch = Self { members, count: 0, used: 0, reply_bytes: 0, structured };
        while batch.count < most.min(BATCH_MAX) {
            let rest = &input[batch.used..];
            let Some((header, data)) = rest.split_first_chunk::<REQUEST_BYTES>() else { break };
            let Ok(request) = Request::decode(header) else { break };
            let data_bytes = match request.command {
                Command::Read => 0,
                Command::Write => request.bytes as usize,
                _ => break,
            };
            let fits = (1..=BYTES_MAX).contains(&request.bytes) && fits(&request);
            let reply_bytes = batch.reply_bytes + batch.reply_bytes_of(&request);
            if !fits || data.len() < data_bytes || reply_bytes > room {
                break;
            }
            let data_at = batch.used + REQUEST_BYTES;
            batch.members[batch.count] = Some(Member { request, data_at });
            batch.count += 1;
            batch.used = data_at + data_bytes;
            batch.reply_bytes = reply_bytes;
        }
        batch
    }

    /// The commands of its requests.
    pub fn commands(&self) -> impl Iterator<Item = Command> {
        self.members().map(|member| member.request.command)
    }

    /// Number of requests.
    pub const fn len(&self) -> usize {
        self.count
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.members[..self.count].iter().flatten()
    }

    const fn header_bytes(&self) -> usize {
        if self.structured { DATA_HEADER_BYTES } else { SIMPLE_REPLY_BYTES }
    }

    fn reply_bytes_of(&self, request: &Request) -> usize {
        match request.command {
            Command::Read => self.header_bytes() + request.bytes as usize,
            _ => SIMPLE_REPLY_BYTES,
        }
    }

    /// Executes the requests by `carry_out`, and appends the replies.
    pub fn carry_out(
        &self,
        input: &[u8],
        output: &mut Output,
        carry_out: impl FnOnce(&mut [BlockRequest<'_>]),
    ) {
        let start = output.filled();
        let mut room = output.grow(self.reply_bytes);
        let mut members = self.members();
        let mut requests: [BlockRequest<'_>; BATCH_MAX] = core::array::from_fn(|_| {
            let Some(Member { request, data_at }) = members.next() else {
                return BlockRequest::new(0, Data::Write(&[]));
            };
            let (reply, rest) =
                core::mem::take(&mut room).split_at_mut(self.reply_bytes_of(request));
            room = rest;
            let data = match request.command {
                Command::Read => {
                    let (header, data) = reply.split_at_mut(self.header_bytes());
                    self.put_header(request, header);
                    Data::Read(data)
                }
                _ => {
                    reply.copy_from_slice(&simple_reply(request.cookie, None));
                    Data::Write(&input[*data_at..*data_at + request.bytes as usize])
                }
            };
            BlockRequest::new(request.offset, data)
        });
        carry_out(&mut requests[..self.count]);
        let failed: [bool; BATCH_MAX] = core::array::from_fn(|at| requests[at].failed.get());
        if failed.contains(&true) {
            self.tell_failures(output, start, &failed);
        }
    }

    fn put_header(&self, request: &Request, header: &mut [u8]) {
        if !self.structured {
            return header.copy_from_slice(&simple_reply(request.cookie, None));
        }
        let bytes = 8 + request.bytes;
        let chunk = Chunk { kind: chunk::OFFSET_DATA, done: true, cookie: request.cookie, bytes };
        let (first, offset) = header.split_at_mut(CHUNK_BYTES);
        first.copy_from_slice(&chunk.encode());
        offset.copy_from_slice(&request.offset.to_be_bytes());
    }

    /// Replaces the replies of failed requests by errors, and closes the gaps.
    fn tell_failures(&self, output: &mut Output, start: usize, failed: &[bool; BATCH_MAX]) {
        let (mut from, mut to) = (start, start);
        for (member, failed) in self.members().zip(failed) {
            let (cookie, bytes) = (member.request.cookie, self.reply_bytes_of(&member.request));
            if !failed {
                output.move_back(from, to, bytes);
                to += bytes;
            } else if self.structured && member.request.command == Command::Read {
                let payload = error_payload(Failure::Io);
                let bytes = payload.len() as u32;
                let chunk = Chunk { kind: chunk::ERROR, done: true, cookie, bytes };
                to = output.overwrite(to, &chunk.encode());
                to = output.overwrite(to, &payload);
            } else {
                to = output.overwrite(to, &simple_reply(cookie, Some(Failure::Io)));
            }
            from += bytes;
        }
        output.shrink_to(to);
    }
}
