//! What the daemon measures at one moment: the store, its clients, disks and lending.

use spillway_types::Statistics;

use crate::command::CommandSample;
use crate::connections::ConnectionSample;
use crate::guests::{SectionsSample, VmSample};
use crate::info::BuildSample;
use crate::policy::{PolicySample, RefusedSample};
use crate::process::ProcessSample;
use crate::resp::RespSample;

/// The whole daemon at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The daemon's program.
    pub build: BuildSample,
    /// Its process, if the kernel reports it.
    pub process: Option<ProcessSample>,
    /// The store.
    pub store: StoreSample,
    /// The policy that sets targets.
    pub policy: PolicySample,
    /// Refused connections and data.
    pub refused: RefusedSample,
    /// The connections of each front end.
    pub connections: Vec<ConnectionSample>,
    /// The commands of each front end.
    pub commands: Vec<CommandSample>,
    /// Each client.
    pub clients: Vec<ClientSample>,
    /// Each paged program of this host; its counters are those of its local frames.
    pub programs: Vec<ProgramSample>,
    /// Each tmem disk.
    pub disks: Vec<DiskSample>,
    /// The RESP front end, if it has a socket.
    pub resp: Option<RespSample>,
    /// Lending, if it is on.
    pub lend: Option<LendSample>,
    /// Each other host.
    pub lend_peers: Vec<LendPeerSample>,
    /// Each borrowed device.
    pub lend_devices: Vec<LendDeviceSample>,
    /// The section pool, if there are guests.
    pub sections: Option<SectionsSample>,
    /// Each guest.
    pub vms: Vec<VmSample>,
}

/// Lending at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct LendSample {
    /// Whether this host borrows.
    pub is_borrower: bool,
    /// Whether this host lends.
    pub is_lender: bool,
    /// Whether the helper is there and answers; none if this host needs none.
    pub is_helper_up: Option<bool>,
    /// All memory of the host, bytes.
    pub memory_bytes: u64,
    /// Of that, in use.
    pub used_bytes: u64,
    /// Swap space in use, bytes.
    pub swap_used_bytes: u64,
    /// Memory that it would lend now, bytes.
    pub spare_bytes: u64,
    /// Bytes in use of the memory that it has lent.
    pub lent_used_bytes: u64,
}

/// Another host, as this host sees it.
#[derive(Clone, Debug, Default)]
pub struct LendPeerSample {
    /// Its name.
    pub name: String,
    /// Memory that it would lend, as it last reported, bytes.
    pub spare_bytes: u64,
    /// Memory that it has borrowed from this host, bytes.
    pub lent_bytes: u64,
    /// Memory that this host has borrowed from it, bytes.
    pub borrowed_bytes: u64,
    /// Its health: `ok`, `slow`, `unreachable`, `refused` or `unknown`.
    pub health: String,
    /// How long it has had this health, seconds.
    pub health_s: u64,
}

/// A borrowed device at one moment.
#[derive(Clone, Debug, Default)]
pub struct LendDeviceSample {
    /// Its number.
    pub device: u32,
    /// Its length, bytes.
    pub bytes: u64,
    /// Bytes of the device in use.
    pub used_bytes: u64,
    /// Slabs with two reachable copies, with one, with copies that are all unreachable, and without a copy.
    pub slabs: [u64; 4],
    /// Pages served from the second copy because the first failed.
    pub fail_overs: u64,
    /// Pages of which no copy could be read or written.
    pub errors: u64,
    /// Pages that wait for a last copy whose lender does not answer.
    pub waiting_pages: u64,
    /// Pages that have waited for such a copy.
    pub waits: u64,
    /// Pages that were asked of the second copy too, because the first took longer than usual.
    pub hedged_pages: u64,
    /// Pages that one copy lacks, because its holder missed their last write.
    pub behind_pages: u64,
    /// Pages that were copied again to such a copy.
    pub mended_pages: u64,
    /// The longest time that a batch of requests took, microseconds.
    pub longest_stall_us: u64,
}

/// The store at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreSample {
    /// Most bytes that it may take.
    pub capacity_bytes: u64,
    /// Bytes that it takes, index included.
    pub memory_bytes: u64,
    /// Bytes of long values in flight.
    pub in_flight_bytes: u64,
    /// Bytes of free frames, a part of the store's memory.
    pub free_frame_bytes: u64,
    /// Bytes of pages in files.
    pub disk_bytes: u64,
    /// The disk tier, if the store has a disk.
    pub disk: Option<StoreDiskSample>,
    /// Pages whose words are all equal, which take no frame.
    pub same_filled_pages: u64,
    /// Pages that are packed.
    pub compressed_pages: u64,
    /// Whether pages are packed when memory is low.
    pub is_compressing: bool,
    /// Memory that equal values share, if sharing is on.
    pub sharing: Option<SharingSample>,
    /// Pools.
    pub pools: u64,
    /// Block devices.
    pub blocks: u64,
    /// Whether memory is locked against paging.
    pub memory_locked: bool,
    /// Starts of the daemon that took over the store.
    pub restarts: u64,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
}

/// Memory that equal values share at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharingSample {
    /// Values that share their memory with others.
    pub values: u64,
    /// Bytes saved by sharing.
    pub saved_bytes: u64,
    /// Values for which an equal one was found after they had arrived.
    pub merged_values: u64,
    /// Values that were replaced while others shared their memory.
    pub unshared_values: u64,
}

/// The store's disk at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreDiskSample {
    /// Most pages that it may have.
    pub capacity_pages: u64,
    /// Pages read.
    pub read_pages: u64,
    /// Pages written.
    pub written_pages: u64,
    /// Pages that it refused.
    pub refused_pages: u64,
    /// Reads that failed or took too long.
    pub failed_reads: u64,
    /// Reads that returned other bytes than were written.
    pub corrupt_reads: u64,
    /// Whether it accepts no pages.
    pub has_trouble: bool,
}

/// A client at one moment.
#[derive(Clone, Debug, Default)]
pub struct ClientSample {
    /// Its name.
    pub name: String,
    /// Its counters.
    pub statistics: Statistics,
    /// Its connections.
    pub connections: u32,
    /// Bytes of its long values in flight.
    pub in_flight_bytes: u64,
    /// The operator's cap, pages; `u64::MAX` means no cap.
    pub cap_pages: u64,
    /// Pages that the policy always leaves to it.
    pub floor_pages: u64,
    /// The weight of its waiting time; 1 by default.
    pub weight: u32,
}

/// A paged program.
#[derive(Clone, Debug, Default)]
pub struct ProgramSample {
    /// Its own name, without its process id.
    pub program: String,
    /// Which of the running programs of this name, from 1.
    pub number: u32,
    /// Its counters.
    pub statistics: Statistics,
}

/// A tmem disk at one moment, in blocks of a page, except the errors.
#[derive(Clone, Debug, Default)]
pub struct DiskSample {
    /// Its name.
    pub name: String,
    /// Read from the store.
    pub store_reads: u64,
    /// Read from the backing file.
    pub file_reads: u64,
    /// Read where nothing was written.
    pub zero_reads: u64,
    /// Written to the store.
    pub store_writes: u64,
    /// Written to the backing file.
    pub file_writes: u64,
    /// Puts that the store refused.
    pub refused: u64,
    /// Discarded by the guest.
    pub discarded: u64,
    /// Moved from the store to the backing file.
    pub demoted: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Connections that were closed because the disk had a guest.
    pub refused_guests: u64,
    /// In the store, written ten minutes ago or earlier and not read since.
    pub unread: u64,
    /// Whether a guest uses it.
    pub is_attached: bool,
}
