//! Messages of libvirt's RPC, as its documentation defines them: a length, a header of six words, and XDR.

use crate::error::Error;

/// Most bytes of a message. A domain's description has some 10 KiB.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of the length and the header.
pub const HEADER_BYTES: usize = 28;
/// The program of hypervisors, and its only version.
const PROGRAM: u32 = 0x2000_8086;
const VERSION: u32 = 1;
/// Most characters of an error's text; the rest is dropped.
const TEXT_CHARS_MAX: usize = 400;

/// The procedures, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Procedure {
    Open = 1,
    Describe = 14,
    LookUp = 23,
    AuthList = 66,
    AuthPolkit = 70,
    UpdateDevice = 174,
}

/// A message's kind.
const CALL: u32 = 0;
const REPLY: u32 = 1;
/// A reply's status.
const OK: u32 = 0;
const FAILED: u32 = 1;

/// The answer to a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub serial: u32,
    pub outcome: Result<Vec<u8>, Failure>,
}

/// libvirt's error.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: i32,
    pub text: String,
}

/// VIR_ERR_NO_DOMAIN
pub const NO_DOMAIN: i32 = 42;

/// A call's arguments.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    /// Adds bytes without a length; their number must be a multiple of 4.
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u32).to_be_bytes());
        self.0.extend(text.as_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// The whole message.
    pub fn call(self, procedure: Procedure, serial: u32) -> Vec<u8> {
        let length = (HEADER_BYTES + self.0.len()) as u32;
        let words = [length, PROGRAM, VERSION, procedure as u32, CALL, serial, OK];
        let mut message: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        message.extend(self.0);
        message
    }
}

/// A reply's results, read one by one.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn word(&mut self) -> Result<u32, Error> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) =
            self.0.split_at_checked(length).ok_or_else(|| Error::garbage("a message cut short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn text(&mut self) -> Result<String, Error> {
        let length = self.word()? as usize;
        let padded = length.checked_next_multiple_of(4).unwrap_or(usize::MAX);
        let bytes = &self.take(padded)?[..length];
        String::from_utf8(bytes.to_vec()).map_err(|_| Error::garbage("text that is not UTF-8"))
    }
}

/// The length in bytes of the message at the start of `received`; None until the length itself has arrived.
pub fn length(received: &[u8]) -> Result<Option<usize>, Error> {
    let Some(bytes) = received.first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*bytes) as usize;
    if !(HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(Error::garbage(format!("a message of {length} bytes")));
    }
    Ok(Some(length))
}

/// Decodes a whole message. None if it is not a reply: an event, or a message of another program.
pub fn read(message: &[u8]) -> Result<Option<Reply>, Error> {
    let mut reader = Reader::new(message);
    let mut header = [0; 7];
    for word in &mut header {
        *word = reader.word()?;
    }
    let [_, program, version, _, kind, serial, status] = header;
    if program != PROGRAM || kind != REPLY {
        return Ok(None);
    }
    if version != VERSION {
        return Err(Error::garbage(format!("version {version} of its protocol")));
    }
    let outcome = match status {
        OK => Ok(reader.0.to_vec()),
        FAILED => Err(failure(&mut reader)?),
        _ => return Err(Error::garbage(format!("a reply of status {status}"))),
    };
    Ok(Some(Reply { serial, outcome }))
}

fn failure(reader: &mut Reader<'_>) -> Result<Failure, Error> {
    let code = reader.word()?.cast_signed();
    let _domain = reader.word()?;
    let text = match reader.word()? {
        0 => format!("error {code}"),
        _ => reader.text()?,
    };
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text = text.trim().chars().take(TEXT_CHARS_MAX).map(plain).collect();
    Ok(Failure { code, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(serial: u32, status: u32, body: Writer) -> Vec<u8> {
        let mut message = body.call(Procedure::Open, serial);
        message[16..20].copy_from_slice(&REPLY.to_be_bytes());
        message[24..28].copy_from_slice(&status.to_be_bytes());
        message
    }

    #[test]
    fn a_call_is_a_length_a_header_and_padded_text() {
        let call = Writer::default().text("abcde").word(1).call(Procedure::Describe, 7);
        assert_eq!(call.len(), HEADER_BYTES + 16);
        assert_eq!(length(&call).unwrap(), Some(call.len()));
        assert_eq!(call[12..16], [0, 0, 0, 14]);
        assert_eq!(&call[28..40], b"\0\0\0\x05abcde\0\0\0");
        assert!(read(&call).unwrap().is_none(), "a call answers nothing");
    }

    #[test]
    fn replies_and_failures_are_told_apart() {
        let good = reply(3, OK, Writer::default().text("x"));
        let answered = read(&good).unwrap().unwrap();
        assert_eq!(answered.serial, 3);
        assert_eq!(Reader::new(&answered.outcome.unwrap()).text().unwrap(), "x");
        let bad = Writer::default().word(42).word(10).word(1).text("no such\ndomain").word(2);
        let failed = read(&reply(4, FAILED, bad)).unwrap().unwrap();
        let failure = Failure { code: NO_DOMAIN, text: "no such domain".into() };
        assert_eq!(failed.outcome, Err(failure));
        assert!(read(&reply(4, 2, Writer::default())).is_err(), "a stream was not asked for");
    }

    #[test]
    fn whatever_comes_is_read_without_harm() {
        assert!(matches!(length(&[0, 0]), Ok(None)));
        for bad in [0_u32, 27, MESSAGE_BYTES_MAX as u32 + 1, u32::MAX] {
            assert!(length(&bad.to_be_bytes()).is_err());
        }
        let whole = reply(1, FAILED, Writer::default().word(1).word(2).word(1).text("why"));
        for cut in 0..whole.len() - 1 {
            assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
        }
        let long = Writer::default().word(u32::MAX);
        assert!(Reader::new(&long.0).text().is_err());
        let mut latin = Writer::default().text("ab").0;
        latin[4] = 0xe4;
        assert!(Reader::new(&latin).text().is_err());
    }
}
