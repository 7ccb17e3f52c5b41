//! Lines of a trace.

use std::io::BufRead;

/// Longest line, bytes.
const LINE_BYTES_MAX: u64 = 1024;

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An invalid line.
    #[error("line {line}: {reason}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no request.
    #[error("there is no request in it")]
    Empty,
}

/// Lines of bounded length.
pub(crate) struct Lines<R> {
    input: R,
    line: String,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(input: R) -> Self {
        Self { input, line: String::new(), number: 0 }
    }

    /// The number of the last line that was read, from 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line, trimmed.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, Error> {
        self.number += 1;
        self.line.clear();
        let error = |reason| Error::Line { line: self.number, reason };
        let read = std::io::Read::take(&mut self.input, LINE_BYTES_MAX).read_line(&mut self.line);
        match read {
            Ok(0) => Ok(None),
            Ok(bytes) if bytes as u64 == LINE_BYTES_MAX => Err(error("longer than 1024 bytes")),
            Ok(_) => Ok(Some(self.line.trim())),
            Err(io) if io.kind() == std::io::ErrorKind::InvalidData => {
                Err(error("not text; a compressed file must be unpacked before"))
            }
            Err(io) => Err(io.into()),
        }
    }
}

/// The fields between commas, if there are exactly `N`.
pub(crate) fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut fields = line.split(',');
    let mut taken = [""; N];
    for field in &mut taken {
        *field = fields.next()?.trim();
    }
    fields.next().is_none().then_some(taken)
}

pub(crate) fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}
