//! The output: bytes that are to be sent to a host.

use crate::quota::QuotaGuard;

/// While so many bytes wait to be sent, no more commands are executed.
pub(crate) const FULL_BYTES: usize = 256 << 10;
/// The buffer shrinks to this size when it becomes empty. Only long logs make it longer.
const KEPT_BYTES: usize = 512 << 10;

/// A buffer of bytes to be sent. They are contiguous, so that one system call sends the answers to many commands.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// The parts of the quota that the answers in the buffer hold.
    held: Vec<QuotaGuard>,
}

impl Output {
    /// The bytes to be sent.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `bytes` of [`Self::pending`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            self.held.clear();
            if self.bytes.len() > KEPT_BYTES {
                self.bytes.truncate(KEPT_BYTES);
                self.bytes.shrink_to_fit();
            }
        }
    }

    /// Whether commands must wait until some bytes were sent.
    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start >= FULL_BYTES
    }

    /// Space for `bytes` at the end.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() < self.end + bytes {
            self.bytes.resize((self.end + bytes).next_power_of_two(), 0);
        }
        &mut self.bytes[self.end..self.end + bytes]
    }

    /// The first `bytes` of [`Self::room`] were written.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.bytes.len());
    }

    /// Holds a part of a quota until all bytes are sent.
    pub(crate) fn keep(&mut self, held: QuotaGuard) {
        self.held.push(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_comes_out_in_order() {
        let mut output = Output::default();
        for byte in 0..3 {
            output.room(4)[..2].fill(byte);
            output.filled(2);
        }
        assert_eq!(output.pending(), [0, 0, 1, 1, 2, 2]);
        output.sent(3);
        assert_eq!(output.pending(), [1, 2, 2]);
        output.room(1)[0] = 9;
        output.filled(1);
        output.sent(4);
        assert!(output.pending().is_empty());
    }

    #[test]
    fn a_large_value_does_not_keep_its_room() {
        let mut output = Output::default();
        output.room(4 << 20).fill(1);
        output.filled(4 << 20);
        assert!(output.is_full());
        output.sent(4 << 20);
        assert!(output.bytes.len() <= KEPT_BYTES);
    }
}
