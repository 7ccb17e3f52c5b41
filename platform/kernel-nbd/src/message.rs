//! Generic netlink's messages: headers of netlink (RFC 3549, section 2.3.2) and genetlink, and attributes. All numbers
//! are in the host's byte order.

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Flag in the type of an attribute that contains attributes.
const NESTED: u16 = 1 << 15;
/// Mask of the number in an attribute's type.
const NUMBER: u16 = (1 << 14) - 1;
/// Flags of a request that the kernel must acknowledge.
const REQUEST_AND_ACK: u16 = 1 | 4;
/// Type of the message that acknowledges or refuses a request.
const ERROR: u16 = 2;

const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// An outgoing message.
pub struct Message(Vec<u8>);

impl Message {
    /// A command of a family, without attributes yet.
    pub fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&REQUEST_AND_ACK.to_ne_bytes());
        bytes.extend([command, 1, 0, 0]);
        Self(bytes)
    }

    fn put(&mut self, kind: u16, content: &[u8]) {
        let bytes = (ATTRIBUTE_HEADER_BYTES + content.len()) as u16;
        self.0.extend(bytes.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(content);
        self.0.resize(padded(self.0.len()), 0);
    }

    pub fn put_u32(&mut self, kind: u16, number: u32) {
        self.put(kind, &number.to_ne_bytes());
    }

    pub fn put_u64(&mut self, kind: u16, number: u64) {
        self.put(kind, &number.to_ne_bytes());
    }

    /// Adds a text with a terminating zero.
    pub fn put_text(&mut self, kind: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes);
    }

    /// Adds an attribute that contains the attributes that `fill` adds.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.put(kind | NESTED, &[]);
        fill(self);
        let bytes = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&bytes.to_ne_bytes());
    }

    /// The whole message.
    pub fn finish(mut self) -> Vec<u8> {
        let bytes = self.0.len() as u32;
        self.0[..4].copy_from_slice(&bytes.to_ne_bytes());
        self.0
    }
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'b> {
    /// The request is done, or (not 0) refused with this errno.
    Done(i32),
    /// The attributes of the answer.
    Attributes(&'b [u8]),
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The messages in one datagram.
pub fn answers(bytes: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let message = rest.get(..length).filter(|_| length >= HEADER_BYTES)?;
        rest = rest.get(padded(length)..).unwrap_or_default();
        let body = &message[HEADER_BYTES..];
        Some(if u16_at(message, 4)? == ERROR {
            Answer::Done(-(u32_at(body, 0)? as i32))
        } else {
            Answer::Attributes(body.get(GENERIC_HEADER_BYTES..)?)
        })
    })
}

/// The number in an attribute: 32 bits, or 16.
pub fn number(attributes: &[u8], wanted: u16) -> Option<u32> {
    let mut rest = attributes;
    loop {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & NUMBER;
        let content = rest.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if kind == wanted {
            return u32_at(content, 0).or_else(|| u16_at(content, 0).map(u32::from));
        }
        rest = rest.get(padded(length)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_nest_and_are_padded() {
        let mut message = Message::new(27, 1);
        message.put_u32(1, 7);
        message.nest(7, |message| message.nest(1, |message| message.put_u32(1, 9)));
        message.put_text(2, "nbd");
        let bytes = message.finish();
        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
        assert_eq!((u16_at(&bytes, 4), bytes[16]), (Some(27), 1));
        let attributes = &bytes[HEADER_BYTES + GENERIC_HEADER_BYTES..];
        assert_eq!(number(attributes, 1), Some(7));
        assert_eq!(attributes[8..12], [16, 0, 7, 0x80]);
        assert_eq!(attributes[12..20], [12, 0, 1, 0x80, 8, 0, 1, 0]);
        assert_eq!(attributes[24..32], [8, 0, 2, 0, b'n', b'b', b'd', 0]);
    }

    #[test]
    fn answers_of_any_bytes_end() {
        let mut refused = vec![0; 36];
        refused[0] = 36;
        refused[4] = 2;
        refused[16..20].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(answers(&refused).collect::<Vec<_>>(), [Answer::Done(2)]);
        for length in 0..refused.len() {
            assert_eq!(answers(&refused[..length]).count(), 0);
        }
        assert_eq!(number(&[4, 0, 9, 0], 1), None);
        assert_eq!(number(&[3, 0, 1, 0, 5, 0, 0, 0], 1), None, "shorter than its header");
        assert_eq!(number(&[6, 0, 1, 0, 5, 0, 0, 0], 1), Some(5));
    }
}
