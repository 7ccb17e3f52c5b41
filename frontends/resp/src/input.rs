//! Received bytes that are not decoded yet.

/// Bytes of the buffer that a worker lends to a connection for its turn.
pub const LENT_BYTES: usize = 256 << 10;
/// Smallest buffer that a connection has of its own, bytes.
const OWN_BYTES_MIN: usize = 4 << 10;
/// A buffer with less room than this grows before it is read into.
const ROOM_MIN: usize = 4 << 10;

/// The input buffer of a connection. Between turns it has memory only if a command has arrived in part.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// The received bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes bytes from the front.
    pub const fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Removes `bytes` bytes from `at` on.
    pub fn cut(&mut self, at: usize, bytes: usize) {
        let from = self.start + at;
        self.bytes.copy_within(from + bytes..self.end, from);
        self.end -= bytes;
    }

    /// The room for the next bytes. The peer is known to send `wanted` bytes.
    pub fn room(&mut self, wanted: usize) -> &mut [u8] {
        if self.start > 0 && self.bytes.len() - self.end < ROOM_MIN.max(wanted) {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let needed = self.end + ROOM_MIN.max(wanted);
        if self.bytes.len() < needed {
            self.bytes.resize(needed.next_power_of_two(), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that `bytes` bytes were read into the room.
    pub const fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Takes a worker's buffer for a turn, unless there is an own buffer.
    pub fn lend(&mut self, spare: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            std::mem::swap(&mut self.bytes, spare);
        }
    }

    /// Gives the worker's buffer back. The bytes that are left move to an own buffer.
    pub fn give_back(&mut self, spare: &mut Vec<u8>) {
        let left = self.end - self.start;
        if !spare.is_empty() {
            // Nothing was lent. An own buffer is freed when it is empty.
            if left == 0 {
                self.bytes = Vec::new();
            }
            return;
        }
        let mut own = Vec::new();
        if left > 0 {
            own.resize(left.next_power_of_two().max(OWN_BYTES_MIN), 0);
            own[..left].copy_from_slice(self.bytes());
        }
        *spare = std::mem::replace(&mut self.bytes, own);
        // A command of many arguments may have made it grow.
        spare.truncate(LENT_BYTES);
        spare.shrink_to(LENT_BYTES);
        (self.start, self.end) = (0, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_over_turns() {
        let (mut input, mut spare) = (Input::default(), vec![0; LENT_BYTES]);
        input.lend(&mut spare);
        assert!(spare.is_empty());
        input.room(0)[..6].copy_from_slice(b"abcdef");
        input.filled(6);
        input.consume(1);
        input.cut(1, 2);
        assert_eq!(input.bytes(), b"bef");
        input.give_back(&mut spare);
        assert_eq!((input.bytes(), spare.len()), (&b"bef"[..], LENT_BYTES));
        input.lend(&mut spare);
        assert_eq!(spare.len(), LENT_BYTES);
        assert!(input.room(100_000).len() >= 100_000);
        input.consume(3);
        input.give_back(&mut spare);
        assert!(input.bytes.is_empty());
    }
}
