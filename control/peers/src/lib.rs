//! HTTP between hosts that lend each other memory.
//!
//! Both sides show a certificate, which identifies the host: [`server`] accepts a message only from the
//! host that it names as its sender. Messages go one way: 204 acknowledges the receipt, and answers are
//! separate messages. [`outbox`] sends them, with a bounded queue for each peer; [`spare`] asks a peer for
//! its spare memory; [`http`] is one connection, which the registry also uses. [`Contacts`] receives the
//! result of each request to a peer.

#![forbid(unsafe_code)]

mod contact;
mod error;
pub mod http;
pub mod outbox;
pub mod server;
pub mod spare;

pub use contact::Contacts;
pub use error::Error;

/// The path of messages.
pub const MESSAGES_PATH: &str = "/v1/lending/messages";
/// The path of a host's spare memory.
pub const SPARE_PATH: &str = "/v1/lending/spare";

/// A host's answer at [`SPARE_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Spare {
    /// Bytes that the host would lend now.
    pub spare_bytes: u64,
}
