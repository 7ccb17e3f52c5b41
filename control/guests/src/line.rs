//! Messages as lines: one JSON object each.

use serde::{Deserialize, Serialize};

/// Longest line, without its end.
pub const LINE_BYTES_MAX: usize = 1024;

/// Why a line of the agent's protocol could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    Long,
    /// It is not a message, or a field has an invalid value.
    #[error("not a message: {0}")]
    Message(String),
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Error> {
    if line.len() > LINE_BYTES_MAX {
        return Err(Error::Long);
    }
    serde_json::from_slice(line).map_err(|error| Error::Message(error.to_string()))
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Encoding a message can't fail: its keys are strings, and it is written to memory.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Splits received bytes into lines.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    /// The line is too long, and its rest is skipped.
    is_skipping: bool,
}

impl Lines {
    /// Appends `bytes`. Calls `each` with every complete line, without its end, or once with [`Error::Long`] for a
    /// line that is too long.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Result<&[u8], Error>)) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (part, is_whole) = match part.split_last() {
                Some((b'\n', head)) => (head, true),
                _ => (part, false),
            };
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                if !self.is_skipping {
                    each(Err(Error::Long));
                }
                self.is_skipping = true;
                self.line.clear();
            } else if !self.is_skipping {
                self.line.extend_from_slice(part);
            }
            if is_whole {
                if !self.is_skipping && !self.line.is_empty() {
                    each(Ok(&self.line));
                }
                self.line.clear();
                self.is_skipping = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    static LETTERS: LazyLock<String> = LazyLock::new(|| "abcdefgh".repeat(400));

    fn lines(parts: &[&[u8]]) -> Vec<Result<Vec<u8>, Error>> {
        let (mut lines, mut got) = (Lines::default(), Vec::new());
        for part in parts {
            lines.push(part, |line| got.push(line.map(<[u8]>::to_vec)));
        }
        got
    }

    #[test]
    fn lines_come_whole_whatever_parts_they_come_in() {
        let whole = b"one\n\ntwo\nthree";
        let expected = [Ok(b"one".to_vec()), Ok(b"two".to_vec())];
        assert_eq!(lines(&[whole]), expected);
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(lines(&bytes), expected);
    }

    #[test]
    fn a_line_that_is_too_long_is_said_once_and_the_next_is_read() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let just = vec![b'y'; LINE_BYTES_MAX];
        let got = lines(&[&long[..700], &long[700..], b"\n", &just, b"\nnext\n"]);
        assert_eq!(got, [Err(Error::Long), Ok(just), Ok(b"next".to_vec())]);
    }

    /// The lines of a text: each complete, non-empty line, and an error for each line that is too long, complete or
    /// not.
    fn plain_lines(text: &[u8]) -> Vec<Result<Vec<u8>, Error>> {
        let mut parts: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
        let last = parts.pop().filter(|last| last.len() > LINE_BYTES_MAX);
        let line = |part: &[u8]| {
            if part.len() > LINE_BYTES_MAX { Err(Error::Long) } else { Ok(part.to_vec()) }
        };
        parts.into_iter().chain(last).filter(|part| !part.is_empty()).map(line).collect()
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_text_however_it_is_cut(
            lengths in proptest::collection::vec(
                prop_oneof![0..4_usize, 1020..1030_usize, 0..3000_usize], 1..8),
            cuts in proptest::collection::vec(1..1500_usize, 0..12),
        ) {
            let text: Vec<&str> = lengths.iter().map(|length| &LETTERS[..*length]).collect();
            let text = text.join("\n");
            let (mut rest, mut parts) = (text.as_bytes(), Vec::new());
            for cut in cuts {
                let (part, left) = rest.split_at(cut.min(rest.len()));
                (rest, parts) = (left, [parts, vec![part]].concat());
            }
            parts.push(rest);
            prop_assert_eq!(lines(&parts), plain_lines(text.as_bytes()));
        }
    }
}
