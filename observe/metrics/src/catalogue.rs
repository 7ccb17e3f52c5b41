//! The metrics of the store, its clients, disks and lending.

use crate::metric::{Metric, counter, gauge, pages};
use crate::sample::{
    ClientSample, DiskSample, LendDeviceSample, LendPeerSample, LendSample, ProgramSample,
    StoreSample,
};

/// Metrics of the daemon and its store.
pub(crate) const STORE: [Metric<StoreSample>; 24] = [
    gauge("spillway_store_capacity_bytes", "The most memory that the store may take.", |s| {
        Some(s.capacity_bytes)
    }),
    gauge(
        "spillway_store_memory_bytes",
        "Memory that the store takes: frames, index, and memory reserved for block devices.",
        |s| Some(s.memory_bytes),
    ),
    gauge(
        "spillway_store_in_flight_bytes",
        "Values of more than a page that are in flight to or from the store, in whole pages.",
        |s| Some(s.in_flight_bytes),
    ),
    gauge(
        "spillway_store_free_frame_bytes",
        "The part of the store's memory that is free for the next put, or reserved.",
        |s| Some(s.free_frame_bytes),
    ),
    gauge("spillway_store_disk_bytes", "Pages in the disk tier.", |s| Some(s.disk_bytes)),
    gauge("spillway_store_disk_capacity_bytes", "The most that the disk tier may hold.", |s| {
        pages(s.disk?.capacity_pages)
    }),
    counter("spillway_store_disk_read_bytes_total", "Pages read from the disk tier.", |s| {
        pages(s.disk?.read_pages)
    }),
    counter("spillway_store_disk_written_bytes_total", "Pages written to the disk tier.", |s| {
        pages(s.disk?.written_pages)
    }),
    counter(
        "spillway_store_disk_refused_bytes_total",
        "Pages that the disk tier did not take, because it failed or was full.",
        |s| pages(s.disk?.refused_pages),
    ),
    counter(
        "spillway_store_disk_failed_reads_total",
        "Reads of the disk tier that failed or took too long.",
        |s| Some(s.disk?.failed_reads),
    ),
    counter(
        "spillway_store_disk_corrupt_reads_total",
        "Reads of the disk tier that returned other bytes than were written; each was answered with an error.",
        |s| Some(s.disk?.corrupt_reads),
    ),
    gauge(
        "spillway_store_disk_trouble",
        "1 while the disk tier takes no pages, because it fails or is full, else 0.",
        |s| Some(u64::from(s.disk?.has_trouble)),
    ),
    gauge(
        "spillway_store_same_filled_bytes",
        "Pages whose words are all equal, which take no memory, at full size.",
        |s| pages(s.same_filled_pages),
    ),
    gauge("spillway_store_compressed_bytes", "Packed pages, at full size.", |s| {
        pages(s.compressed_pages)
    }),
    gauge(
        "spillway_store_compression_enabled",
        "1 if the store packs pages when memory is low (store.compress), else 0.",
        |s| Some(u64::from(s.is_compressing)),
    ),
    gauge(
        "spillway_store_shared_values",
        "Values, and pages of longer ones, that share their memory with equal ones, at the last scan of the store.",
        |s| Some(s.sharing?.values),
    ),
    gauge(
        "spillway_store_shared_saved_bytes",
        "Memory that the values of spillway_store_shared_values would take beyond what they take if each had its own.",
        |s| Some(s.sharing?.saved_bytes),
    ),
    counter(
        "spillway_store_merged_values_total",
        "Values for which an equal one was found after they had arrived.",
        |s| Some(s.sharing?.merged_values),
    ),
    counter(
        "spillway_store_unshared_values_total",
        "Values that were replaced while others shared their memory.",
        |s| Some(s.sharing?.unshared_values),
    ),
    gauge("spillway_store_pools", "The number of pools.", |s| Some(s.pools)),
    gauge("spillway_store_block_devices", "The number of block devices.", |s| Some(s.blocks)),
    gauge("spillway_memory_locked", "1 while memory is locked against paging, else 0.", |s| {
        Some(u64::from(s.memory_locked))
    }),
    counter(
        "spillway_restarts_total",
        "Starts of the daemon that took over the store of an earlier one.",
        |s| Some(s.restarts),
    ),
    gauge("spillway_uptime_seconds", "Time since the daemon started.", |s| Some(s.uptime_seconds)),
];

/// Metrics of each client.
pub(crate) const CLIENT: [Metric<ClientSample>; 19] = [
    gauge("spillway_client_connections", "Connections of the client.", |c| {
        Some(u64::from(c.connections))
    }),
    gauge(
        "spillway_client_in_flight_bytes",
        "Values of more than a page that the client is putting or getting, in whole pages; those that it is putting count as used.",
        |c| Some(c.in_flight_bytes),
    ),
    gauge("spillway_client_used_bytes", "Memory that the client holds, in whole pages.", |c| {
        pages(c.statistics.used_pages)
    }),
    gauge(
        "spillway_client_target_bytes",
        "The most that the client may hold; missing if there is no limit.",
        |c| match c.statistics.target_pages {
            u64::MAX => None,
            target => pages(target),
        },
    ),
    gauge(
        "spillway_client_cap_bytes",
        "The most that the operator lets the client hold; missing if there is no cap.",
        |c| match c.cap_pages {
            u64::MAX => None,
            cap => pages(cap),
        },
    ),
    gauge(
        "spillway_client_floor_bytes",
        "Memory that the policy `utility` always leaves to the client.",
        |c| pages(c.floor_pages),
    ),
    gauge(
        "spillway_client_weight",
        "The weight of the client's waiting time for the policy `utility`; 1 unless it is set.",
        |c| Some(u64::from(c.weight)),
    ),
    gauge("spillway_client_debt_bytes", "Memory that the client holds beyond its target.", |c| {
        pages(c.statistics.debt_pages())
    }),
    gauge(
        "spillway_client_reserved_bytes",
        "Memory reserved for the client's block devices.",
        |c| pages(c.statistics.reserved_pages),
    ),
    counter("spillway_client_puts_total", "Puts requested.", |c| Some(c.statistics.puts)),
    counter("spillway_client_puts_stored_total", "Puts that stored their value.", |c| {
        Some(c.statistics.puts_stored)
    }),
    counter(
        "spillway_client_puts_refused_at_target_total",
        "Puts refused because the client was at its target.",
        |c| Some(c.statistics.puts_refused_at_target),
    ),
    counter(
        "spillway_client_puts_refused_node_full_total",
        "Puts refused because the store had no memory left.",
        |c| Some(c.statistics.puts_refused_node_full),
    ),
    counter(
        "spillway_client_puts_refused_other_total",
        "Puts refused because the client was frozen, or because of a length that the store does not take.",
        |c| Some(c.statistics.puts_refused_other),
    ),
    counter("spillway_client_gets_total", "Gets requested.", |c| Some(c.statistics.gets)),
    counter("spillway_client_hits_total", "Gets that found a value.", |c| Some(c.statistics.hits)),
    counter("spillway_client_misses_total", "Gets that found no value.", |c| {
        Some(c.statistics.misses)
    }),
    counter(
        "spillway_client_flushed_bytes_total",
        "Freed by flushes, pool destruction and failed overwrites, in whole pages.",
        |c| pages(c.statistics.flushed_pages),
    ),
    counter(
        "spillway_client_evicted_bytes_total",
        "Ephemeral values dropped under pressure, in whole pages.",
        |c| pages(c.statistics.evicted_pages),
    ),
];

/// Metrics of each paged program.
pub(crate) const PROGRAM: [Metric<ProgramSample>; 6] = [
    gauge("spillway_program_local_bytes", "Pages of the program that are resident.", |p| {
        pages(p.statistics.used_pages)
    }),
    gauge(
        "spillway_program_target_bytes",
        "The most local frames that the program may hold; missing if it keeps what its user gave it.",
        |p| match p.statistics.target_pages {
            u64::MAX => None,
            target => pages(target),
        },
    ),
    counter("spillway_program_faults_total", "Faults of any kind.", |p| Some(p.statistics.gets)),
    counter(
        "spillway_program_first_touches_total",
        "Faults on a page never touched before.",
        |p| Some(p.statistics.puts_stored),
    ),
    counter("spillway_program_refaults_total", "Faults on an evicted page.", |p| {
        Some(p.statistics.misses)
    }),
    counter("spillway_program_evicted_bytes_total", "Pages evicted.", |p| {
        pages(p.statistics.evicted_pages)
    }),
];

/// Metrics of each tmem disk.
pub(crate) const DISK: [Metric<DiskSample>; 12] = [
    counter("spillway_disk_store_read_bytes_total", "Read from the store.", |d| {
        pages(d.store_reads)
    }),
    counter("spillway_disk_file_read_bytes_total", "Read from the backing file.", |d| {
        pages(d.file_reads)
    }),
    counter("spillway_disk_zero_read_bytes_total", "Read where nothing was written.", |d| {
        pages(d.zero_reads)
    }),
    counter("spillway_disk_store_written_bytes_total", "Written to the store.", |d| {
        pages(d.store_writes)
    }),
    counter("spillway_disk_file_written_bytes_total", "Written to the backing file.", |d| {
        pages(d.file_writes)
    }),
    counter("spillway_disk_refused_bytes_total", "Puts that the store refused.", |d| {
        pages(d.refused)
    }),
    counter("spillway_disk_discarded_bytes_total", "Discarded by the guest.", |d| {
        pages(d.discarded)
    }),
    counter(
        "spillway_disk_demoted_bytes_total",
        "Moved from the store to the backing file, because the client was above its target.",
        |d| pages(d.demoted),
    ),
    counter("spillway_disk_errors_total", "Requests that failed.", |d| Some(d.errors)),
    counter(
        "spillway_disk_refused_guests_total",
        "Connections that were closed because the disk had a guest.",
        |d| Some(d.refused_guests),
    ),
    gauge(
        "spillway_disk_unread_bytes",
        "Pages of a swap disk in the store that the guest wrote ten minutes ago or earlier and has not read since the daemon started. A guest that returns no freed pages leaves dead pages among them.",
        |d| pages(d.unread),
    ),
    gauge("spillway_disk_attached", "1 while a guest uses the disk, else 0.", |d| {
        Some(u64::from(d.is_attached))
    }),
];

/// Metrics of lending.
pub(crate) const LEND: [Metric<LendSample>; 8] = [
    gauge("spillway_lend_borrower", "1 while this host borrows memory, else 0.", |l| {
        Some(u64::from(l.is_borrower))
    }),
    gauge("spillway_lend_lender", "1 while this host lends memory, else 0.", |l| {
        Some(u64::from(l.is_lender))
    }),
    gauge(
        "spillway_lend_helper_up",
        "1 while the helper, which swaps onto borrowed memory and off it, is there and answers, else 0. Missing if this host needs none.",
        |l| l.is_helper_up.map(u64::from),
    ),
    gauge("spillway_lend_host_memory_bytes", "All memory of this host.", |l| Some(l.memory_bytes)),
    gauge("spillway_lend_host_used_bytes", "Memory of this host in use.", |l| Some(l.used_bytes)),
    gauge("spillway_lend_host_swap_used_bytes", "Swap space of this host in use.", |l| {
        Some(l.swap_used_bytes)
    }),
    gauge("spillway_lend_spare_bytes", "Memory that this host would lend now.", |l| {
        Some(l.spare_bytes)
    }),
    gauge("spillway_lend_lent_used_bytes", "Lent memory that holds pages.", |l| {
        Some(l.lent_used_bytes)
    }),
];

/// Metrics of each other host.
pub(crate) const LEND_PEER: [Metric<LendPeerSample>; 8] = [
    gauge(
        "spillway_lend_peer_spare_bytes",
        "Memory that the host would lend, as it last reported.",
        |p| Some(p.spare_bytes),
    ),
    gauge("spillway_lend_peer_lent_bytes", "Memory that the host has borrowed here.", |p| {
        Some(p.lent_bytes)
    }),
    gauge("spillway_lend_peer_borrowed_bytes", "Memory borrowed from the host.", |p| {
        Some(p.borrowed_bytes)
    }),
    gauge("spillway_lend_peer_ok", "1 while the host answers well, else 0.", |p| {
        Some(u64::from(p.health == "ok"))
    }),
    gauge("spillway_lend_peer_slow", "1 while the host answers late or not always, else 0.", |p| {
        Some(u64::from(p.health == "slow"))
    }),
    gauge("spillway_lend_peer_unreachable", "1 while the host does not answer, else 0.", |p| {
        Some(u64::from(p.health == "unreachable"))
    }),
    gauge(
        "spillway_lend_peer_refused",
        "1 while one side rejects the other's certificate, messages or pages, else 0.",
        |p| Some(u64::from(p.health == "refused")),
    ),
    gauge(
        "spillway_lend_peer_health_seconds",
        "Time since the host's health last changed. All four are 0 while nobody has asked the host.",
        |p| Some(p.health_s),
    ),
];

/// Metrics of each borrowed device.
pub(crate) const LEND_DEVICE: [Metric<LendDeviceSample>; 14] = [
    gauge("spillway_lend_device_bytes", "Length of the device.", |d| Some(d.bytes)),
    gauge("spillway_lend_device_used_bytes", "Bytes of the device in use.", |d| Some(d.used_bytes)),
    gauge(
        "spillway_lend_device_mirrored_slabs",
        "Slabs with two copies in reach that have every page.",
        |d| Some(d.slabs[0]),
    ),
    gauge("spillway_lend_device_single_slabs", "Slabs with one such copy.", |d| Some(d.slabs[1])),
    gauge(
        "spillway_lend_device_unreachable_slabs",
        "Slabs without a copy in reach that has every page.",
        |d| Some(d.slabs[2]),
    ),
    gauge("spillway_lend_device_lost_slabs", "Slabs without a copy.", |d| Some(d.slabs[3])),
    counter(
        "spillway_lend_device_fail_overs_total",
        "Pages served from the second copy because the first failed.",
        |d| Some(d.fail_overs),
    ),
    counter(
        "spillway_lend_device_errors_total",
        "Pages of which no copy could be read or written.",
        |d| Some(d.errors),
    ),
    gauge(
        "spillway_lend_device_waiting_bytes",
        "Bytes that wait for a last copy whose lender does not answer.",
        |d| pages(d.waiting_pages),
    ),
    counter(
        "spillway_lend_device_waits_total",
        "Pages that have waited for a last copy whose lender did not answer.",
        |d| Some(d.waits),
    ),
    counter(
        "spillway_lend_device_hedged_bytes_total",
        "Bytes that were asked of the second copy too, because the first took longer than usual.",
        |d| pages(d.hedged_pages),
    ),
    gauge(
        "spillway_lend_device_behind_bytes",
        "Bytes that one copy lacks, because its holder did not answer their last write.",
        |d| pages(d.behind_pages),
    ),
    counter(
        "spillway_lend_device_mended_bytes_total",
        "Bytes that were copied again to a copy that had missed their last write.",
        |d| pages(d.mended_pages),
    ),
    gauge(
        "spillway_lend_device_longest_stall_seconds",
        "The longest time that a batch of requests took.",
        |d: &LendDeviceSample| Some(d.longest_stall_us),
    )
    .in_millionths(),
];
