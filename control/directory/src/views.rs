//! What the registry shows of itself.

use serde::{Deserialize, Serialize};
use spillway_types::{ClientId, Limits, PoolSpec, Statistics};

use crate::settings::Who;

/// Where a client comes from, which says how long it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration file names it: it stays.
    Configured,
    /// The operator added it while the daemon ran: it stays until it is removed.
    Added,
    /// Nobody named it: it stays while it is connected, and the grace period longer.
    Unnamed,
}

/// A client.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Its name.
    pub name: String,
    /// Its id in the store.
    pub id: ClientId,
    /// By what it is known.
    pub who: Who,
    /// Where it comes from.
    pub origin: Origin,
    /// Connections that it has.
    pub connections: u32,
    /// Bytes of its long values that are on their way.
    pub in_flight_bytes: u64,
    /// What it may have at the same time.
    pub limits: Limits,
    /// The most that the operator lets it hold, pages; its target is at most that.
    pub cap_pages: u64,
    /// Pages that the policy leaves it at any time.
    pub floor_pages: u64,
    /// What its waiting counts beside 1 for others.
    pub weight: u32,
    /// Its sharing domain.
    pub domain: Option<u32>,
    /// Shared pools that it may join.
    pub shared: Vec<u128>,
    /// Whether its pools are arriving from another daemon: until then its target is its cap.
    pub importing: bool,
    /// Whether its puts are refused while it is exported.
    pub frozen: bool,
    /// Its counters.
    pub statistics: Statistics,
    /// Of a program: what its evictor keeps free of its budget, beside the pages that it uses.
    pub reserve_pages: u64,
}

/// A pool, as one client sees it.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// Its number: unique over the store, from 1.
    pub number: u32,
    /// The client's name.
    pub client: String,
    /// What kind it is.
    pub spec: PoolSpec,
    /// Pages in it, of all its members.
    pub pages: u64,
    /// Pages that are set aside for it.
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

/// Who was not let in since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// No client was configured for the user, host or certificate.
    pub unknown: u64,
    /// The client had all the connections that it may have.
    pub at_limit: u64,
    /// A secret, certificate, password or token was wrong.
    pub authentications: u64,
}
