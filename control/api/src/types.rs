//! Requests and responses, as JSON.

use serde::{Deserialize, Serialize};

pub use crate::types_disk::{DiskEmptied, DiskStatistics, DiskStatus};
pub use crate::types_lend::{
    BorrowedLoan, LendBorrow, LendDevice, LendMemory, LendPeer, LendStatus, LentLoan,
};
pub use crate::types_problem::{
    HAS_MOVED, MOVING, NO_CLIENT, PROBLEM_TYPE, Problem, STREAM, TOO_MANY_FLUSHES,
};
pub use crate::types_vm::{
    VmAgent, VmArgs, VmAuto, VmList, VmOutcome, VmResize, VmSections, VmStatus,
};

/// The media type of an exported client.
pub const STREAM_TYPE: &str = "application/vnd.spillway.client";
/// The daemon's version and process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Version {
    /// Version of the daemon.
    pub version: String,
    /// The commit from which it was built; null if unknown.
    #[serde(default)]
    pub commit: Option<String>,
    /// Version of this interface.
    pub api: u32,
    /// Name of the host, as its kernel has it.
    #[serde(default)]
    pub host: String,
    /// Process id of the daemon.
    pub pid: u32,
}

/// What a reload of the configuration changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Reload {
    /// Settings whose files have new contents, which new connections use.
    pub renewed: Vec<String>,
    /// A line for each change that needs a restart, and for each file with a secret that every user can read.
    pub warnings: Vec<String>,
}

/// Whether the daemon can serve.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always true in an answer: a daemon that can't serve does not answer.
    pub serving: bool,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// How often it was restarted with a kept store.
    pub restarts: u64,
    /// Whether its memory is locked against paging.
    pub memory_locked: bool,
    /// What keeps the store's memory when the daemon is killed: `systemd`, `keeper` or `nobody`.
    pub kept_by: String,
}

/// The store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreStatus {
    /// Most bytes of memory that it may take.
    pub capacity_bytes: u64,
    /// Local frames of all programs together, pages; null if they are only counted.
    pub program_pages: Option<u64>,
    /// Bytes that it takes, including the index, memory reserved for block devices, and received parts of values in
    /// flight.
    pub memory_bytes: u64,
    /// Bytes of values longer than a page in flight to or from the store, in whole pages.
    pub in_flight_bytes: u64,
    /// Of these, bytes that are free or only reserved.
    pub free_frame_bytes: u64,
    /// Bytes of pages in the disk tier.
    pub disk_bytes: u64,
    /// More about the disk tier; null if there is none.
    pub disk: Option<StoreDisk>,
    /// Pages whose words are all equal, which take no memory.
    pub same_filled_pages: u64,
    /// Pages that are packed.
    pub compressed_pages: u64,
    /// Memory that equal values share; null if `store.dedup` is off.
    pub sharing: Option<StoreSharing>,
}

/// Memory that equal values share. The first two are from the last complete pass over the store. Passes repeat, at some
/// 4,000 values a second. The others only grow.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreSharing {
    /// Values, and pages of values longer than a page, that share their memory with others.
    pub values: u64,
    /// Bytes that they would take in addition if each had its own memory.
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
    /// Most bytes of pages that it may hold.
    pub capacity_bytes: u64,
    /// Bytes of pages read.
    pub read_bytes: u64,
    /// Bytes of pages written.
    pub written_bytes: u64,
    /// Pages that it did not accept because it failed or was full.
    pub refused_pages: u64,
    /// Reads that failed or took too long.
    pub failed_reads: u64,
    /// Reads that returned other bytes than were written. Each was answered with an error.
    pub corrupt_reads: u64,
    /// Why it accepts no pages; null if it does.
    pub trouble: Option<String>,
    /// The last read or write that failed, took too long or returned other bytes than were written, and why; null if there
    /// was none. It stays when the disk works again.
    #[serde(default)]
    pub last_error: Option<String>,
    /// Seconds since that; null if there was none.
    #[serde(default)]
    pub last_error_s: Option<u64>,
}

/// Counters of a client. They only grow, except the last three.
///
/// For a paged program they count local frames: a put is a page that needs a frame, a refused put a page that was
/// evicted for lack of frames, a get a fault, and evicted pages are pages that left.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Statistics {
    /// Puts requested.
    pub puts: u64,
    /// Puts that stored their value.
    pub puts_stored: u64,
    /// Puts refused at the target.
    pub puts_refused_at_target: u64,
    /// Puts refused because the store was full.
    pub puts_refused_node_full: u64,
    /// Puts refused for another reason.
    pub puts_refused_other: u64,
    /// Gets requested.
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
    /// Pages reserved for block devices.
    pub reserved_pages: u64,
}

/// The history, sample by sample, oldest first: each array has a value for each sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct History {
    /// When the daemon started, milliseconds since 1970. The numbers of samples start again with
    /// each run.
    pub run_ms: u64,
    /// Milliseconds between two samples, from now on.
    pub interval_ms: u64,
    /// Most bytes of memory that the store may take.
    pub capacity_bytes: u64,
    /// Number of the last sample here; the requested number if there is none.
    pub last: u64,
    /// Number of the newest sample; 0 if there is none.
    pub newest: u64,
    /// When each was taken, milliseconds since 1970, by the clock at the daemon's start.
    pub at_ms: Vec<u64>,
    /// Milliseconds since the previous sample; 0 for the first of a run.
    pub elapsed_ms: Vec<u64>,
    /// The store.
    pub store: StoreHistory,
    /// Clients. A name appears twice if a client was removed and another one got its name.
    pub clients: Vec<ClientHistory>,
}

/// The store, sample by sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct StoreHistory {
    /// Pages available to clients at the present packing, including those that they hold.
    pub total_pages: Vec<u64>,
    /// Bytes that the store takes, including the index and memory reserved for block devices.
    pub memory_bytes: Vec<u64>,
    /// Of these, bytes that are free or only reserved.
    pub free_frame_bytes: Vec<u64>,
    /// Bytes of pages in the disk tier.
    pub disk_bytes: Vec<u64>,
    /// Pages whose words are all equal, which take no memory.
    pub same_filled_pages: Vec<u64>,
    /// Pages that are packed.
    pub compressed_pages: Vec<u64>,
}

/// A client, sample by sample, from its first to its last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClientHistory {
    /// Its name.
    pub name: String,
    /// Whether it is a paged program, whose pages are local frames and not the store's.
    pub program: bool,
    /// The index of its first sample in this answer, from 0.
    pub first: usize,
    /// Pages held.
    pub used_pages: Vec<u64>,
    /// Pages that may be held; null means no limit.
    pub target_pages: Vec<Option<u64>>,
    /// Puts requested since the previous sample.
    pub puts: Vec<u32>,
    /// Of these, refused at the target.
    pub refused_at_target: Vec<u32>,
    /// Of these, refused because the store was full.
    pub refused_node_full: Vec<u32>,
    /// Gets since the previous sample that found a value.
    pub hits: Vec<u32>,
    /// Gets since the previous sample that found none.
    pub misses: Vec<u32>,
}

/// How a client is identified.
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
    /// A name from a certificate or a similar credential.
    Name(String),
    /// No connection has this identity: the client is known by its disks, under its own name.
    Disk(String),
    /// A connection that sends its password, under its own name.
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
    /// How it is identified.
    pub identity: Identity,
    /// `configured`: named in the file; `added`: added through this interface; `unnamed`: not
    /// named, and removed some time after its last connection.
    pub origin: String,
    /// Connections that it has.
    pub connections: u32,
    /// Most connections.
    pub connections_max: u32,
    /// Most operations in flight.
    pub operations_max: u32,
    /// Most bytes of values of operations in flight.
    pub bytes_max: u64,
    /// Bytes of its values longer than a page in flight, in whole pages. Those of puts count as used pages.
    #[serde(default)]
    pub in_flight_bytes: u64,
    /// Its cap, the most that it may hold, pages; null means no limit. Its target is at most that.
    pub cap_pages: Option<u64>,
    /// Lower bound of its target, pages: under the policy utility, and for a program under any policy.
    pub floor_pages: u64,
    /// For the policy utility: its weight, which scales how much its waiting counts and its share.
    pub weight: u32,
    /// Its sharing domain.
    pub domain: Option<u32>,
    /// UUIDs of the shared pools that it may join.
    pub shared: Vec<String>,
    /// Whether its pools came by an import, and nobody has connected since.
    #[serde(default)]
    pub arrived: bool,
    /// Whether its puts are refused because it was exported.
    pub frozen: bool,
    /// Whether another daemon has all that it stores, so that it can be removed here.
    #[serde(default)]
    pub moved: bool,
    /// For a program: the label `number` of its metrics, whose label `program` is its name without the process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_number: Option<u32>,
    /// Its counters.
    pub statistics: Statistics,
}

/// A client to add.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct NewClient {
    /// Its name.
    pub name: String,
    /// How it is identified.
    pub identity: Identity,
    /// The secret by which a host authenticates, in the form that `nvme gen-dhchap-key` prints.
    pub secret: Option<String>,
    /// Pages that it may hold. Absent: no limit.
    pub target_pages: Option<u64>,
    /// Most connections.
    pub connections_max: Option<u32>,
    /// Most operations in flight.
    pub operations_max: Option<u32>,
    /// Most bytes of values of operations in flight.
    pub bytes_max: Option<u64>,
    /// Its sharing domain.
    pub domain: Option<u32>,
    /// UUIDs of the shared pools that it may join.
    #[serde(default)]
    pub shared: Vec<String>,
}

/// How targets are computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Policy {
    /// `greedy`, `static-alloc`, `reconf-static`, `smart-alloc` or `utility`.
    pub policy: String,
    /// smart-alloc: the step of an interval, per cent; above 0, up to 100, with at most four decimals.
    /// A target grows by this part of the store and shrinks by this part of itself. Absent: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// smart-alloc: pages that a client may leave unused before its target shrinks. Absent: `p` of the
    /// store, and at least 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_pages: Option<u64>,
    /// utility: what a miss costs a client, µs; from 10 to 1,000,000. Absent: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_us: Option<u32>,
    /// utility: the part of the store that is shared evenly among the clients that can use it, per cent; up to
    /// 100. The rest goes where it saves the most waiting. Absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness_percent: Option<u32>,
    /// Milliseconds between two samples of the clients, 100 to 3600000. Absent in a request:
    /// unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
}

/// An available policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct PolicyKind {
    /// Its name.
    pub policy: String,
    /// How it divides memory, in a few words.
    pub summary: String,
    /// Its parameters beside the interval: members of a policy.
    pub parameters: Vec<String>,
}

/// The dashboard's address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Dashboard {
    /// Address and port; null if the interface is not served over TCP.
    pub address: Option<String>,
    /// Whether it is https.
    #[serde(default)]
    pub tls: bool,
    /// The file with the token that it requires.
    pub token_file: Option<String>,
}

/// A client's present target and cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClientTarget {
    /// Pages; null is no limit.
    pub target_pages: Option<u64>,
    /// Its cap, pages; null means no limit.
    pub cap_pages: Option<u64>,
}

/// The cap of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Target {
    /// Pages; null is no limit.
    pub target_pages: Option<u64>,
}

/// A change of a client or program. Absent members stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct ClientChange {
    /// Its cap, pages. Null means no limit; for a program, only its user's limit.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "nullable")]
    #[cfg_attr(feature = "server", schema(value_type = Option<u64>))]
    pub cap_pages: Option<Option<u64>>,
    /// Lower bound of its target, pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_pages: Option<u64>,
    /// Its weight, 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Distinguishes null, which is a value, from an absent member.
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
    /// The store may drop them at any time.
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
    /// Pages reserved for it.
    pub reserved_pages: u64,
    /// The name of the block device in it.
    pub block: Option<String>,
    /// The device's UUID, which names it at a host: /dev/disk/by-id/nvme-uuid.UUID.
    pub block_uuid: Option<String>,
}

/// A pool to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct NewPool {
    /// The client that owns it.
    pub client: String,
    /// How long its values stay.
    pub lifetime: Lifetime,
    /// The UUID of a shared pool, for which the client is authorised.
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

/// A block device to create.
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
    /// Whether its memory is reserved (default), so that no write is refused.
    pub reserve: Option<bool>,
}

/// The results of an import.
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
