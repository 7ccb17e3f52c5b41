//! Client identity and access: what a frontend checks before it serves a connection.

use crate::ClientId;

/// The identity of a peer, as a frontend knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Identity<'a> {
    /// A process at the other end of a Unix socket, by its credentials from the kernel.
    Peer {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Process.
        pid: i32,
    },
    /// A host of the network, by its NVMe Qualified Name.
    Host {
        /// The name, as in Connect.
        nqn: &'a str,
    },
    /// A name that the frontend has authenticated (from a TLS certificate).
    Name(&'a str),
    /// A user name and a password. The client registry checks the password.
    User {
        /// The client's name.
        name: &'a str,
        /// The password.
        password: &'a [u8],
    },
    /// A client by its configured name, where the configuration assigns the connection to it: a guest, by its channel.
    Client(&'a str),
}

impl core::fmt::Debug for Identity<'_> {
    /// Omits passwords.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Peer { uid, gid, pid } => write!(f, "uid {uid}, gid {gid}, process {pid}"),
            Self::Host { nqn } => write!(f, "host {nqn:?}"),
            Self::Name(name) => write!(f, "name {name:?}"),
            Self::Client(name) => write!(f, "client {name:?}"),
            Self::User { name, .. } => write!(f, "user {name:?}"),
        }
    }
}

/// Limits on what a client uses at the same time. Its pages are limited by its target in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, over all frontends.
    pub connections_max: u32,
    /// Operations in progress, over all its connections.
    pub operations_max: u32,
    /// Bytes of values that the frontends hold for operations in progress.
    pub bytes_max: u64,
}

/// An admitted connection. The frontend calls [`Access::leave`] once when the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The client.
    pub client: ClientId,
    /// Its limits.
    pub limits: Limits,
}

/// The reason why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No client with this identity may use the store.
    Unknown,
    /// The client is at its limit of connections.
    Connections,
}

impl core::fmt::Display for Denied {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "no such client is configured",
            Self::Connections => "the client has all the connections that it may have",
        })
    }
}

impl core::error::Error for Denied {}

/// The client registry, as frontends see it.
pub trait Access: Send + Sync {
    /// Admits a connection, and counts it.
    ///
    /// # Errors
    /// [`Denied`]: the frontend closes the connection.
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied>;

    /// Reports the end of a connection that [`Self::admit`] admitted.
    fn leave(&self, client: ClientId);

    /// Counts a failed authentication. Not for passwords: [`Self::admit`] checks and counts those itself.
    fn authentication_failed(&self) {}

    /// Counts a connection that is closed because its peer did not complete the handshake in time.
    fn handshake_late(&self) {}

    /// Calls `tell` with the client's name, for log lines. Does not call it for an unknown client.
    fn name(&self, client: ClientId, tell: &mut dyn FnMut(&str)) {
        let _ = (client, tell);
    }

    /// Writes the secret with which a host authenticates (DH-HMAC-CHAP) to `secret`, and returns its length in bytes.
    /// `None` if the host need not authenticate.
    fn host_secret(&self, nqn: &str, secret: &mut [u8; 64]) -> Option<usize>;
}
