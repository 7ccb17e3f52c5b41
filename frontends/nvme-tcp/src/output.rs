//! Bytes on their way to a host.

use crate::quota::QuotaGuard;

/// No more commands are taken up while so many bytes wait to be sent.
pub(crate) const FULL_BYTES: usize = 256 << 10;
/// The buffer keeps this size when it empties; only long logs make it longer.
const KEPT_BYTES: usize = 512 << 10;

/// A buffer of bytes to be sent. What was written stays in one piece, so that one system call sends the
/// answers to many commands.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Quota of answers that wait here.
    held: Vec<QuotaGuard>,
}

impl Output {
    /// What is to be sent.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// `bytes` of [`Self::pending`] were sent.
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

    /// Whether commands must wait until some of it was sent.
    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start >= FULL_BYTES
    }

    /// Room for `bytes` at the end.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() < self.end + bytes {
            self.bytes.resize((self.end + bytes).next_power_of_two(), 0);
        }
        &mut self.bytes[self.end..self.end + bytes]
    }

    /// `bytes` of the room were filled.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.bytes.len());
    }

    /// Keeps a part of a quota until all is sent.
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
