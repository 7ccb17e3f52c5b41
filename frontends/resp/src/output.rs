//! The queue of replies to a client: bytes, and values that stay in the store until they are sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use spillway_store::LongGet;
use spillway_wire::resp::{Encoder, Version};

/// With this many bytes of replies of one turn no further command is executed.
const FULL_BYTES: usize = 256 << 10;
/// Most parts that one call sends.
const PARTS_MAX: usize = 256;
/// The largest capacity of a buffer that a worker keeps, bytes. A buffer that is just full is smaller: buffers grow by
/// doubling.
const KEPT_BYTES: usize = 2 * FULL_BYTES;

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Value(LongGet),
}

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub struct Output {
    /// The pieces that are sent first.
    pieces: VecDeque<Piece>,
    /// The bytes behind the pieces. Replies are appended here.
    tail: Vec<u8>,
    /// Bytes of the first piece that were sent; without pieces, bytes of the tail.
    sent: usize,
    /// Bytes of all pieces that are not sent yet.
    waiting: u64,
    /// Bytes that may wait beside those of a turn.
    ahead: usize,
    /// The version of the protocol.
    pub version: Version,
}

impl Output {
    /// Writes a reply.
    pub const fn reply(&mut self) -> Encoder<'_> {
        Encoder::new(&mut self.tail, self.version)
    }

    /// The buffer of replies, for values that are copied into it.
    pub const fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a value in the store to the replies.
    pub fn push(&mut self, value: LongGet) {
        if !self.tail.is_empty() {
            self.waiting += self.tail_left() as u64;
            let bytes = std::mem::take(&mut self.tail);
            self.pieces.push_back(Piece::Bytes(bytes));
        }
        self.waiting += value.left() as u64;
        self.pieces.push_back(Piece::Value(value));
    }

    /// Bytes of the tail that are not sent yet.
    fn tail_left(&self) -> usize {
        if self.pieces.is_empty() { self.tail.len() - self.sent } else { self.tail.len() }
    }

    /// Whether no reply waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail_left() == 0
    }

    /// Bytes of replies that the client has not read.
    pub fn waiting(&self) -> usize {
        self.waiting as usize + self.tail_left()
    }

    /// Makes room for the replies of a turn beside those that wait, up to `most` bytes in all.
    pub fn make_room(&mut self, most: usize) {
        self.ahead = self.waiting().min(most.saturating_sub(FULL_BYTES));
    }

    /// Whether so many bytes wait that they must be sent first.
    pub fn is_full(&self) -> bool {
        self.waiting() >= FULL_BYTES + self.ahead
    }

    /// The position of the next reply, for [`Self::forget_from`].
    pub fn mark(&self) -> (usize, usize) {
        (self.pieces.len(), self.tail.len())
    }

    /// Removes replies behind a mark, for a client that wants no replies.
    pub fn forget_from(&mut self, (pieces, tail): (usize, usize)) {
        if self.pieces.len() == pieces {
            self.tail.truncate(tail);
            return;
        }
        // The first of the new pieces begins with the tail as it was at the mark.
        let mut new = self.pieces.split_off(pieces);
        self.tail.clear();
        if tail > 0
            && let Some(Piece::Bytes(mut bytes)) = new.pop_front()
        {
            bytes.truncate(tail);
            self.tail = bytes;
        }
        let left: u64 = self.pieces.iter().map(|piece| piece.left() as u64).sum();
        self.waiting = if self.pieces.is_empty() { 0 } else { left - self.sent as u64 };
    }

    /// Calls `send` with the waiting bytes until it takes no more. True if all are sent.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send(
        &mut self,
        mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        while !self.is_empty() {
            let sent = if self.pieces.is_empty() {
                send(&[IoSlice::new(&self.tail[self.sent..])])
            } else {
                send(&self.parts())
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.drop_sent();
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
            }
        }
        self.tail.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Frees the sent bytes of the tail, to which a client that reads slowly may add replies without end. Moves no byte
    /// more often than it is sent.
    fn drop_sent(&mut self) {
        if self.pieces.is_empty() && self.sent >= self.tail.len() - self.sent {
            self.tail.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Takes a worker's buffer for a turn, unless replies wait in an own one.
    pub fn lend(&mut self, spare: &mut Vec<u8>) {
        if self.tail.capacity() == 0 {
            std::mem::swap(&mut self.tail, spare);
        }
    }

    /// Gives the worker's buffer back if all replies are sent. Between turns a connection has memory only for replies
    /// that wait.
    pub fn give_back(&mut self, spare: &mut Vec<u8>) {
        if !self.is_empty() {
            return;
        }
        let own = std::mem::take(&mut self.tail);
        if (spare.capacity()..=KEPT_BYTES).contains(&own.capacity()) {
            *spare = own;
        }
    }

    fn parts(&self) -> Vec<IoSlice<'_>> {
        let mut parts = Vec::with_capacity(PARTS_MAX);
        for (number, piece) in self.pieces.iter().enumerate() {
            let skipped = if number == 0 { self.sent } else { 0 };
            match piece {
                Piece::Bytes(bytes) => parts.push(IoSlice::new(&bytes[skipped..])),
                Piece::Value(value) => parts.extend(
                    value.parts().take(PARTS_MAX - parts.len().min(PARTS_MAX)).map(IoSlice::new),
                ),
            }
            if parts.len() >= PARTS_MAX {
                return parts;
            }
        }
        parts.push(IoSlice::new(&self.tail));
        parts
    }

    fn advance(&mut self, sent: usize) {
        let mut sent = sent;
        while sent > 0 {
            let Some(piece) = self.pieces.front_mut() else {
                self.sent += sent;
                return;
            };
            let left = match piece {
                Piece::Bytes(bytes) => bytes.len() - self.sent,
                Piece::Value(value) => value.left(),
            };
            let now = left.min(sent);
            sent -= now;
            self.waiting -= now as u64;
            match piece {
                _ if now == left => {
                    self.pieces.pop_front();
                    self.sent = 0;
                }
                Piece::Bytes(_) => self.sent += now,
                Piece::Value(value) => value.advance(now),
            }
        }
    }
}

impl Piece {
    /// Bytes of the piece, including those that [`Output::sent`] counts.
    fn left(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Value(value) => value.left(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_client_that_reads_slowly_keeps_no_buffer_of_what_it_has_read() {
        let mut output = Output::default();
        let (mut wanted, mut read) = (Vec::new(), Vec::new());
        for round in 0..1000_u32 {
            let reply = [round as u8; 1000];
            output.bytes().extend_from_slice(&reply);
            wanted.extend_from_slice(&reply);
            let mut room = if round < 100 { 0 } else { 1000 };
            let all = output.send(|parts| {
                let now = parts[0].len().min(std::mem::take(&mut room));
                read.extend_from_slice(&parts[0][..now]);
                if now == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(now) }
            });
            assert!(!all.unwrap());
            assert_eq!(output.waiting(), wanted.len() - read.len());
        }
        assert!(output.bytes().capacity() < 512 << 10, "{} bytes", output.bytes().capacity());
        assert!(output.send(|parts| Ok(read.write(&parts[0]).unwrap())).unwrap());
        assert!(read == wanted);
    }

    #[test]
    fn room_beside_replies_that_wait_is_made_only_up_to_a_bound() {
        let mut output = Output::default();
        let fill = |output: &mut Output, bytes| output.bytes().resize(bytes, 0);
        fill(&mut output, FULL_BYTES - 1);
        assert!(!output.is_full());
        fill(&mut output, FULL_BYTES);
        assert!(output.is_full());
        output.make_room(2 * FULL_BYTES + 1);
        assert!(!output.is_full());
        fill(&mut output, 2 * FULL_BYTES);
        assert!(output.is_full());
        output.make_room(2 * FULL_BYTES + 1);
        assert!(!output.is_full());
        fill(&mut output, 2 * FULL_BYTES + 1);
        output.make_room(2 * FULL_BYTES + 1);
        assert!(output.is_full());
        output.make_room(0);
        assert!(output.is_full());
    }

    #[test]
    fn a_buffer_goes_from_turn_to_turn_and_stays_where_replies_wait() {
        let (mut output, mut spare) = (Output::default(), Vec::with_capacity(1000));
        let room = spare.capacity();
        output.lend(&mut spare);
        assert_eq!((output.bytes().capacity(), spare.capacity()), (room, 0));
        output.bytes().extend_from_slice(b"reply");
        assert!(!output.send(|_| Err(io::ErrorKind::WouldBlock.into())).unwrap());
        output.give_back(&mut spare);
        assert_eq!((output.bytes().as_slice(), spare.capacity()), (&b"reply"[..], 0));
        // A turn of another connection, and one more of this one.
        spare = Vec::with_capacity(100);
        output.lend(&mut spare);
        assert_eq!(output.bytes().as_slice(), b"reply");
        assert!(output.send(|parts| Ok(parts[0].len())).unwrap());
        output.give_back(&mut spare);
        assert_eq!((output.bytes().capacity(), spare.capacity(), spare.len()), (0, room, 0));
        // A buffer that has grown too much is freed.
        output.lend(&mut spare);
        output.bytes().reserve(KEPT_BYTES + 1);
        output.give_back(&mut spare);
        assert_eq!((output.bytes().capacity(), spare.capacity()), (0, 0));
    }
}
