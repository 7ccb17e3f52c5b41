//! One sample of all metrics.

use std::sync::Arc;
use std::time::Instant;

use spillway_api::types::{LendStatus, VmList, VmStatus};
use spillway_directory::{ClientRegistry, ProgramSeries};
use spillway_manager::Policy;
use spillway_metrics::{
    BuildSample, ClientSample, CommandSample, ConnectionSample, DiskSample, LendDeviceSample,
    LendPeerSample, LendSample, PolicySample, ProgramSample, RefusedSample, RespSample, Sample,
    SectionsSample, SharingSample, StoreDiskSample, StoreSample, VmSample,
};
use spillway_serving::Refusal;
use spillway_types::PAGE_BYTES;
use spillway_vhost_user_blk::{Disk, GuestState};

use crate::arguments::COMMIT;
use crate::frontends::Measured;
use crate::process::ProcessFiles;

/// Values that do not change while the daemon runs.
#[derive(Debug)]
pub struct Facts {
    pub memory_locked: bool,
    /// Whether the store packs pages.
    pub compress: bool,
    pub started: Instant,
    /// The same by the system clock, milliseconds since 1970.
    pub started_ms: u64,
    /// None if there is no /proc.
    pub process: Option<ProcessFiles>,
}

/// The present metrics, as text.
pub fn text(
    client_registry: &Arc<ClientRegistry>,
    disks: &[Arc<Disk>],
    lending: Option<&LendStatus>,
    guests: Option<&VmList>,
    frontends: Option<&Measured>,
    (policy, interval_ms): (Policy, u64),
    facts: &Facts,
) -> String {
    let process = facts.process.as_ref();
    let process = process.and_then(|files| files.sample(facts.started_ms).ok());
    let resp = frontends.and_then(|frontends| frontends.resp.as_ref());
    let refused = client_registry.refusals();
    let store = client_registry.store();
    let store = StoreSample {
        capacity_bytes: store.capacity_bytes(),
        memory_bytes: store.memory_bytes(),
        in_flight_bytes: store.in_flight_bytes(),
        free_frame_bytes: store.free_frame_bytes(),
        disk_bytes: store.disk_bytes(),
        disk: store.disk_counters().map(|disk| StoreDiskSample {
            capacity_pages: disk.capacity_pages,
            read_pages: disk.read_pages,
            written_pages: disk.written_pages,
            refused_pages: disk.refused_pages,
            failed_reads: disk.failed_reads,
            corrupt_reads: disk.corrupt_pages,
            has_trouble: disk.trouble.is_some(),
        }),
        same_filled_pages: store.same_filled_pages(),
        compressed_pages: store.compressed_pages(),
        is_compressing: facts.compress,
        sharing: store.shared_memory().map(|shared| SharingSample {
            values: shared.values,
            saved_bytes: shared.saved_bytes,
            merged_values: shared.merged_values,
            unshared_values: shared.unshared_values,
        }),
        pools: client_registry.pools().map_or(0, |pools| pools.len() as u64),
        blocks: client_registry.blocks().len() as u64,
        memory_locked: facts.memory_locked,
        restarts: client_registry.restarts(),
        uptime_seconds: facts.started.elapsed().as_secs(),
    };
    let clients =
        client_registry.clients().unwrap_or_default().into_iter().map(|client| ClientSample {
            name: client.name,
            statistics: client.statistics,
            connections: client.connections,
            in_flight_bytes: client.in_flight_bytes,
            cap_pages: client.cap_pages,
            floor_pages: client.floor_pages,
            weight: client.weight,
        });
    let programs = client_registry.programs().into_iter().filter_map(|view| {
        let ProgramSeries { program, number } = view.series?;
        Some(ProgramSample { program, number, statistics: view.statistics })
    });
    let disks = disks.iter().map(|disk| {
        let its = disk.statistics();
        DiskSample {
            name: disk.name().to_owned(),
            store_reads: its.store_reads,
            file_reads: its.file_reads,
            zero_reads: its.zero_reads,
            store_writes: its.store_writes,
            file_writes: its.file_writes,
            refused: its.refused,
            discarded: its.discarded,
            demoted: its.demoted,
            errors: its.errors,
            refused_guests: its.refused_guests,
            unread: disk.unread_pages(Instant::now()),
            is_attached: disk.guest().0 == GuestState::Attached,
        }
    });
    spillway_metrics::render(&Sample {
        build: BuildSample { version: env!("CARGO_PKG_VERSION"), commit: COMMIT },
        process,
        store,
        policy: policy_sample(policy, interval_ms),
        refused: RefusedSample {
            unknown: refused.unknown,
            at_limit: refused.at_limit,
            authentications: refused.authentications,
            late_handshakes: refused.late_handshakes,
            damaged_pdus: frontends
                .and_then(|its| its.nvme.as_ref()?.upgrade())
                .map(|target| target.damaged()),
        },
        connections: frontends.map(connections).unwrap_or_default(),
        commands: frontends.map(commands).unwrap_or_default(),
        clients: clients.collect(),
        programs: programs.collect(),
        disks: disks.collect(),
        resp: resp.map(|shared| shared.statistics()).map(|resp| RespSample {
            connections: resp.connections,
            accepted: resp.accepted,
            commands: resp.commands,
            keys: resp.keys,
            expiring_keys: resp.expiring_keys,
            hits: resp.hits,
            misses: resp.misses,
            expired: resp.expired,
        }),
        lend: lending.map(lend),
        lend_peers: lending.map(peers).unwrap_or_default(),
        lend_devices: lending.map(devices).unwrap_or_default(),
        sections: guests.map(|guests| SectionsSample {
            capacity_bytes: guests.sections.capacity_bytes,
            used_bytes: guests.sections.used_bytes,
            lent_bytes: guests.sections.lent_bytes,
        }),
        vms: guests.map(|guests| guests.vms.iter().map(vm).collect()).unwrap_or_default(),
    })
}

/// The connections of each front end. Those of servers with the same name are one front end's.
fn connections(frontends: &Measured) -> Vec<ConnectionSample> {
    let mut samples = Vec::<ConnectionSample>::new();
    for &(front_end, ref counts) in &frontends.connections {
        let refused = Refusal::ALL.map(|why| (why.name(), counts.refused(why)));
        let same = samples.iter_mut().find(|sample| sample.front_end == front_end);
        let Some(sample) = same else {
            let (open, refused) = (counts.open(), refused.to_vec());
            samples.push(ConnectionSample { front_end, open, refused });
            continue;
        };
        sample.open += counts.open();
        for ((_, sum), (_, more)) in sample.refused.iter_mut().zip(refused) {
            *sum += more;
        }
    }
    samples
}

/// The latencies of each front end. Those of servers with the same name are one front end's.
fn commands(frontends: &Measured) -> Vec<CommandSample> {
    let mut samples = Vec::<CommandSample>::new();
    for (front_end, latencies) in &frontends.latencies {
        let latencies = latencies.histograms();
        let same = samples.iter_mut().find(|sample| sample.front_end == *front_end);
        let Some(sample) = same else {
            samples.push(CommandSample { front_end, latencies });
            continue;
        };
        for ((_, sum), (_, more)) in sample.latencies.iter_mut().zip(&latencies) {
            sum.add(more);
        }
    }
    samples
}

fn policy_sample(policy: Policy, interval_ms: u64) -> PolicySample {
    let mut sample = PolicySample {
        name: policy.name(),
        interval_us: interval_ms.saturating_mul(1000),
        ..PolicySample::default()
    };
    match policy {
        Policy::SmartAlloc(smart) => {
            // A percentage has at most four decimals.
            sample.step_millionths = Some((smart.p.get() * 10_000.0).round() as u64);
            sample.threshold_bytes =
                smart.threshold_pages.map(|pages| pages.saturating_mul(PAGE_BYTES as u64));
        }
        Policy::Utility(utility) => {
            sample.miss_us = Some(utility.miss_us.into());
            sample.fairness_percent = Some(utility.fairness_percent.into());
        }
        Policy::Greedy | Policy::StaticAlloc | Policy::ReconfStatic => {}
    }
    sample
}

fn vm(vm: &VmStatus) -> VmSample {
    VmSample {
        name: vm.name.clone(),
        size_bytes: vm.size_bytes,
        target_bytes: vm.target_bytes,
        set_aside_bytes: vm.set_aside_bytes,
        ready_bytes: vm.ready_bytes,
        wanted_bytes: vm.wanted_bytes,
        kept_bytes: vm.kept_bytes,
        available_bytes: vm.agent.as_ref().map(|agent| agent.available_bytes),
        kills: vm.agent.as_ref().map(|agent| agent.kills),
        ignored_messages: vm.ignored_messages,
        resizes: [vm.resizes_reached, vm.resizes_failed, vm.resizes_refused],
    }
}

fn lend(status: &LendStatus) -> LendSample {
    let is = |role: &str| status.role == role || status.role == "both";
    LendSample {
        is_borrower: is("borrower"),
        is_lender: is("lender"),
        is_helper_up: (status.helper != "none").then_some(status.helper == "ok"),
        memory_bytes: status.memory.total_bytes,
        used_bytes: status.memory.used_bytes,
        swap_used_bytes: status.memory.swap_used_bytes,
        spare_bytes: status.spare_bytes,
        lent_used_bytes: status.lent.iter().map(|loan| loan.used_bytes).sum(),
    }
}

fn peers(status: &LendStatus) -> Vec<LendPeerSample> {
    let peer = |peer: &spillway_api::types::LendPeer| {
        let lent = status.lent.iter().filter(|loan| loan.borrower == peer.name);
        let borrowed = status.borrowed.iter().filter(|loan| loan.lender == peer.name);
        LendPeerSample {
            name: peer.name.clone(),
            spare_bytes: peer.spare_bytes,
            lent_bytes: lent.map(|loan| loan.bytes).sum(),
            borrowed_bytes: borrowed.map(|loan| loan.bytes).sum(),
            health: peer.health.clone(),
            health_s: peer.health_s,
        }
    };
    status.peers.iter().map(peer).collect()
}

fn devices(status: &LendStatus) -> Vec<LendDeviceSample> {
    let device = |device: &spillway_api::types::LendDevice| LendDeviceSample {
        device: device.device,
        bytes: device.bytes,
        used_bytes: device.used_bytes,
        slabs: [
            device.slabs_mirrored,
            device.slabs_single,
            device.slabs_unreachable,
            device.slabs_lost,
        ]
        .map(u64::from),
        fail_overs: device.fail_overs,
        errors: device.errors,
        waiting_pages: device.waiting_pages,
        waits: device.waits,
        hedged_pages: device.hedged_pages,
        behind_pages: device.behind_pages,
        mended_pages: device.mended_pages,
        longest_stall_us: device.longest_stall_us,
    };
    status.devices.iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillway_serving::{CommandKind, ConnectionCounts, Latencies};

    use super::*;

    #[test]
    fn servers_of_one_name_are_summed() {
        let counts = |open, refusals| {
            let counts = ConnectionCounts::default();
            counts.set_open(open);
            (0..refusals).for_each(|_| counts.refuse(Refusal::Full));
            Arc::new(counts)
        };
        let latencies = |times| {
            let latencies = Arc::new(Latencies::new(&[CommandKind::Read, CommandKind::Write]));
            let recorder = latencies.recorder();
            (0..times).for_each(|_| recorder.record(CommandKind::Write, Duration::from_millis(1)));
            latencies
        };
        let all = Measured {
            resp: None,
            nvme: None,
            latencies: vec![("nbd", latencies(3)), ("resp", latencies(5)), ("nbd", latencies(4))],
            connections: vec![("nbd", counts(3, 1)), ("resp", counts(5, 7)), ("nbd", counts(4, 2))],
        };
        let open = connections(&all).into_iter().map(|it| (it.front_end, it.open, it.refused[1].1));
        assert_eq!(open.collect::<Vec<_>>(), [("nbd", 7, 3), ("resp", 5, 7)]);
        let timed = commands(&all).into_iter().map(|it| {
            let counts = it.latencies.iter().map(|(_, times)| times.counts.iter().sum::<u64>());
            (it.front_end, counts.collect::<Vec<_>>())
        });
        assert_eq!(timed.collect::<Vec<_>>(), [("nbd", vec![0, 7]), ("resp", vec![0, 5])]);
    }
}
