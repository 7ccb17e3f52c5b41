//! The messages between the supervisor of a paged program and the daemon, over a `SOCK_SEQPACKET` socket.
//!
//! The supervisor sends a hello, then a report of its program's counters at each interval. The daemon answers each
//! message with orders. docs/policies.md describes their purpose.

use spillway_types::{Orders, ProgramCounters};

use crate::Error;
use crate::bytes::{array_at, head, put, u16_at, u32_at, u64_at};

/// The version of all messages.
pub const VERSION: u16 = 1;
/// Longest name of a program.
pub const NAME_BYTES_MAX: usize = 32;
/// Longest interval of reports, milliseconds: an hour.
pub const INTERVAL_MS_MAX: u32 = 3_600_000;

const MAGIC: [u8; 8] = *b"spillprg";

/// The supervisor's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u16,
    /// The limit of local frames that the user set, pages.
    pub local_pages: u64,
    /// The limit that the program keeps now, pages.
    pub budget_pages: u64,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: u8,
}

impl Hello {
    /// The length of the encoded message, bytes.
    pub const BYTES: usize = 64;

    /// The hello of a program that keeps its user's limit. A name that is too long is cut.
    pub fn new(program: &str, local_pages: u64) -> Self {
        let length = (0..=program.len().min(NAME_BYTES_MAX))
            .rev()
            .find(|&length| program.is_char_boundary(length))
            .unwrap_or(0);
        let mut name = [0; NAME_BYTES_MAX];
        put(&mut name, 0, &program.as_bytes()[..length]);
        let (version, budget_pages) = (VERSION, local_pages);
        Self { version, local_pages, budget_pages, name, name_bytes: length as u8 }
    }

    /// The name of the program.
    pub fn program(&self) -> &str {
        core::str::from_utf8(&self.name[..usize::from(self.name_bytes)]).unwrap_or_default()
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] if the message is no hello.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::BYTES] = head(bytes)?;
        if array_at(bytes, 0) != MAGIC {
            return Err(Error::Field("program's hello"));
        }
        let mut name = array_at(bytes, 24);
        let name_bytes = bytes[10];
        let Some(text) = name.get(..usize::from(name_bytes)) else {
            return Err(Error::Field("length of a program's name"));
        };
        if core::str::from_utf8(text).is_err() {
            return Err(Error::Field("program's name"));
        }
        name[usize::from(name_bytes)..].fill(0);
        Ok(Self {
            version: u16_at(bytes, 8),
            local_pages: u64_at(bytes, 16),
            budget_pages: u64_at(bytes, 56),
            name,
            name_bytes,
        })
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 8, &self.version.to_le_bytes());
        bytes[10] = self.name_bytes;
        put(&mut bytes, 16, &self.local_pages.to_le_bytes());
        put(&mut bytes, 24, &self.name);
        put(&mut bytes, 56, &self.budget_pages.to_le_bytes());
        bytes
    }
}

/// Bytes of a report.
pub const REPORT_BYTES: usize = 48;

/// Decodes a report.
pub fn decode_report(bytes: &[u8; REPORT_BYTES]) -> ProgramCounters {
    ProgramCounters {
        resident_pages: u64_at(bytes, 0),
        reserve_pages: u64_at(bytes, 8),
        faults: u64_at(bytes, 16),
        first_touches: u64_at(bytes, 24),
        refaults: u64_at(bytes, 32),
        pages_out: u64_at(bytes, 40),
    }
}

/// Encodes a report.
pub fn encode_report(counters: &ProgramCounters) -> [u8; REPORT_BYTES] {
    let ProgramCounters {
        resident_pages,
        reserve_pages,
        faults,
        first_touches,
        refaults,
        pages_out,
    } = *counters;
    let words = [resident_pages, reserve_pages, faults, first_touches, refaults, pages_out];
    let mut bytes = [0; REPORT_BYTES];
    for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// The daemon's answer to a hello and to each report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The limits of the program.
    Orders(Orders),
    /// The program is not accepted. The daemon closes the connection.
    Refused(Reason),
}

/// The reason why a program is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// The daemon has [`VERSION`], and the supervisor another version.
    Version = 1,
    /// No client is configured for this user.
    Unknown = 2,
    /// The user, or the daemon as a whole, has its largest number of programs.
    Many = 3,
}

impl Reason {
    /// The text for a user.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Version => "it speaks another version",
            Self::Unknown => "no client is configured for this user",
            Self::Many => "it has as many programs as it may have",
        }
    }
}

impl Answer {
    /// The length of the encoded message, bytes.
    pub const BYTES: usize = 24;

    /// Decodes the message.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] if the message is no answer.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::BYTES] = head(bytes)?;
        match u16_at(bytes, 0) {
            0 => {
                let interval_ms = u32_at(bytes, 4);
                if !(1..=INTERVAL_MS_MAX).contains(&interval_ms) {
                    return Err(Error::Field("interval of reports"));
                }
                let beyond_local = match u64_at(bytes, 16) {
                    0 => false,
                    1 => true,
                    _ => return Err(Error::Field("flags of orders")),
                };
                let target_pages = u64_at(bytes, 8);
                Ok(Self::Orders(Orders { target_pages, beyond_local, interval_ms }))
            }
            1 => Ok(Self::Refused(Reason::Version)),
            2 => Ok(Self::Refused(Reason::Unknown)),
            3 => Ok(Self::Refused(Reason::Many)),
            _ => Err(Error::Field("reason of a refusal")),
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        match self {
            Self::Orders(orders) => {
                put(&mut bytes, 4, &orders.interval_ms.to_le_bytes());
                put(&mut bytes, 8, &orders.target_pages.to_le_bytes());
                put(&mut bytes, 16, &u64::from(orders.beyond_local).to_le_bytes());
            }
            Self::Refused(reason) => put(&mut bytes, 0, &(*reason as u16).to_le_bytes()),
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let hello = Hello::new("python3", 16384);
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        assert_eq!(hello.program(), "python3");
        let counters = ProgramCounters {
            resident_pages: 1,
            reserve_pages: 2,
            faults: 3,
            first_touches: 4,
            refaults: 5,
            pages_out: u64::MAX,
        };
        assert_eq!(decode_report(&encode_report(&counters)), counters);
        let orders = Orders { target_pages: u64::MAX, beyond_local: true, interval_ms: 1000 };
        for answer in [
            Answer::Orders(orders),
            Answer::Refused(Reason::Version),
            Answer::Refused(Reason::Unknown),
            Answer::Refused(Reason::Many),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        let hello = Hello::new(&"ä".repeat(40), 1);
        assert_eq!(hello.program(), "ä".repeat(16));
        assert_eq!(Hello::new(&format!("x{}", "ä".repeat(40)), 1).program().len(), 31);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let hello = Hello::new("a", 1).encode();
        assert!(Hello::decode(&hello[1..]).is_err());
        for (at, byte) in [(0, 0), (10, 33), (24, 0xff)] {
            let mut wrong = hello;
            wrong[at] = byte;
            assert!(Hello::decode(&wrong).is_err(), "{at}");
        }
        let orders = Orders { target_pages: 7, beyond_local: false, interval_ms: 1000 };
        let answer = Answer::Orders(orders).encode();
        for (at, byte) in [(0, 9), (7, 0xff), (16, 2)] {
            let mut wrong = answer;
            wrong[at] = byte;
            assert!(Answer::decode(&wrong).is_err(), "{at}");
        }
        assert!(Answer::decode(&[0; Answer::BYTES]).is_err(), "an interval of nothing");
    }
}
