//! The protocol between host and guest agent for windows: memory of the guest in which its programs and the host's
//! store exchange values. One JSON object a line, over a virtio-serial port of its own.
//!
//! ```text
//!  host                                    agent
//!   | greet: nothing is mapped               |   when it has connected
//!   |--------------------------------------->|
//!   |                          hello: nonce  |   when it has started, and after each greet
//!   |<---------------------------------------|
//!   | cleared: nonce                         |   when no window from before that hello is mapped
//!   |--------------------------------------->|
//!   |       open: id, pages, ring's sizes    |   a program wants a window
//!   |<---------------------------------------|
//!   | opened: id, ring's sizes; or refused   |
//!   |--------------------------------------->|
//!   |              wake: id, in both ways    |   one side of the ring sleeps
//!   |<-------------------------------------->|
//!   |                            close: id   |   the program has gone
//!   |<---------------------------------------|
//!   | closed: id                             |   it is no longer mapped; also without being asked
//!   |--------------------------------------->|
//! ```
//!
//! A page belongs to the host from open until refused, closed, or the cleared that answers a later hello: until then
//! the agent does not return it to the guest's kernel. A guest's messages are not trusted: this module limits the
//! numbers, and addresses are checked against the memory layout from the VM's monitor, or the length of the device's file.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::agent::text;
use crate::line::{Error, decode, encode};

/// The version of all messages.
pub const VERSION: u32 = 1;
/// The name of the virtio-serial port.
pub const PORT: &str = "org.spillway.windows.0";
/// Most huge pages of a window, as many as spillway-wire's `WINDOW_PAGES_MAX`.
pub const PAGES_MAX: usize = 9;
/// Most windows of a guest.
pub const WINDOWS_MAX: usize = 64;
/// Limit of guest-physical addresses, in huge pages: what x86-64 can address.
const PAGE_MAX: u64 = 1 << 31;

/// The host's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHost {
    /// The first message on each connection.
    Greet {
        /// [`VERSION`].
        version: u32,
    },
    /// Nothing that was opened before this hello is mapped.
    Cleared {
        /// The hello's.
        nonce: u64,
        /// If the host has the file of an ivshmem device of the guest: the number that it wrote to `PROOF` of the file's
        /// first page. Windows may lie in the device that has it ([`WindowPlace::Device`]).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<u64>,
    },
    /// A window is served.
    Opened {
        /// The window's.
        id: u64,
        /// Commands in flight at most.
        depth: u16,
        /// Bytes of the data area.
        data_bytes: u32,
        /// The number of the daemon's run.
        instance: u64,
    },
    /// A window is not served, and not mapped.
    Refused {
        /// The window's.
        id: u64,
        /// The ring's number for the reason.
        reason: u16,
        /// As text.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text")]
        why: Option<String>,
    },
    /// A window is no longer mapped.
    Closed {
        /// The window's.
        id: u64,
    },
    /// Wakes a window's sleeping program.
    Wake {
        /// The window's.
        id: u64,
    },
}

/// The agent's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromGuest {
    /// It has no open windows.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Comes back in [`FromHost::Cleared`].
        nonce: u64,
    },
    /// A program wants a window.
    Open {
        /// Its number, which no other window has since the last hello.
        id: u64,
        /// Where its huge pages lie.
        #[serde(flatten)]
        place: WindowPlace,
        /// Requested commands in flight.
        depth: u16,
        /// Requested bytes of the data area.
        data_bytes: u32,
    },
    /// Its program is gone.
    Close {
        /// The window's.
        id: u64,
    },
    /// Wakes the sleeping host for a window.
    Wake {
        /// The window's.
        id: u64,
    },
}

/// Where a window's huge pages lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowPlace {
    /// In the guest's memory: the guest-physical address of each, divided by 2 MiB.
    Pages(#[serde(deserialize_with = "pages")] Vec<u64>),
    /// In the guest's ivshmem device. A host that does not know such windows takes this for no message.
    Device {
        /// The offset of each in the device's memory, divided by 2 MiB.
        #[serde(deserialize_with = "pages")]
        pages: Vec<u64>,
        /// The number that the first page contains (`PROOF` of spillway-wire's control words).
        proof: u64,
    },
}

impl WindowPlace {
    /// The numbers of its pages.
    pub fn pages(&self) -> &[u64] {
        match self {
            Self::Pages(pages) | Self::Device { pages, .. } => pages,
        }
    }

    /// Whether they have a page in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.pages().iter().any(|page| other.pages().contains(page))
    }
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

fn pages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let pages = Vec::<u64>::deserialize(deserializer)?;
    let fits = (1..=PAGES_MAX).contains(&pages.len()) && pages.iter().all(|&at| at < PAGE_MAX);
    if fits { Ok(pages) } else { Err(de::Error::custom("pages: 1 to 9 below 4 PiB")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::LINE_BYTES_MAX;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let pages = vec![PAGE_MAX - 1; PAGES_MAX];
        let device = WindowPlace::Device { pages: pages.clone(), proof: u64::MAX };
        for said in [
            FromGuest::Hello { version: VERSION, nonce: u64::MAX },
            FromGuest::Open { id: u64::MAX, place: device, depth: 256, data_bytes: u32::MAX },
            FromGuest::Open {
                id: 1,
                place: WindowPlace::Pages(pages),
                depth: 64,
                data_bytes: 4096,
            },
            FromGuest::Close { id: 1 },
            FromGuest::Wake { id: 1 },
        ] {
            let line = said.encode();
            assert!(line.len() <= LINE_BYTES_MAX);
            assert_eq!(FromGuest::decode(line.strip_suffix(b"\n").unwrap()), Ok(said));
        }
        for said in [
            FromHost::Greet { version: VERSION },
            FromHost::Cleared { nonce: 7, device: None },
            FromHost::Cleared { nonce: 8, device: Some(u64::MAX) },
            FromHost::Opened { id: 1, depth: 64, data_bytes: 4096, instance: u64::MAX },
            FromHost::Refused { id: 1, reason: 4, why: Some("why not".into()) },
            FromHost::Closed { id: 1 },
            FromHost::Wake { id: 1 },
        ] {
            let line = said.encode();
            assert_eq!(FromHost::decode(line.strip_suffix(b"\n").unwrap()), Ok(said));
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for line in [
            r#"{"open":{"id":1,"pages":[],"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"pages":[1,2,3,4,5,6,7,8,9,10],"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"pages":[2147483648],"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"pages":[-1],"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"pages":[1],"depth":65536,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"pages":[1]}}"#,
            r#"{"open":{"id":1,"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"device":[1],"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"device":{"pages":[1]},"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"device":{"pages":[],"proof":1},"depth":64,"data_bytes":4096}}"#,
            r#"{"open":{"id":1,"device":{"pages":[2147483648],"proof":1},"depth":64,"data_bytes":4096}}"#,
        ] {
            assert!(matches!(FromGuest::decode(line.as_bytes()), Err(Error::Message(_))), "{line}");
        }
    }

    #[test]
    fn a_window_in_the_guest_s_memory_is_asked_for_as_before_there_were_devices() {
        let open = FromGuest::Open {
            id: 1,
            place: WindowPlace::Pages(vec![7]),
            depth: 64,
            data_bytes: 4096,
        };
        let line = r#"{"open":{"id":1,"pages":[7],"depth":64,"data_bytes":4096}}"#;
        assert_eq!(open.encode(), format!("{line}\n").as_bytes());
        let cleared = FromHost::Cleared { nonce: 7, device: None };
        assert_eq!(cleared.encode(), b"{\"cleared\":{\"nonce\":7}}\n");
    }

    #[test]
    fn pages_of_memory_and_of_the_device_with_one_number_are_two() {
        let memory = WindowPlace::Pages(vec![1, 2]);
        let device = WindowPlace::Device { pages: vec![1, 2], proof: 3 };
        let other = WindowPlace::Device { pages: vec![2], proof: 4 };
        assert!(memory.overlaps(&memory) && device.overlaps(&other));
        assert!(!memory.overlaps(&device) && !WindowPlace::Pages(vec![3]).overlaps(&memory));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let _ = (FromGuest::decode(&bytes), FromHost::decode(&bytes));
        }
    }
}
