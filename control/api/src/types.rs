//! What goes over the wire, as JSON.

use serde::{Deserialize, Serialize};

pub use crate::types_lend::{
    BorrowedLoan, LendBorrow, LendDevice, LendMemory, LendPeer, LendStatus, LentLoan,
};
pub use crate::types_vm::{
    VmAgent, VmArgs, VmAuto, VmList, VmOutcome, VmResize, VmSections, VmStatus,
};

/// The media type of an exported client.
pub const STREAM_TYPE: &str = "application/vnd.spillway.client";
/// The media type of a [`Problem`] (RFC 9457).
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// What the daemon is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Version {
    /// Version of the daemon.
    pub version: String,
    /// The commit that it was built from; null where that was not known.
    #[serde(default)]
    pub commit: Option<String>,
    /// Version of this interface.
    pub api: u32,
    /// Process id of the daemon.
    pub pid: u32,
}

/// Whether the daemon can serve.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always true in an answer: a daemon that can't serve does not answer.
    pub serving: bool,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// How often it was started again with its store kept.
    pub restarts: u64,
    /// Whether its memory is locked against paging.
    pub memory_locked: bool,
    /// Who keeps the store's memory when the daemon is killed: `systemd`, `keeper` or `nobody`.
    pub kept_by: String,
}

/// The store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreStatus {
    /// Most bytes of memory that it may take.
    pub capacity_bytes: u64,
    /// Local frames that programs are given together, pages; null where they are only counted.
    pub program_pages: Option<u64>,
    /// Bytes that it takes: index, what is set aside for block devices and what has come of values on their way included.
    pub memory_bytes: u64,
    /// Bytes of values of more than a page that are on their way, to the store or from it, in whole pages.
    pub in_flight_bytes: u64,
    /// Of these, bytes that are free or only set aside.
    pub free_frame_bytes: u64,
    /// Bytes of pages in the disk tier.
    pub disk_bytes: u64,
    /// More about it; null where there is none.
    pub disk: Option<StoreDisk>,
    /// Pages that are one word all over and take no memory.
    pub same_filled_pages: u64,
    /// Pages that are packed.
    pub compressed_pages: u64,
    /// Memory that equal values share; null where `store.dedup` is off.
    pub sharing: Option<StoreSharing>,
}

/// Memory that equal values share. The first two are of the last whole look at the store, which begins again when it has ended
/// and takes a second for some 4,000 values; the others only grow.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreSharing {
    /// Values, and pages of values longer than a page, that share their memory with others.
    pub values: u64,
    /// Bytes that they would take beyond this if each had its own.
    pub saved_bytes: u64,
    /// Values for which an equal one was found after they had arrived.
    pub merged_values: u64,
    /// Values that were replaced while others shared their memory.
    pub unshared_values: u64,
}

/// The disk tier. Its counters begin with the daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreDisk {
    /// Most bytes of pages that it may have.
    pub capacity_bytes: u64,
    /// Bytes of pages read.
    pub read_bytes: u64,
    /// Bytes of pages written.
    pub written_bytes: u64,
    /// Pages that it did not take when it failed or was full.
    pub refused_pages: u64,
    /// Reads that failed or took too long.
    pub failed_reads: u64,
    /// Reads that gave other bytes than had been written, each of which was answered with an error.
    pub corrupt_reads: u64,
    /// Why it takes no pages; null when it does.
    pub trouble: Option<String>,
}

/// Counters of a client. They only grow, but for the last three.
///
/// Those of a paged program say the same of its local frames: a put is a page that wants a frame, a refused one a page that
/// had left for want of frames, a get a fault, evicted pages those that left.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Statistics {
    /// Puts asked for.
    pub puts: u64,
    /// Puts that stored their value.
    pub puts_stored: u64,
    /// Puts refused at the target.
    pub puts_refused_at_target: u64,
    /// Puts refused because the store was full.
    pub puts_refused_node_full: u64,
    /// Puts refused for another reason.
    pub puts_refused_other: u64,
    /// Gets asked for.
    pub gets: u64,
    /// Gets that found a value.
    pub hits: u64,
    /// Gets that found none.
    pub misses: u64,
    /// Pages freed by flushes, pool destruction and failed overwrites.
    pub flushed_pages: u64,
    /// Ephemeral pages dropped under pressure.
    pub evicted_pages: u64,
    /// Pages held now.
    pub used_pages: u64,
    /// Pages that may be held; null is no limit.
    pub target_pages: Option<u64>,
    /// Pages set aside for block devices.
    pub reserved_pages: u64,
}

/// What happened, sample by sample, oldest first: each array has a value for each sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct History {
    /// When the daemon started, milliseconds since 1970. Samples are numbered anew by another run.
    pub run_ms: u64,
    /// Milliseconds between two samples, from now on.
    pub interval_ms: u64,
    /// Most bytes of memory that the store may take.
    pub capacity_bytes: u64,
    /// Number of the last sample here; what was asked for when there is none.
    pub last: u64,
    /// Number of the newest sample that there is; 0 when there is none.
    pub newest: u64,
    /// When each was taken, milliseconds since 1970 by the clock as it was when the daemon started.
    pub at_ms: Vec<u64>,
    /// Milliseconds since the sample before; 0 for the first of a run.
    pub elapsed_ms: Vec<u64>,
    /// The store.
    pub store: StoreHistory,
    /// Clients. A name comes twice when a client was removed and another one of that name came.
    pub clients: Vec<ClientHistory>,
}

/// The store, sample by sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreHistory {
    /// Pages that there are for clients as pages are packed then, those that they hold included.
    pub total_pages: Vec<u64>,
    /// Bytes that the store takes, index and what is set aside for block devices included.
    pub memory_bytes: Vec<u64>,
    /// Of these, bytes that are free or only set aside.
    pub free_frame_bytes: Vec<u64>,
    /// Bytes of pages in the disk tier.
    pub disk_bytes: Vec<u64>,
    /// Pages that are one word all over and take no memory.
    pub same_filled_pages: Vec<u64>,
    /// Pages that are packed.
    pub compressed_pages: Vec<u64>,
}

/// A client, sample by sample, from the first that it is in to the last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClientHistory {
    /// Its name.
    pub name: String,
    /// Whether it is a paged program, whose pages are local frames and not the store's.
    pub program: bool,
    /// The place of its first sample among those of the answer, from 0.
    pub first: usize,
    /// Pages held.
    pub used_pages: Vec<u64>,
    /// Pages that might be held; null is no limit.
    pub target_pages: Vec<Option<u64>>,
    /// Puts asked for since the sample before.
    pub puts: Vec<u32>,
    /// Of these, refused at the target.
    pub refused_at_target: Vec<u32>,
    /// Of these, refused because the store was full.
    pub refused_node_full: Vec<u32>,
    /// Gets since the sample before that found a value.
    pub hits: Vec<u32>,
    /// Gets since the sample before that found none.
    pub misses: Vec<u32>,
}

/// By what a client is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub enum Identity {
    /// A local user, by number.
    Uid(u32),
    /// A local group, by number.
    Gid(u32),
    /// A host, by its NVMe Qualified Name.
    Nqn(String),
    /// A name that a certificate or the like vouches for.
    Name(String),
    /// Nobody connects as it: it is known by its disks, under its own name.
    Disk(String),
    /// Whoever gives its password, under its own name.
    Password(String),
    /// A paged program of this host, by its supervisor's process: its pages are local frames, not the store's.
    Program(i32),
}

/// A client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Client {
    /// Its name.
    pub name: String,
    /// By what it is known.
    pub identity: Identity,
    /// `configured`: the file names it; `added`: by this interface; `unnamed`: by nobody, it goes
    /// when it has been away for a while.
    pub origin: String,
    /// Connections that it has.
    pub connections: u32,
    /// Most connections.
    pub connections_max: u32,
    /// Most operations under way.
    pub operations_max: u32,
    /// Most bytes of values of operations under way.
    pub bytes_max: u64,
    /// Bytes of its values of more than a page that are on their way, in whole pages. Those that it puts count among its
    /// used pages.
    #[serde(default)]
    pub in_flight_bytes: u64,
    /// The most that the operator lets it hold, pages; null is no limit. Its target is at most that.
    pub cap_pages: Option<u64>,
    /// Pages that it is left at any time: by the policy utility, and under any policy if it is a program.
    pub floor_pages: u64,
    /// What its waiting counts beside that of others, and its share, for the policy utility.
    pub weight: u32,
    /// Its sharing domain.
    pub domain: Option<u32>,
    /// UUIDs of the shared pools that it may join.
    pub shared: Vec<String>,
    /// Whether its puts are refused because it was exported.
    pub frozen: bool,
    /// Its counters.
    pub statistics: Statistics,
}

/// A client to be added.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct NewClient {
    /// Its name.
    pub name: String,
    /// By what it is known.
    pub identity: Identity,
    /// The secret that a host must prove to know, as `nvme gen-dhchap-key` prints it.
    pub secret: Option<String>,
    /// Pages that it may hold; no limit without it.
    pub target_pages: Option<u64>,
    /// Most connections.
    pub connections_max: Option<u32>,
    /// Most operations under way.
    pub operations_max: Option<u32>,
    /// Most bytes of values of operations under way.
    pub bytes_max: Option<u64>,
    /// Its sharing domain.
    pub domain: Option<u32>,
    /// UUIDs of the shared pools that it may join.
    #[serde(default)]
    pub shared: Vec<String>,
}

/// How targets are found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Policy {
    /// `greedy`, `static-alloc`, `reconf-static`, `smart-alloc` or `utility`.
    pub policy: String,
    /// smart-alloc: how much a target grows, of the store, and shrinks, of itself, in an interval, per
    /// cent; above 0, up to 100, with at most four decimals. Absent: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// smart-alloc: pages that a client may leave unused before its target shrinks. Absent: `p` of the
    /// store, and at least 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_pages: Option<u64>,
    /// utility: what a page costs a client that the store does not have, µs; from 10 to 1,000,000. Absent: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_us: Option<u32>,
    /// Milliseconds between two looks at the clients, 100 to 3600000. Absent when it is set: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
}

/// A policy that there is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PolicyKind {
    /// Its name.
    pub policy: String,
    /// Who gets the memory, in a few words.
    pub summary: String,
    /// What can be set of it beside the interval: members of a policy.
    pub parameters: Vec<String>,
}

/// Where the dashboard is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Dashboard {
    /// Address and port; null where the interface is not served over TCP.
    pub address: Option<String>,
    /// The file with the token that it asks for.
    pub token_file: Option<String>,
}

/// What a client may hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClientTarget {
    /// Pages; null is no limit.
    pub target_pages: Option<u64>,
    /// The most that the operator lets it hold, pages; null is no limit.
    pub cap_pages: Option<u64>,
}

/// The most that a client is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Target {
    /// Pages; null is no limit.
    pub target_pages: Option<u64>,
}

/// What is to change of a client or program. What is absent stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClientChange {
    /// The most that it may hold, pages; null is no limit, for a program none but its user's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "nullable")]
    #[cfg_attr(feature = "server", schema(value_type = Option<u64>))]
    pub cap_pages: Option<Option<u64>>,
    /// Pages that it is left at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_pages: Option<u64>,
    /// What its waiting counts beside that of others, 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Tells null, which is a value, from what is absent.
mod nullable {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(
        value: &Option<Option<u64>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.flatten().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<u64>>, D::Error> {
        Option::deserialize(deserializer).map(Some)
    }
}

/// How long a pool's values stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub enum Lifetime {
    /// Until they are flushed.
    Persistent,
    /// They may vanish at any time.
    Ephemeral,
}

/// A pool, as one client sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Pool {
    /// Its number: unique over the store.
    pub number: u32,
    /// The client's name.
    pub client: String,
    /// How long its values stay.
    pub lifetime: Lifetime,
    /// The UUID of a shared pool.
    pub uuid: Option<String>,
    /// Pages in it.
    pub pages: u64,
    /// Pages set aside for it.
    pub reserved_pages: u64,
    /// The name of the block device in it.
    pub block: Option<String>,
}

/// A pool to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct NewPool {
    /// For whom.
    pub client: String,
    /// How long its values stay.
    pub lifetime: Lifetime,
    /// The UUID of a shared pool; the client is authorised for it.
    pub uuid: Option<String>,
}

/// A block device.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Block {
    /// Its name.
    pub name: String,
    /// The client that may use it.
    pub client: String,
    /// The number of its pool: NVMe's namespace id.
    pub number: u32,
    /// Its length.
    pub bytes: u64,
    /// The length of a block.
    pub block_bytes: u32,
    /// Its UUID, new with each device.
    pub uuid: String,
    /// Connections that have it open.
    pub opened: u64,
}

/// A block device to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct NewBlock {
    /// Its name, unique over the daemon.
    pub name: String,
    /// The client that may use it.
    pub client: String,
    /// Its length, a multiple of 4096.
    pub bytes: u64,
    /// The length of a block: 512 or 4096 (default).
    pub block_bytes: Option<u32>,
    /// Whether its memory is set aside (default), so that no write is refused.
    pub reserve: Option<bool>,
}

/// How much an import brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Moved {
    /// Pools.
    pub pools: u64,
    /// Values.
    pub values: u64,
    /// Flushes.
    pub flushes: u64,
}

/// Why a request was not carried out (RFC 9457).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Problem {
    /// What kind of problem, such as `urn:spillway:no-client`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// One line that says what is wrong and what to do.
    pub detail: String,
}
