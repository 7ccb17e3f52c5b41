//! The protocol between a guest's program and the agent: one JSON object a line, over a Unix socket. A connection
//! carries one call and its reply.
//!
//! ```text
//!  program                        agent
//!   | {"need":{"bytes":536870912}}  |    or give, or "status"
//!   |------------------------------>|
//!   | {"answer":{"granted_bytes":…}} |
//!   |<------------------------------|
//! ```

use serde::{Deserialize, Serialize};

use crate::agent::{Status, bytes, text};
use crate::line::{Error, decode, encode};

/// The agent's socket.
pub const SOCKET: &str = "/run/spillway-agent/socket";

/// A program's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// It needs this much more.
    Need {
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
    /// It does not need this much.
    Give {
        /// How much.
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
    },
    /// A request for the guest's status.
    Status,
}

/// The agent's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To [`Call::Need`] and [`Call::Give`].
    Answer {
        /// The granted or taken bytes; 0 is a refusal.
        #[serde(deserialize_with = "bytes")]
        granted_bytes: u64,
        /// Why it was not all.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text")]
        why: Option<String>,
    },
    /// To [`Call::Status`].
    Status {
        /// Whether the host has greeted the agent and is still connected.
        host: bool,
        /// The reserve that the host set, bytes; 0 before its greeting.
        #[serde(deserialize_with = "bytes")]
        reserve_bytes: u64,
        /// The status, as sent to the host.
        status: Status,
    },
}

impl Call {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// [`Error::Long`]; [`Error::Message`] also for a call that is not known.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        decode(line)
    }

    /// The message as a line, with its end.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

impl Reply {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// [`Error::Long`]; [`Error::Message`] also for a reply that is not known.
    pub fn decode(line: &[u8]) -> Result<Self, Error> {
        decode(line)
    }

    /// The message as a line, with its end.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_replies_are_read_as_they_were_written() {
        for call in [Call::Need { bytes: 1 << 29 }, Call::Give { bytes: 0 }, Call::Status] {
            let line = call.encode();
            assert_eq!(Call::decode(line.strip_suffix(b"\n").unwrap()), Ok(call));
        }
        let status = Status { kills: 3, ..Status::default() };
        for reply in [
            Reply::Answer { granted_bytes: 0, why: Some("the pool is empty".into()) },
            Reply::Status { host: true, reserve_bytes: 1 << 26, status },
        ] {
            let line = reply.encode();
            assert_eq!(Reply::decode(line.strip_suffix(b"\n").unwrap()), Ok(reply));
        }
        assert_eq!(Call::decode(br#"{"need":{"bytes":1}}"#), Ok(Call::Need { bytes: 1 }));
        assert!(Call::decode(br#"{"need":{"bytes":-1}}"#).is_err());
    }
}
