//! The protocol between host and guest agent: one JSON object a line, over a virtio-serial port.
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
//! The host sends the first hello, and another after each reconnection. The agent sends nothing before. Both send an
//! empty line before their hello, which terminates an incomplete line of an earlier connection. Both ignore empty lines
//! and unknown messages. A guest's messages are not trusted: this module limits the numbers, and their users compare
//! them with what the host knows.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::line::{Error, decode, encode};

/// The version of all messages.
pub const VERSION: u32 = 1;
/// The name of the virtio-serial port.
pub const PORT: &str = "org.spillway.agent.0";
/// Largest byte count in a message: what x86-64 can address.
pub const BYTES_MAX: u64 = 1 << 52;
/// Longest text in a message, in characters.
pub const TEXT_MAX: usize = 128;
/// Shortest and longest interval between two statuses, milliseconds.
pub const INTERVALS_MS: core::ops::RangeInclusive<u32> = 50..=60_000;

/// The host's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHost {
    /// The first message on each connection.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Interval at which the agent sends its [`Status`], milliseconds.
        interval_ms: u32,
        /// Memory that the agent keeps available, bytes: below that it requests more.
        #[serde(deserialize_with = "bytes")]
        reserve_bytes: u64,
        /// The guest's largest size, boot memory included, bytes.
        #[serde(deserialize_with = "bytes")]
        most_bytes: u64,
        /// How new memory goes online.
        profile: Profile,
    },
    /// Set memory blocks offline, which the host will then take. A new one replaces one in progress.
    Offline {
        /// Comes back in [`FromGuest::Offlined`].
        id: u64,
        /// Bytes to have offline, including those that are offline already.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// How long the agent may try, milliseconds.
        timeout_ms: u32,
    },
    /// Set all offline blocks online again.
    Online,
    /// Send the guest's status now.
    Report {
        /// Comes back in [`FromGuest::Reported`].
        id: u64,
    },
    /// Report when this much of the host's memory is online. A new one replaces one in progress.
    Arrive {
        /// Comes back in [`FromGuest::Arrived`].
        id: u64,
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// How long the agent may wait for it, milliseconds.
        timeout_ms: u32,
    },
    /// The result of [`FromGuest::Need`] or [`FromGuest::Give`].
    Answer {
        /// The request's.
        id: u64,
        /// The granted or taken bytes; 0 is a refusal.
        #[serde(deserialize_with = "bytes")]
        granted_bytes: u64,
        /// Why it was not all.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text")]
        why: Option<String>,
    },
}

/// How a guest uses new memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// All new memory is movable and can be returned. Its boot memory limits a guest's growth.
    #[default]
    ReturnsAll,
    /// The kernel also uses part of the new memory, which is not returned.
    GrowsFar,
}

/// The agent's messages.
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
        /// The kernel's boot id, which differs for each boot.
        #[serde(deserialize_with = "required_text")]
        boot: String,
        /// Bytes of a memory block, the unit in which memory goes offline.
        #[serde(deserialize_with = "bytes")]
        block_bytes: u64,
    },
    /// The guest's status.
    Status(Status),
    /// It needs this much more.
    Need {
        /// Comes back in [`FromHost::Answer`].
        id: u64,
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        /// Whether its reserve is being used up: then the answer decides whether a program is
        /// killed.
        urgent: bool,
        /// How long a program waits for memory of other guests, and for a change of size in progress, milliseconds. 0
        /// means the agent itself: it waits some seconds for other guests, and asks again after a change.
        #[serde(default)]
        wait_ms: u32,
    },
    /// It does not need this much.
    Give {
        /// Comes back in [`FromHost::Answer`].
        id: u64,
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
    /// The result of [`FromHost::Offline`].
    Offlined {
        /// The request's.
        id: u64,
        /// Bytes of the host's memory that are offline now.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
    /// Marks the previous message as the [`Status`] that [`FromHost::Report`] requested.
    Reported {
        /// The request's.
        id: u64,
    },
    /// The result of [`FromHost::Arrive`].
    Arrived {
        /// The request's.
        id: u64,
        /// Bytes of the host's memory that are online now.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
}

/// A guest's status. Counters start at its boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Memory that its kernel has (MemTotal).
    #[serde(deserialize_with = "bytes")]
    pub total_bytes: u64,
    /// Memory available without swapping (MemAvailable).
    #[serde(deserialize_with = "bytes")]
    pub available_bytes: u64,
    /// Free pages of the zones that the kernel can use for its own structures (DMA, DMA32, Normal).
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
    /// Memory blocks of the host's memory that are offline.
    #[serde(deserialize_with = "bytes")]
    pub offline_bytes: u64,
    /// Time for which some task waited for memory (PSI, `some`), microseconds.
    pub stalled_us: u64,
    /// Pages read again soon after they were reclaimed (workingset_refault).
    pub refaults: u64,
    /// Pages swapped in.
    pub swap_ins: u64,
    /// Processes that the kernel's OOM killer ended.
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

    /// The message as a line, with its end.
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

    /// The message as a line, with its end.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
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
    use crate::call::{Call, Reply};
    use crate::line::{LINE_BYTES_MAX, Lines};
    use proptest::prelude::*;

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

    /// Every message as JSON, so that a test can insert a number or a text anywhere.
    fn every_message() -> Vec<serde_json::Value> {
        let (kernel, boot) = ("6.12".to_owned(), "3f0c".to_owned());
        let from_guest = [
            FromGuest::Hello { version: VERSION, kernel, boot, block_bytes: 1 },
            FromGuest::Status(Status::default()),
            FromGuest::Need { id: 1, bytes: 1, urgent: true, wait_ms: 1 },
            FromGuest::Give { id: 1, bytes: 1 },
            FromGuest::Offlined { id: 1, bytes: 1 },
            FromGuest::Reported { id: 1 },
            FromGuest::Arrived { id: 1, bytes: 1 },
        ];
        let profile = Profile::ReturnsAll;
        let (reserve_bytes, most_bytes) = (1, 1);
        let from_host = [
            FromHost::Hello {
                version: VERSION,
                interval_ms: 50,
                reserve_bytes,
                most_bytes,
                profile,
            },
            FromHost::Offline { id: 1, bytes: 1, timeout_ms: 1 },
            FromHost::Online,
            FromHost::Report { id: 1 },
            FromHost::Arrive { id: 1, bytes: 1, timeout_ms: 1 },
            FromHost::Answer { id: 1, granted_bytes: 1, why: Some("dry".into()) },
            FromHost::Answer { id: 1, granted_bytes: 1, why: None },
        ];
        let calls = [Call::Need { bytes: 1 }, Call::Give { bytes: 1 }, Call::Status];
        let status = Status::default();
        let replies = [
            Reply::Answer { granted_bytes: 1, why: Some("dry".into()) },
            Reply::Answer { granted_bytes: 1, why: None },
            Reply::Status { host: true, reserve_bytes: 1, status },
        ];
        let lines = from_guest.iter().map(FromGuest::encode);
        let lines = lines.chain(from_host.iter().map(FromHost::encode));
        let lines = lines.chain(calls.iter().map(Call::encode));
        let lines = lines.chain(replies.iter().map(Reply::encode));
        lines.map(|line| serde_json::from_slice(&line).unwrap()).collect()
    }

    /// Whether the recipient of a line can read it completely.
    fn is_read(line: &str) -> bool {
        let line = line.as_bytes();
        let read = [
            FromGuest::decode(line).map(|it| it.encode()),
            FromHost::decode(line).map(|it| it.encode()),
            Call::decode(line).map(|it| it.encode()),
            Reply::decode(line).map(|it| it.encode()),
        ];
        let value = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).ok();
        // The decoded message contains everything that the line said.
        read.iter().flatten().any(|again| value(again) == value(line))
    }

    #[test]
    fn every_number_of_bytes_and_every_text_is_bounded_in_every_message() {
        let mut bounded = 0;
        for message in every_message() {
            assert!(is_read(&message.to_string()), "{message}");
            let fields = message.as_object().and_then(|it| it.values().next()?.as_object());
            for (name, was) in fields.cloned().unwrap_or_default() {
                let with = |value: serde_json::Value| {
                    let mut message = message.clone();
                    message.as_object_mut().unwrap().values_mut().next().unwrap()[&name] = value;
                    is_read(&message.to_string())
                };
                let (fits, not): (Vec<serde_json::Value>, Vec<serde_json::Value>) = if name
                    .ends_with("bytes")
                {
                    let most = 1_u64 << 52;
                    (vec![0.into(), most.into()], vec![(most + 1).into(), (-1).into()])
                } else if was.is_string() && name != "profile" {
                    let (long, longer) = ("\u{e9}".repeat(128), "\u{e9}".repeat(129));
                    let control = ["a\nb", "\u{7f}", "\u{1b}[2J"].map(Into::into);
                    (vec![long.into(), "".into()], [vec![longer.into()], control.into()].concat())
                } else {
                    continue;
                };
                bounded += 1;
                assert!(fits.into_iter().all(with), "{name} of {message}");
                assert!(!not.into_iter().any(with), "{name} of {message}");
            }
        }
        assert_eq!(bounded, 27, "every field that is bounded was looked at");
    }

    #[test]
    fn a_line_may_be_so_long_and_no_longer() {
        for message in every_message() {
            let line = format!("{:<LINE_BYTES_MAX$}", message.to_string());
            assert_eq!(line.len(), LINE_BYTES_MAX);
            assert!(is_read(&line), "{message}");
            let line = line + " ";
            assert_eq!(FromGuest::decode(line.as_bytes()), Err(Error::Long));
            assert_eq!(FromHost::decode(line.as_bytes()), Err(Error::Long));
            assert_eq!(Call::decode(line.as_bytes()), Err(Error::Long));
            assert_eq!(Reply::decode(line.as_bytes()), Err(Error::Long));
        }
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
