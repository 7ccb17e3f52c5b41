//! Splits received bytes into lines.

/// Most bytes of a line. The longest answer is that of query-memory-devices: some 250 bytes for each of at most 256
/// memory slots.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// A line is longer than [`LINE_BYTES_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// Received bytes. Each [`Self::push`] drops the lines that were returned.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// The offset of the next line.
    start: usize,
    /// End of the bytes that were searched for a line feed.
    searched: usize,
}

impl LineBuffer {
    /// Adds received bytes.
    pub fn push(&mut self, received: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(received);
    }

    /// The next whole line, without its line feed. None until more bytes are pushed.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let found = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n');
        let end = found.map_or(self.bytes.len(), |at| self.searched + at);
        if end - self.start > LINE_BYTES_MAX {
            return Err(TooLong);
        }
        if found.is_none() {
            self.searched = end;
            return Ok(None);
        }
        let line = &self.bytes[self.start..end];
        self.start = end + 1;
        self.searched = self.start;
        Ok(Some(line))
    }

    /// Whether nothing was received since the last whole line.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"{\"a\":1}\r\n\n{\"b\":2}\nrest";
        for piece in 1..=text.len() {
            let mut buffer = LineBuffer::default();
            let mut lines = Vec::new();
            for bytes in text.chunks(piece) {
                buffer.push(bytes);
                while let Some(line) = buffer.next_line().unwrap() {
                    lines.push(line.to_vec());
                }
            }
            assert_eq!(lines, [&b"{\"a\":1}\r"[..], b"", b"{\"b\":2}"], "pieces of {piece}");
            assert!(!buffer.is_empty());
            buffer.push(b"\n");
            assert_eq!(buffer.next_line(), Ok(Some(&b"rest"[..])));
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn the_longest_line_passes_and_one_byte_more_does_not() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b' '; LINE_BYTES_MAX]);
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.push(b"\n");
        assert_eq!(buffer.next_line().unwrap().unwrap().len(), LINE_BYTES_MAX);
        buffer.push(&vec![b' '; LINE_BYTES_MAX + 1]);
        assert_eq!(buffer.next_line(), Err(TooLong));
        let mut ended = LineBuffer::default();
        ended.push(&[vec![b' '; LINE_BYTES_MAX + 1], vec![b'\n']].concat());
        assert_eq!(ended.next_line(), Err(TooLong));
    }

    #[test]
    fn the_bound_is_of_each_line() {
        let mut buffer = LineBuffer::default();
        let line = [vec![b' '; LINE_BYTES_MAX - 1], vec![b'\n']].concat();
        buffer.push(&line.repeat(3));
        for _ in 0..3 {
            assert_eq!(buffer.next_line().unwrap().unwrap().len(), LINE_BYTES_MAX - 1);
        }
        assert_eq!(buffer.next_line(), Ok(None));
    }
}
