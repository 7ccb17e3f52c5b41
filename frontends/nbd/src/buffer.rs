//! The fixed buffers of a connection.

use std::io::{self, Read};

use spillway_types::Limits;

/// Most bytes of a buffer.
pub const BYTES_MAX: usize = 260 << 10;
/// Least bytes of a buffer: 64 KiB, which a client may request in one piece, and a page.
const BYTES_MIN: usize = 68 << 10;

/// Bytes of each of a connection's two buffers: the client's limit of bytes divided among all its connections, but at
/// least 68 KiB and at most 260 KiB.
pub fn buffer_bytes(limits: &Limits) -> usize {
    let share = limits.bytes_max / u64::from(limits.connections_max.max(1)) / 2;
    usize::try_from(share).unwrap_or(BYTES_MAX).clamp(BYTES_MIN, BYTES_MAX)
}

/// Received bytes that were not consumed yet.
#[derive(Debug)]
pub struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The unconsumed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops bytes from the front.
    pub fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Reads once, as many bytes as are available and fit. Returns their number; 0 at the end of the stream.
    pub fn fill(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match stream.read(&mut self.bytes[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(got) => {
                    self.end += got;
                    return Ok(got);
                }
            }
        }
    }
}

/// Bytes that wait to be sent.
#[derive(Debug)]
pub struct Output {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Output {
    /// An empty buffer with a capacity of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), filled: 0 }
    }

    /// The waiting bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Empties the buffer after its bytes were sent.
    pub const fn clear(&mut self) {
        self.filled = 0;
    }

    /// Its capacity in bytes.
    pub const fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Number of free bytes.
    pub const fn room(&self) -> usize {
        self.bytes.len() - self.filled
    }

    /// Appends bytes, for which the caller has checked the room.
    pub(crate) fn push(&mut self, part: &[u8]) {
        self.grow(part.len()).copy_from_slice(part);
    }

    /// Appends bytes for the caller to write.
    pub(crate) fn grow(&mut self, bytes: usize) -> &mut [u8] {
        self.filled += bytes;
        &mut self.bytes[self.filled - bytes..self.filled]
    }

    /// Shortens the waiting bytes to `bytes`.
    pub(crate) const fn shrink_to(&mut self, bytes: usize) {
        self.filled = bytes;
    }

    /// Moves waiting bytes from `from` to the earlier `to`.
    pub(crate) fn move_back(&mut self, from: usize, to: usize, bytes: usize) {
        self.bytes.copy_within(from..from + bytes, to);
    }

    /// Overwrites waiting bytes at `at`. Returns the end of the new bytes.
    pub(crate) fn overwrite(&mut self, at: usize, part: &[u8]) -> usize {
        self.bytes[at..at + part.len()].copy_from_slice(part);
        at + part.len()
    }

    pub(crate) const fn filled(&self) -> usize {
        self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_keep_to_the_limits() {
        let of = |connections_max, bytes_max| {
            buffer_bytes(&Limits { connections_max, operations_max: 1, bytes_max })
        };
        assert_eq!(of(16, 16 * 200 * 1024), 100 * 1024);
        assert_eq!(of(0, u64::MAX), BYTES_MAX);
        assert_eq!(of(1000, 0), BYTES_MIN);
    }

    #[test]
    fn what_is_left_moves_to_the_front() {
        let mut input = Input::new(8);
        assert_eq!(input.fill(&mut &b"abcdefghij"[..]).unwrap(), 8);
        input.consume(5);
        assert_eq!(input.fill(&mut &b"0123456789"[..]).unwrap(), 5);
        assert_eq!(input.bytes(), b"fgh01234");
    }
}
