//! Who asks, and what they may have: what a frontend wants to know before it serves a connection.

use crate::ClientId;

/// How a peer is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Identity<'a> {
    /// A process at the other end of a Unix socket, by the credentials that the kernel vouches for.
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
    /// A name that a frontend's own authentication vouches for (a TLS certificate's subject).
    Name(&'a str),
    /// A user and the password that it gave. Whoever keeps the clients compares it.
    User {
        /// The client's name.
        name: &'a str,
        /// The password.
        password: &'a [u8],
    },
    /// A client by the operator's name for it, where the configuration says who it is: a guest, by its channel.
    Client(&'a str),
}

impl core::fmt::Debug for Identity<'_> {
    /// Passwords are not shown.
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

/// What a client may have at the same time. Pages are limited by the store's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, over all frontends.
    pub connections_max: u32,
    /// Operations under way, over all its connections.
    pub operations_max: u32,
    /// Bytes of values that the frontends hold for operations under way.
    pub bytes_max: u64,
}

/// A connection that was let in. Whoever got it calls [`Access::leave`] once when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is.
    pub client: ClientId,
    /// What it may have.
    pub limits: Limits,
}

/// Why a connection was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Nobody of this name may use the store.
    Unknown,
    /// The client has as many connections as it may have.
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
    /// Lets a connection in, and counts it.
    ///
    /// # Errors
    /// [`Denied`]: the frontend closes the connection.
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied>;

    /// A connection that [`Self::admit`] let in has ended.
    fn leave(&self, client: ClientId);

    /// A peer did not prove who it is, otherwise than by a password that [`Self::admit`] was given.
    fn authentication_failed(&self) {}

    /// Tells `tell` by what name the operator knows a client, for lines in the log; not, if it has none.
    fn name(&self, client: ClientId, tell: &mut dyn FnMut(&str)) {
        let _ = (client, tell);
    }

    /// The secret that a host must prove to know (DH-HMAC-CHAP), written to `secret`; its length.
    /// `None` when the host need not authenticate.
    fn host_secret(&self, nqn: &str, secret: &mut [u8; 64]) -> Option<usize>;
}
