//! The calls that a session can make to a target, and whether each can be retried.
//!
//! When a connection ends before an answer, the command may have been executed or not. Whether it can be sent again
//! depends on what it does:
//!
//! | call | sent again | why |
//! |---|---|---|
//! | retrieve, exists, list, statistics | yes | they change nothing (a retrieve from a private ephemeral pool removes the value, but there any value may vanish at any time) |
//! | store, delete, flush object | in private pools | executing it twice has the outcome of once, unless another command comes between. Within a session none does: a call on a key waits for earlier writes of that key. The target ends the old association before it answers the Connect of the new one, so no late command of the old one follows. |
//! | the same in shared pools | no | another member may have written in between, and the retry would undo that |
//! | take (exclusive get) | no | the first command may have removed the value, and the second would report a miss for an acknowledged value |
//! | create a pool | shared ones only | a retry would leave an unknown private pool; joining twice is joining once |
//! | destroy or leave a pool | yes | the second command may answer that there is no such pool |
//!
//! A write that fails for good leaves its key in doubt: the target may hold the new value, the old one or none. No
//! later get may find the old one (rule P2 of tmem). See `doubt`.

use spillway_types::{Key, PoolSpec};

use spillway_wire::nvme::Status;

use super::pipe::Closed;

/// Identifies a pool of an association: its index in the table, and a count of the pools that have used this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRef {
    pub(super) place: u16,
    pub(super) serial: u32,
}

/// A call. The caller passes the value to store, and the buffer for data to receive, separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Store a value of this many bytes.
    Store(PoolRef, Key, u32),
    /// Copy a value into a buffer of this many bytes.
    Retrieve(PoolRef, Key, u32),
    /// Retrieve, and delete the value if it fits.
    Take(PoolRef, Key, u32),
    /// Remove one value.
    Delete(PoolRef, Key),
    /// Check whether a value exists.
    Exists(PoolRef, Key),
    /// List keys from this one on, or from the first, into a buffer of this many bytes.
    List(PoolRef, Option<Key>, u32),
    /// Remove all values of an object.
    FlushObject(PoolRef, u64),
    /// Create a pool, or join the shared one.
    Create(PoolSpec),
    /// Join an existing shared pool.
    Join(u128),
    /// Destroy a private pool, or leave a shared one.
    Destroy(PoolRef),
    /// Read the list of the client's pools into a buffer of this many bytes.
    Pools(u32),
    /// Read the client's counters into a buffer of this many bytes.
    Statistics(u32),
}

/// What to do with a sent call when its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Send it again.
    Always,
    /// Send it again unless its pool is shared.
    Private,
    /// Fail it.
    Never,
}

impl Call {
    /// The pool of the call.
    pub(super) const fn pool(&self) -> Option<PoolRef> {
        match *self {
            Self::Store(pool, ..)
            | Self::Retrieve(pool, ..)
            | Self::Take(pool, ..)
            | Self::Delete(pool, _)
            | Self::Exists(pool, _)
            | Self::List(pool, ..)
            | Self::FlushObject(pool, _)
            | Self::Destroy(pool) => Some(pool),
            Self::Create(_) | Self::Join(_) | Self::Pools(_) | Self::Statistics(_) => None,
        }
    }

    /// Whether it uses the admin queue.
    pub(super) const fn is_admin(&self) -> bool {
        matches!(
            self,
            Self::Create(_)
                | Self::Join(_)
                | Self::Destroy(_)
                | Self::Pools(_)
                | Self::Statistics(_)
        )
    }

    pub(super) const fn retry(&self) -> Retry {
        match self {
            Self::Retrieve(..)
            | Self::Exists(..)
            | Self::List(..)
            | Self::Join(_)
            | Self::Destroy(_)
            | Self::Pools(_)
            | Self::Statistics(_) => Retry::Always,
            Self::Store(..) | Self::Delete(..) | Self::FlushObject(..) => Retry::Private,
            Self::Create(spec) => match spec.sharing {
                spillway_types::Sharing::Shared { .. } => Retry::Always,
                spillway_types::Sharing::Private => Retry::Never,
            },
            Self::Take(..) => Retry::Never,
        }
    }

    /// The values that a call touches, to decide whether two calls must keep their order.
    const fn footprint(&self) -> Option<Footprint> {
        let (pool, object, index, writes) = match *self {
            Self::Store(pool, key, _) | Self::Take(pool, key, _) | Self::Delete(pool, key) => {
                (pool, key.object, Some(key.index), true)
            }
            Self::Retrieve(pool, key, _) | Self::Exists(pool, key) => {
                (pool, key.object, Some(key.index), false)
            }
            Self::FlushObject(pool, object) => (pool, object, None, true),
            _ => return None,
        };
        Some(Footprint { place: pool.place, object, index, writes })
    }

    /// Whether this call must wait until `earlier` is answered: both touch the same value, and one of them writes it.
    pub(super) fn must_follow(&self, earlier: &Self) -> bool {
        let (Some(mine), Some(theirs)) = (self.footprint(), earlier.footprint()) else {
            return false;
        };
        (mine.writes || theirs.writes)
            && mine.place == theirs.place
            && mine.object == theirs.object
            && (mine.index.is_none() || theirs.index.is_none() || mine.index == theirs.index)
    }
}

/// A `None` index means the whole object.
struct Footprint {
    place: u16,
    object: u64,
    index: Option<u32>,
    writes: bool,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target answered.
    Answered {
        /// Status code type (high byte) and status code (low byte); 0 is success.
        status: u16,
        /// The completion's first two words.
        result: u64,
        /// Bytes that came back.
        bytes: u32,
        /// The association that answered: see [`Association::generation`](super::association::Association::generation).
        generation: u32,
    },
    /// It was not answered in time, with the reason.
    Unreachable(Trouble),
    /// The connection ended before the answer, and the call must not be repeated: it may have been executed or not.
    Unknown(Trouble),
    /// The pool is lost: the target was restarted without it, or more writes failed than could be recorded.
    PoolLost,
}

impl From<spillway_wire::Error> for Trouble {
    fn from(error: spillway_wire::Error) -> Self {
        Self::Malformed(error)
    }
}

/// Why an association ended or could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No connection was tried yet.
    NotTried,
    /// A pipe ended or could not be made.
    Closed(Closed),
    /// A command was not answered in time.
    Silent,
    /// The target violated the protocol; the text says how.
    Protocol(&'static str),
    /// The target sent bytes that are not a PDU.
    Malformed(spillway_wire::Error),
    /// The target reports that this side violated the protocol, with this fatal error status.
    Terminated(u16),
    /// The target answered this command, which is part of connecting, with this status.
    Refused(&'static str, u16),
    /// Authentication failed; the text says how.
    Authentication(&'static str),
}

impl Trouble {
    /// Whether another attempt is pointless: the target is reachable and refuses.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Authentication(_))
    }
}

impl core::fmt::Display for Trouble {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotTried => f.write_str("no connection was tried yet"),
            Self::Closed(closed) => closed.fmt(f),
            Self::Silent => f.write_str("the target does not answer"),
            Self::Protocol(how) => write!(f, "the target breaks the protocol: {how}"),
            Self::Malformed(error) => write!(f, "the target breaks the protocol: {error}"),
            Self::Terminated(status) => {
                write!(f, "the target ended the connection with fatal error status {status}")
            }
            Self::Refused(_, status) if *status == Status::CONNECT_HOST.0 => {
                f.write_str("the target has no client of this host's name, or certificate over TLS")
            }
            Self::Refused(what, status) => {
                write!(f, "the target refuses {what} with status {status:#06x}")
            }
            Self::Authentication(how) => write!(f, "authentication failed: {how}"),
        }
    }
}
