//! HTTP between hosts that lend each other memory.
//!
//! Both sides show a certificate, and a host is who its certificate says it is: [`server`] takes a message
//! only from the host that it names as its sender. Messages go one way: 204 says that one has arrived, and
//! answers are messages of their own. [`outbox`] sends them, a bounded queue a peer; [`spare`] asks a peer
//! what it can spare; [`http`] is one connection, which the registry uses too. [`Contacts`] hears how each
//! request to a peer went.

#![forbid(unsafe_code)]

mod contact;
mod error;
pub mod http;
pub mod outbox;
pub mod server;
pub mod spare;

pub use contact::Contacts;
pub use error::Error;

/// Where messages are posted.
pub const MESSAGES_PATH: &str = "/v1/lending/messages";
/// Where a host says what it can spare.
pub const SPARE_PATH: &str = "/v1/lending/spare";

/// A host's answer at [`SPARE_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Spare {
    /// Bytes that the host would lend now.
    pub spare_bytes: u64,
}
