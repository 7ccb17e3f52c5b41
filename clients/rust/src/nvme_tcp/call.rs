//! What a session can ask of a target, and what may be done when the answer does not come.
//!
//! A connection that ends takes the answers with it: a command that was sent may have been carried
//! out or not. Whether it may then be sent again depends on what it does:
//!
//! | call | sent again | why |
//! |---|---|---|
//! | retrieve, exists, list, statistics | yes | they change nothing (a retrieve from a private ephemeral pool consumes, but there any value may vanish at any time) |
//! | store, delete, flush object | in private pools | the outcome of doing it twice is that of doing it once, provided nothing came between. Within a session nothing does: a call on a key waits for the writes of that key before it, and the target ends the old association before it answers the Connect of the new one, so no late command of the old one follows. |
//! | the same in shared pools | no | another member may have written between the two times, and would be undone |
//! | take (exclusive get) | no | the first time may have removed the value, and the second would report a miss for a value that was acknowledged |
//! | make a pool | shared ones only | twice would leave a private pool that nobody knows; joining twice is joining once |
//! | destroy or leave a pool | yes | gone is gone: the second time may answer that there is no such pool |
//!
//! A write that fails for good leaves its key in doubt: the target may hold the new value, the old
//! one or none, and no later get may find the old one (rule P2 of tmem). See `doubt`.

use spillway_types::{Key, PoolSpec};

use spillway_wire::nvme::Status;

use super::pipe::Closed;

/// Names a pool of an association: its place in the association's table, and which of the pools
/// that were ever there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRef {
    pub(super) place: u16,
    pub(super) serial: u32,
}

/// One thing to ask. The value of a store, and the room for what comes back, are handed over
/// separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Store a value of so many bytes.
    Store(PoolRef, Key, u32),
    /// Copy a value into so many bytes of room.
    Retrieve(PoolRef, Key, u32),
    /// Retrieve, and delete if it fitted.
    Take(PoolRef, Key, u32),
    /// Remove one value.
    Delete(PoolRef, Key),
    /// Ask whether a value is there.
    Exists(PoolRef, Key),
    /// List the keys from this one on, or from the first, into so many bytes of room.
    List(PoolRef, Option<Key>, u32),
    /// Remove all values of an object.
    FlushObject(PoolRef, u64),
    /// Make a pool, or join the shared one.
    Create(PoolSpec),
    /// Join a shared pool that is there.
    Join(u128),
    /// Destroy a private pool, leave a shared one.
    Destroy(PoolRef),
    /// Read the client's pools into so many bytes of room.
    Pools(u32),
    /// Read the client's counters into so many bytes of room.
    Statistics(u32),
}

/// What happens to a call whose connection ended after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// It is sent again.
    Always,
    /// It is sent again unless its pool is shared.
    Private,
    /// It fails.
    Never,
}

impl Call {
    /// The pool it is about.
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

    /// Whether it goes to the admin queue.
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

    /// What a call touches, for telling whether two of them must keep their order.
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

    /// Whether this call must wait until `earlier` is answered: they touch the same value, and one
    /// of them writes it.
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

/// `index` none is the whole object.
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
        /// Which association answered: see
        /// [`Association::generation`](super::association::Association::generation).
        generation: u32,
    },
    /// It was not answered within its time, and why not.
    Unreachable(Trouble),
    /// The connection ended before the answer came, and the call must not be made twice: it may
    /// have been carried out or not.
    Unknown(Trouble),
    /// The pool is gone for good: the target was restarted without it, or more writes failed than
    /// could be remembered.
    PoolLost,
}

impl From<spillway_wire::Error> for Trouble {
    fn from(error: spillway_wire::Error) -> Self {
        Self::Malformed(error)
    }
}

/// Why an association ended, or could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was never tried.
    NotTried,
    /// A pipe ended or could not be made.
    Closed(Closed),
    /// A command was not answered within its time.
    Silent,
    /// The target broke the protocol; the text says how.
    Protocol(&'static str),
    /// The target sent what is no PDU.
    Malformed(spillway_wire::Error),
    /// The target says that this side broke the protocol, with this fatal error status.
    Terminated(u16),
    /// The target answered this command of the connection's making with this status.
    Refused(&'static str, u16),
    /// One side did not prove that it knows the secret; the text says which.
    Authentication(&'static str),
}

impl Trouble {
    /// Whether another attempt can't help: the target is there and says no.
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
