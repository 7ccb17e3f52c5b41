//! Views of the registry.

use serde::{Deserialize, Serialize};
use spillway_types::{ClientId, Limits, PoolSpec, Statistics};

use crate::settings::Who;

/// The origin of a client, which determines how long it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration file names it: it stays.
    Configured,
    /// The operator added it at run time: it stays until it is removed.
    Added,
    /// It is unnamed: it stays while it is connected, plus the grace period.
    Unnamed,
}

/// What tells a program's metrics from those of others. It has no process id: a series for each process that ever ran
/// would be without bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSeries {
    /// The program's own name.
    pub program: String,
    /// From 1: the lowest that no other connected program of this name has.
    pub number: u32,
}

/// A client.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Its name.
    pub name: String,
    /// Its id in the store.
    pub id: ClientId,
    /// How it is identified.
    pub who: Who,
    /// Its origin.
    pub origin: Origin,
    /// Connections that it has.
    pub connections: u32,
    /// Bytes of its long values in flight.
    pub in_flight_bytes: u64,
    /// Its limits.
    pub limits: Limits,
    /// Its cap, pages; its target is at most that.
    pub cap_pages: u64,
    /// Its floor, pages.
    pub floor_pages: u64,
    /// Its weight.
    pub weight: u32,
    /// Its sharing domain.
    pub domain: Option<u32>,
    /// Shared pools that it may join.
    pub shared: Vec<u128>,
    /// Whether its pools are being imported: until the end its target is its cap.
    pub importing: bool,
    /// Whether its pools came by an import, and nobody has connected since.
    pub arrived: bool,
    /// Whether its puts are refused because it was exported.
    pub frozen: bool,
    /// Whether another daemon has all that it stores.
    pub moved: bool,
    /// Its counters.
    pub statistics: Statistics,
    /// For a program: the part of its budget that its evictor keeps free, in addition to its used
    /// pages.
    pub reserve_pages: u64,
    /// For a program: what its metrics are called.
    pub series: Option<ProgramSeries>,
}

/// A pool, as one client sees it.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// Its number: unique over the store, from 1.
    pub number: u32,
    /// The client's name.
    pub client: String,
    /// Its kind.
    pub spec: PoolSpec,
    /// Pages in it, of all its members.
    pub pages: u64,
    /// Pages reserved for it.
    pub reserved_pages: u64,
    /// The name of the block device in it.
    pub block: Option<String>,
}

/// A block device.
#[derive(Clone, Debug)]
pub struct BlockView {
    /// Its name.
    pub name: String,
    /// The name of the client that may use it.
    pub client: String,
    /// The number of its pool.
    pub number: u32,
    /// Its length, bytes.
    pub bytes: u64,
    /// The length of a block, bytes.
    pub block_bytes: u32,
    /// Its UUID, new with each device.
    pub uuid: u128,
    /// Connections that have it open.
    pub opened: usize,
}

/// Refused peers since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// No client was configured for the user, host or certificate.
    pub unknown: u64,
    /// The client had its maximum number of connections.
    pub at_limit: u64,
    /// A secret, certificate, password or token was wrong.
    pub authentications: u64,
    /// The peer did not complete the handshake in time.
    pub late_handshakes: u64,
}
