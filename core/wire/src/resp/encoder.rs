//! Replies of version 2 or 3.

/// The version of the protocol for replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RESP2.
    #[default]
    Two,
    /// RESP3, after HELLO 3.
    Three,
}

/// An encoder, which appends replies to a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    bytes: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> Encoder<'a> {
    /// An encoder that appends to `bytes`.
    pub const fn new(bytes: &'a mut Vec<u8>, version: Version) -> Self {
        Self { bytes, version }
    }

    fn header(&mut self, kind: u8, number: i64) {
        // Most numbers have one digit.
        if (0..10).contains(&number) {
            self.bytes.extend([kind, b'0' + number as u8, b'\r', b'\n']);
            return;
        }
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut left = number.unsigned_abs();
        while left != 0 {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        self.bytes.push(kind);
        if number < 0 {
            self.bytes.push(b'-');
        }
        self.bytes.extend_from_slice(&digits[at..]);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A simple string, such as OK.
    pub fn simple(&mut self, line: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An error, which begins with its code. Line breaks become spaces.
    pub fn error(&mut self, line: &[u8]) {
        self.bytes.push(b'-');
        let clean = |&byte: &u8| if byte == b'\r' || byte == b'\n' { b' ' } else { byte };
        self.bytes.extend(line.iter().map(clean));
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A number.
    pub fn integer(&mut self, number: i64) {
        self.header(b':', number);
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.bulk_header(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bulk_end();
    }

    /// The header of a bulk string of `length` bytes. The caller sends the bytes.
    pub fn bulk_header(&mut self, length: usize) {
        self.header(b'$', length as i64);
    }

    /// The end of a bulk string whose bytes the caller sent.
    pub fn bulk_end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A text for people: a verbatim string in RESP3.
    pub fn text(&mut self, text: &str) {
        match self.version {
            Version::Two => self.bulk(text.as_bytes()),
            Version::Three => {
                self.header(b'=', text.len() as i64 + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bulk_end();
            }
        }
    }

    /// A null.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// A null in the place of an array.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"*-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// The header of an array. `count` replies follow.
    pub fn array(&mut self, count: usize) {
        self.header(b'*', count as i64);
    }

    /// The header of a map. `pairs` pairs of replies follow.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.header(b'*', 2 * pairs as i64),
            Version::Three => self.header(b'%', pairs as i64),
        }
    }

    /// The header of a set. `count` different replies follow, in no order.
    pub fn set(&mut self, count: usize) {
        match self.version {
            Version::Two => self.header(b'*', count as i64),
            Version::Three => self.header(b'~', count as i64),
        }
    }
}
