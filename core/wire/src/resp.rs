//! RESP, the protocol of Redis and Valkey: commands in, replies of version 2 or 3 out.
//!
//! Source: redis.io/docs/latest/develop/reference/protocol-spec, and the replies of Redis 7.0 to malformed
//! input. A command is an array of bulk strings, or a line of words ("inline").

mod encoder;

pub use encoder::{Encoder, Version};

/// Longest inline command and longest line of a header, bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most arguments of one command.
pub const ARGUMENTS_MAX: usize = 1 << 20;
/// Longest argument, bytes.
pub const ARGUMENT_BYTES_MAX: u64 = 512 << 20;
/// Most arguments of a command of an unauthenticated peer.
const STRANGER_ARGUMENTS_MAX: i64 = 10;
/// Longest argument of an unauthenticated peer, bytes.
const STRANGER_BYTES_MAX: u64 = 16 << 10;
/// A longer argument, in bytes, is not gathered in the input: see [`Step::Long`].
pub const LONG_BYTES_MIN: usize = 64 << 10;

/// The reason why the input is no command. The bytes behind it can't be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An inline command does not end.
    #[error("too big inline request")]
    Inline,
    /// The line with the number of arguments does not end.
    #[error("too big mbulk count string")]
    CountLine,
    /// The line with the length of an argument does not end.
    #[error("too big bulk count string")]
    LengthLine,
    /// The number of arguments is no number, or too high.
    #[error("invalid multibulk length")]
    Count,
    /// The number of arguments is too high for an unauthenticated peer.
    #[error("unauthenticated multibulk length")]
    StrangerCount,
    /// The length of an argument is no number, negative or too high.
    #[error("invalid bulk length")]
    Length,
    /// The length of an argument is too high for an unauthenticated peer.
    #[error("unauthenticated bulk length")]
    StrangerLength,
    /// An argument does not begin with `$`.
    #[error("expected '$', got '{}'", char::from(*.0))]
    Dollar(u8),
    /// A quoted word of an inline command does not end.
    #[error("unbalanced quotes in request")]
    Quotes,
}

/// One argument of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A range of [`Decoder::text`].
    Bytes {
        /// The offset of the argument.
        at: u32,
        /// The length of the argument, bytes.
        length: u32,
    },
    /// A long argument, by its number among the long ones.
    Long(u32),
}

/// The next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for more bytes.
    More,
    /// Execute the command of [`Decoder::arguments`]. The number is its length in the input, bytes. A command without
    /// arguments is an empty line.
    Command(usize),
    /// Take the next argument, of this many bytes, out of the input. It begins at [`Decoder::at`]. Then call
    /// [`Decoder::taken`].
    Long(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    /// Before a command.
    Start,
    /// Before the header of an argument.
    Header,
    /// In an argument of this many bytes.
    Body(usize),
    /// In a long argument, which the caller takes.
    Taking,
    /// Behind a long argument, before the end of its line.
    Taken,
}

/// A decoder of commands. The input may arrive in pieces.
#[derive(Debug)]
pub struct Decoder {
    state: DecoderState,
    /// Whether the peer is authenticated.
    known: bool,
    /// The offset of the next byte to decode, from the beginning of the command.
    at: usize,
    /// Arguments that have not arrived yet.
    missing: usize,
    long: u32,
    arguments: Vec<Argument>,
    /// The words of an inline command, without their quotes.
    words: Vec<u8>,
    inline: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder for an unauthenticated peer.
    pub const fn new() -> Self {
        Self {
            state: DecoderState::Start,
            known: false,
            at: 0,
            missing: 0,
            long: 0,
            arguments: Vec::new(),
            words: Vec::new(),
            inline: false,
        }
    }

    /// Sets whether the peer is authenticated. Authenticated peers may send longer commands.
    pub const fn set_known(&mut self, known: bool) {
        self.known = known;
    }

    /// The arguments that have arrived; after [`Step::Command`] all of them.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The offset of the next byte to decode, from the beginning of the command.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The text to which the offsets of arguments refer: `command`, the beginning of the input, or the words of an
    /// inline command.
    pub fn text<'a>(&'a self, command: &'a [u8]) -> &'a [u8] {
        if self.inline { &self.words } else { command }
    }

    /// Notes that a long argument was taken out of the input.
    pub fn taken(&mut self) {
        debug_assert_eq!(self.state, DecoderState::Taking);
        self.state = DecoderState::Taken;
        self.arguments.push(Argument::Long(self.long));
        self.long += 1;
        self.missing -= 1;
    }

    /// Continues to decode `input`, which begins with the command.
    ///
    /// # Errors
    /// The input is malformed. End the connection.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, Error> {
        loop {
            match self.state {
                DecoderState::Start => {
                    self.arguments.clear();
                    (self.at, self.long, self.inline) = (0, 0, false);
                    let Some(&first) = input.first() else { return Ok(Step::More) };
                    if first != b'*' {
                        return self.inline(input);
                    }
                    let Some(count) = self.number(input, Error::CountLine, Error::Count)? else {
                        return Ok(Step::More);
                    };
                    if count > ARGUMENTS_MAX as i64 {
                        return Err(Error::Count);
                    }
                    if !self.known && count > STRANGER_ARGUMENTS_MAX {
                        return Err(Error::StrangerCount);
                    }
                    if count <= 0 {
                        return Ok(Step::Command(self.at));
                    }
                    self.missing = count as usize;
                    self.state = DecoderState::Header;
                }
                DecoderState::Header if self.missing == 0 => {
                    self.state = DecoderState::Start;
                    return Ok(Step::Command(self.at));
                }
                DecoderState::Header => {
                    match input.get(self.at) {
                        None => return Ok(Step::More),
                        Some(b'$') => {}
                        Some(&other) => return Err(Error::Dollar(other)),
                    }
                    let Some(length) = self.number(input, Error::LengthLine, Error::Length)? else {
                        return Ok(Step::More);
                    };
                    let length = u64::try_from(length).map_err(|_| Error::Length)?;
                    if length > ARGUMENT_BYTES_MAX {
                        return Err(Error::Length);
                    }
                    if !self.known && length > STRANGER_BYTES_MAX {
                        return Err(Error::StrangerLength);
                    }
                    if length > LONG_BYTES_MIN as u64 {
                        self.state = DecoderState::Taking;
                        return Ok(Step::Long(length));
                    }
                    self.state = DecoderState::Body(length as usize);
                }
                DecoderState::Body(length) => {
                    if input.len() < self.at + length + 2 {
                        return Ok(Step::More);
                    }
                    self.arguments
                        .push(Argument::Bytes { at: self.at as u32, length: length as u32 });
                    self.at += length + 2;
                    self.missing -= 1;
                    self.state = DecoderState::Header;
                }
                DecoderState::Taking => return Ok(Step::More),
                DecoderState::Taken => {
                    if input.len() < self.at + 2 {
                        return Ok(Step::More);
                    }
                    self.at += 2;
                    self.state = DecoderState::Header;
                }
            }
        }
    }

    /// Missing bytes of the argument that is arriving; 0 if unknown.
    pub fn wanted(&self, input: &[u8]) -> usize {
        match self.state {
            DecoderState::Body(length) => (self.at + length + 2).saturating_sub(input.len()),
            _ => 0,
        }
    }

    /// The number of the header at the present offset. `None` until its line has ended.
    fn number(
        &mut self,
        input: &[u8],
        too_long: Error,
        wrong: Error,
    ) -> Result<Option<i64>, Error> {
        let rest = &input[self.at + 1..];
        // A number has at most 20 characters, so a longer line is an error. Redis waits for up to 64 KiB.
        let Some(end) = rest.iter().take(32).position(|&byte| byte == b'\r') else {
            return if rest.len() >= 32 { Err(too_long) } else { Ok(None) };
        };
        if rest.len() < end + 2 {
            return Ok(None);
        }
        let number = integer(&rest[..end]).ok_or(wrong)?;
        self.at += 1 + end + 2;
        Ok(Some(number))
    }

    /// Decodes an inline command.
    fn inline(&mut self, input: &[u8]) -> Result<Step, Error> {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            let too_long = input.len() > LINE_BYTES_MAX;
            return if too_long { Err(Error::Inline) } else { Ok(Step::More) };
        };
        if end > LINE_BYTES_MAX {
            return Err(Error::Inline);
        }
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.inline = true;
        self.at = end + 1;
        self.words.clear();
        split_words(line, &mut self.words, &mut self.arguments)?;
        Ok(Step::Command(self.at))
    }
}

/// Splits a line into words, like Redis's `sdssplitargs`. Quoted words may contain spaces and escapes.
fn split_words(
    line: &[u8],
    words: &mut Vec<u8>,
    arguments: &mut Vec<Argument>,
) -> Result<(), Error> {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        if at == line.len() {
            return Ok(());
        }
        let begin = words.len();
        let mut quote = None;
        loop {
            let byte = line.get(at).copied();
            match (quote, byte) {
                (None, None) => break,
                (None, Some(space)) if space.is_ascii_whitespace() => break,
                (None, Some(mark @ (b'"' | b'\''))) => quote = Some(mark),
                (None, Some(other)) => words.push(other),
                (Some(_), None) => return Err(Error::Quotes),
                (Some(b'"'), Some(b'\\')) => at += escape(&line[at..], words)?,
                (Some(b'\''), Some(b'\\')) if line.get(at + 1) == Some(&b'\'') => {
                    words.push(b'\'');
                    at += 1;
                }
                (Some(mark), Some(end)) if end == mark => {
                    // A closing quote ends its word.
                    if line.get(at + 1).is_some_and(|byte| !byte.is_ascii_whitespace()) {
                        return Err(Error::Quotes);
                    }
                    quote = None;
                }
                (Some(_), Some(other)) => words.push(other),
            }
            at += 1;
        }
        let (at, length) = (begin as u32, (words.len() - begin) as u32);
        arguments.push(Argument::Bytes { at, length });
    }
}

/// Decodes `\n`, `\x41` and other escapes at the beginning of `line`. Gives the number of bytes beyond the first.
fn escape(line: &[u8], words: &mut Vec<u8>) -> Result<usize, Error> {
    let hex = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    if let (Some(b'x'), Some(high), Some(low)) = (line.get(1), hex(line.get(2)), hex(line.get(3))) {
        words.push((high * 16 + low) as u8);
        return Ok(3);
    }
    words.push(match line.get(1) {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'b') => 8,
        Some(b'a') => 7,
        Some(&other) => other,
        None => return Err(Error::Quotes),
    });
    Ok(1)
}

/// Parses a decimal number like Redis: no plus, no leading zeros, no spaces.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] => return None,
        [b'0'] if negative => return None,
        [b'0', _, ..] => return None,
        _ => {}
    }
    digits.iter().try_fold(0_i64, |sum, &digit| {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        let sum = sum.checked_mul(10)?;
        if negative { sum.checked_sub(digit) } else { sum.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests;
