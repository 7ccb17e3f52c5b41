//! Bytes that came and are not used up.

/// Bytes of the buffer that a worker lends to the connection whose turn it is.
pub const LENT_BYTES: usize = 256 << 10;
/// Least bytes of a buffer that a connection has of its own.
const OWN_BYTES_MIN: usize = 4 << 10;
/// A buffer with less room than this grows before it is read into.
const ROOM_MIN: usize = 4 << 10;

/// What a connection has taken in. Between its turns it has memory only for a command that has come in part.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// What is there.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops bytes from the front.
    pub const fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Drops `bytes` bytes from `at` on.
    pub fn cut(&mut self, at: usize, bytes: usize) {
        let from = self.start + at;
        self.bytes.copy_within(from + bytes..self.end, from);
        self.end -= bytes;
    }

    /// Where the next bytes go; `wanted` of them are known to come.
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

    /// So many bytes have come into the room.
    pub const fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Takes a worker's buffer for a turn, unless it has bytes of its own.
    pub fn lend(&mut self, spare: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            std::mem::swap(&mut self.bytes, spare);
        }
    }

    /// Gives it back; what is left moves to memory of its own.
    pub fn give_back(&mut self, spare: &mut Vec<u8>) {
        let left = self.end - self.start;
        if !spare.is_empty() {
            // It was not lent. An own buffer goes with its last byte.
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
