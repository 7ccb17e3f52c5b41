//! What the host and the agent in a guest say to each other: one JSON object a line, over a virtio-serial port.
//!
//! ```text
//!  host                                    agent
//!   | hello: version, interval, reserve      |
//!   |--------------------------------------->|
//!   |     hello: version, kernel, block size |
//!   |<---------------------------------------|
//!   |          status, once an interval      |
//!   |<---------------------------------------|
//!   |           need, give: id and bytes     |   for itself, or for a program of the guest
//!   |<---------------------------------------|
//!   | answer: id, bytes that were granted    |
//!   |--------------------------------------->|
//!   | report: id                             |   before it refuses to take memory away
//!   |--------------------------------------->|
//!   |                 status; reported: id   |
//!   |<---------------------------------------|
//!   | arrive: id, bytes, time                |   after the guest has grown
//!   |--------------------------------------->|
//!   |                    arrived: id, bytes  |   when as much is online
//!   |<---------------------------------------|
//!   | offline: id, bytes, time               |   before the host takes memory away
//!   |--------------------------------------->|
//!   |                   offlined: id, bytes  |
//!   |<---------------------------------------|
//!   | online: all that it has set offline    |   when the host does not want it after all
//!   |--------------------------------------->|
//! ```
//!
//! The host says hello first, and again whenever it has connected anew; the agent says nothing before. Both put an empty line
//! before their hello, which ends what an earlier connection may have left half said. Either side passes over empty lines
//! and messages that it does not know. What a guest says is not trusted: numbers are bounded here, and compared
//! with what the host knows by whoever uses them.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::Error;

/// The version of all messages.
pub const VERSION: u32 = 1;
/// The name of the virtio-serial port.
pub const PORT: &str = "org.spillway.agent.0";
/// Longest line, without its end.
pub const LINE_BYTES_MAX: usize = 1024;
/// Most bytes that a message can name: what x86-64 can address.
pub const BYTES_MAX: u64 = 1 << 52;
/// Most characters of a text in a message.
pub const TEXT_MAX: usize = 128;
/// Shortest and longest interval between two statuses, milliseconds.
pub const INTERVALS_MS: core::ops::RangeInclusive<u32> = 50..=60_000;

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHost {
    /// The first message on each connection.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// How often the agent is to tell its [`Status`], milliseconds.
        interval_ms: u32,
        /// What the agent keeps free for the guest's growth, bytes: below that it asks for more.
        #[serde(deserialize_with = "bytes")]
        reserve_bytes: u64,
        /// What the guest may hold at most, bytes, what it booted with included.
        #[serde(deserialize_with = "bytes")]
        most_bytes: u64,
        /// How new memory goes online.
        profile: Profile,
    },
    /// Set memory blocks offline, which the host will then take. A later one ends one that is under way.
    Offline {
        /// Comes back in [`FromGuest::Offlined`].
        id: u64,
        /// How much is to be offline then, what is offline already included.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// How long the agent may try, milliseconds.
        timeout_ms: u32,
    },
    /// Bring all blocks online again that were set offline.
    Online,
    /// Say how the guest is now.
    Report {
        /// Comes back in [`FromGuest::Reported`].
        id: u64,
    },
    /// Say when as much is online of what the host gave. A later one ends one that is under way.
    Arrive {
        /// Comes back in [`FromGuest::Arrived`].
        id: u64,
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// How long the agent may wait for it, milliseconds.
        timeout_ms: u32,
    },
    /// What became of [`FromGuest::Need`] or [`FromGuest::Give`].
    Answer {
        /// The request's.
        id: u64,
        /// How much it was; 0 is a refusal.
        #[serde(deserialize_with = "bytes")]
        granted_bytes: u64,
        /// Why it was not all.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text")]
        why: Option<String>,
    },
}

/// How a guest uses what it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// All new memory is movable and can be given back; how far a guest grows is bounded by the memory it booted with.
    #[default]
    ReturnsAll,
    /// Part of the new memory is for the kernel, too, and is not given back.
    GrowsFar,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromGuest {
    /// The answer to [`FromHost::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The kernel's release.
        #[serde(deserialize_with = "required_text")]
        kernel: String,
        /// The kernel's boot id: another one is another boot.
        #[serde(deserialize_with = "required_text")]
        boot: String,
        /// Bytes of a memory block, the unit in which memory goes offline.
        #[serde(deserialize_with = "bytes")]
        block_bytes: u64,
    },
    /// How the guest is.
    Status(Status),
    /// It needs so much more.
    Need {
        /// Comes back in [`FromHost::Answer`].
        id: u64,
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// Its reserve is being used up: the answer decides whether a program is killed.
        urgent: bool,
        /// How long a program waits for memory that other guests have, and for the end of a change of size, milliseconds. 0 is
        /// the agent itself: it waits some seconds for the first, and asks again after the second.
        #[serde(default)]
        wait_ms: u32,
    },
    /// It can do without so much.
    Give {
        /// Comes back in [`FromHost::Answer`].
        id: u64,
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
    /// What became of [`FromHost::Offline`].
    Offlined {
        /// The request's.
        id: u64,
        /// What is offline now, of what the host gave.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
    /// The [`Status`] that [`FromHost::Report`] asked for was the last message.
    Reported {
        /// The request's.
        id: u64,
    },
    /// What became of [`FromHost::Arrive`].
    Arrived {
        /// The request's.
        id: u64,
        /// What is online now, of what the host gave.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
}

/// How a guest is. Counters grow from its boot on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Memory that its kernel has (MemTotal).
    #[serde(deserialize_with = "bytes")]
    pub total_bytes: u64,
    /// What can be had without swapping (MemAvailable).
    #[serde(deserialize_with = "bytes")]
    pub available_bytes: u64,
    /// Free pages of the zones that the kernel's own structures can use (DMA, DMA32, Normal).
    #[serde(deserialize_with = "bytes")]
    pub kernel_free_bytes: u64,
    /// Managed pages of those zones.
    #[serde(deserialize_with = "bytes")]
    pub kernel_bytes: u64,
    /// Page cache.
    #[serde(deserialize_with = "bytes")]
    pub cached_bytes: u64,
    /// Swap in use.
    #[serde(deserialize_with = "bytes")]
    pub swap_used_bytes: u64,
    /// Memory blocks that the host gave and that are offline.
    #[serde(deserialize_with = "bytes")]
    pub offline_bytes: u64,
    /// Time that some task waited for memory (PSI, `some`), microseconds.
    pub stalled_us: u64,
    /// Pages read again soon after they were reclaimed (workingset_refault).
    pub refaults: u64,
    /// Pages swapped in.
    pub swap_ins: u64,
    /// Processes that the kernel killed for want of memory.
    pub kills: u64,
}

impl FromHost {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// [`Error::Long`]; [`Error::Message`] also for a kind of message that is not known.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        decode(line)
    }

    /// Its line, with its end.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

impl FromGuest {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// [`Error::Long`]; [`Error::Message`] also for a kind of message that is not known.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        decode(line)
    }

    /// Its line, with its end.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Error> {
    if line.len() > LINE_BYTES_MAX {
        return Err(Error::Long);
    }
    serde_json::from_slice(line).map_err(|error| Error::Message(error.to_string()))
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Nothing in a message can fail to be written: its keys are strings, and its writer is memory.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Takes bytes as they come, and gives lines.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    /// The line is too long, and its rest is passed over.
    is_skipping: bool,
}

impl Lines {
    /// Appends `bytes` to what came before; `each` gets every line that is whole, without its end, or [`Error::Long`]
    /// once for a line that is too long.
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

pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    within(bytes, bytes <= BYTES_MAX, "bytes: at most 4 PiB")
}

fn required_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fits = is_text(&text);
    within(text, fits, "a text: at most 128 characters, none of them a control character")
}

pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let fits = text.as_deref().is_none_or(is_text);
    within(text, fits, "a text: at most 128 characters, none of them a control character")
}

fn is_text(text: &str) -> bool {
    text.chars().count() <= TEXT_MAX && !text.chars().any(char::is_control)
}

fn within<T, E: de::Error>(value: T, fits: bool, bounds: &'static str) -> Result<T, E> {
    if fits { Ok(value) } else { Err(E::custom(bounds)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn messages_are_read_as_they_were_written() {
        let status = Status { total_bytes: 1 << 30, kills: 7, ..Status::default() };
        let (kernel, boot) = ("6.12.0-amd64".to_owned(), "3f0c".to_owned());
        for said in [
            FromGuest::Hello { version: VERSION, kernel, boot, block_bytes: 128 << 20 },
            FromGuest::Status(status),
            FromGuest::Need { id: 1, bytes: 512 << 20, urgent: true, wait_ms: 0 },
            FromGuest::Arrived { id: 1, bytes: 512 << 20 },
            FromGuest::Give { id: 2, bytes: BYTES_MAX },
            FromGuest::Offlined { id: u64::MAX, bytes: 0 },
        ] {
            let line = said.encode();
            assert_eq!(FromGuest::decode(line.strip_suffix(b"\n").unwrap()), Ok(said));
        }
        for said in [
            FromHost::Hello {
                version: VERSION,
                interval_ms: 500,
                reserve_bytes: 64 << 20,
                most_bytes: 4 << 30,
                profile: Profile::GrowsFar,
            },
            FromHost::Offline { id: 3, bytes: 1 << 30, timeout_ms: 1000 },
            FromHost::Online,
            FromHost::Answer { id: 1, granted_bytes: 0, why: Some("the pool is empty".into()) },
        ] {
            let line = said.encode();
            assert_eq!(FromHost::decode(line.strip_suffix(b"\n").unwrap()), Ok(said));
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for line in [
            r#"{"need":{"id":1,"bytes":4503599627370497,"urgent":false}}"#,
            r#"{"need":{"id":1,"bytes":-1,"urgent":false}}"#,
            r#"{"need":{"id":1,"bytes":1}}"#,
            r#"{"status":{"cached_bytes":4503599627370497}}"#,
            r#"{"hello":{"version":1,"kernel":"a\u001b[2J","boot":"","block_bytes":1}}"#,
            r#"{"strange":{}}"#,
            "[]",
            "",
        ] {
            assert!(matches!(FromGuest::decode(line.as_bytes()), Err(Error::Message(_))), "{line}");
        }
        let long = vec![b' '; LINE_BYTES_MAX + 1];
        assert_eq!(FromGuest::decode(&long), Err(Error::Long));
        assert_eq!(
            FromGuest::decode(br#"{"status":{}}"#),
            Ok(FromGuest::Status(Status::default()))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let mut lines = Lines::default();
            lines.push(&bytes, |line| {
                if let Ok(line) = line {
                    let _ = FromGuest::decode(line);
                    let _ = FromHost::decode(line);
                }
            });
        }
    }
}
