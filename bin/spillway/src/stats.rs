//! What a run did and took, as one JSON object. Every field is described in docs/stats.md.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;
use spillway_pager::link::now_ns;
use spillway_pager::tree::{BUCKETS, ChoiceCounters, Eviction, Tree, bucket_floor_ns};

use crate::options::{Run, Switch, name_of};
use crate::sample::Usage;
use crate::units::{PAGE_BYTES, pages_to_bytes};

/// The memory that the tree's managed pages take at one moment, and what they would take without
/// Spillway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Managed pages that are resident.
    pub local_bytes: u64,
    /// Memory that the stores take, index and frames.
    pub store_bytes: u64,
    /// The sum of the two: what the run takes of this machine's memory.
    pub total_bytes: u64,
    /// Bytes in the disk tier.
    pub disk_bytes: u64,
    /// Bytes on the blade, packed and sealed. A mirror's copies come on top.
    pub blade_bytes: u64,
    /// Pages in the store, on disk or on the blade, at their full size.
    pub far_bytes: u64,
    /// Local and far: what the same run would hold without Spillway.
    pub all_local_bytes: u64,
}

impl Memory {
    /// The present state.
    pub fn now(tree: &Tree) -> Self {
        let counters = &tree.counters;
        let local_bytes = pages_to_bytes(counters.resident_pages.load(Relaxed));
        let store_bytes = gauge(&counters.store_bytes);
        let far_bytes = pages_to_bytes(counters.far_pages.load(Relaxed));
        Self {
            local_bytes,
            store_bytes,
            total_bytes: local_bytes + store_bytes,
            disk_bytes: gauge(&counters.disk_bytes),
            blade_bytes: gauge(&counters.blade_bytes),
            far_bytes,
            all_local_bytes: local_bytes + far_bytes,
        }
    }
}

/// The highest values seen, each independently.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Peaks {
    local_bytes: u64,
    store_bytes: u64,
    total_bytes: u64,
    disk_bytes: u64,
    blade_bytes: u64,
    far_bytes: u64,
    all_local_bytes: u64,
    native_bytes: u64,
    native_shared_bytes: u64,
    native_file_bytes: u64,
    tree_rss_bytes: u64,
    tree_pss_bytes: u64,
    processes: u64,
}

/// The run's local budget, which its daemon can change.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Budget {
    least_bytes: u64,
    most_bytes: u64,
    end_bytes: u64,
}

/// Tracks a run's memory while it runs.
#[derive(Debug, Default)]
pub struct Watch {
    peaks: Peaks,
    /// Least and most budget, pages.
    budgets: Option<(u64, u64)>,
    fullest: Memory,
}

impl Watch {
    /// Records the present state; `usage` is set when there is a new sample.
    pub fn update(&mut self, tree: &Tree, usage: Option<Usage>) {
        let now = Memory::now(tree);
        if now.all_local_bytes > self.fullest.all_local_bytes {
            self.fullest = now;
        }
        let budget_pages = tree.budget_pages.load(Relaxed);
        let (least, most) = self.budgets.unwrap_or((budget_pages, budget_pages));
        self.budgets = Some((least.min(budget_pages), most.max(budget_pages)));
        let raise = |peak: &mut u64, value: u64| *peak = (*peak).max(value);
        let peaks = &mut self.peaks;
        raise(&mut peaks.local_bytes, now.local_bytes);
        raise(&mut peaks.store_bytes, now.store_bytes);
        raise(&mut peaks.total_bytes, now.total_bytes);
        raise(&mut peaks.disk_bytes, now.disk_bytes);
        raise(&mut peaks.blade_bytes, now.blade_bytes);
        raise(&mut peaks.far_bytes, now.far_bytes);
        raise(&mut peaks.all_local_bytes, now.all_local_bytes);
        if let Some(usage) = usage {
            raise(&mut peaks.native_bytes, usage.pss_bytes.saturating_sub(now.total_bytes));
            raise(&mut peaks.native_shared_bytes, usage.pss_shared_bytes);
            raise(&mut peaks.native_file_bytes, usage.pss_file_bytes);
            raise(&mut peaks.tree_rss_bytes, usage.rss_bytes);
            raise(&mut peaks.tree_pss_bytes, usage.pss_bytes);
            raise(&mut peaks.processes, usage.processes);
        }
        raise(
            &mut peaks.local_bytes,
            pages_to_bytes(tree.counters.resident_peak_pages.load(Relaxed)),
        );
        raise(&mut peaks.store_bytes, gauge(&tree.counters.store_peak_bytes));
    }

    fn budget(&self, tree: &Tree) -> Budget {
        let end_pages = tree.budget_pages.load(Relaxed);
        let (least, most) = self.budgets.unwrap_or((end_pages, end_pages));
        let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES);
        let [least_bytes, most_bytes, end_bytes] = [least, most, end_pages].map(bytes);
        Budget { least_bytes, most_bytes, end_bytes }
    }

    /// The moment at which the program held most.
    pub fn fullest(&self) -> Memory {
        self.fullest
    }
}

#[derive(Serialize)]
struct Settings {
    local_bytes: u64,
    store_bytes: u64,
    disk: Option<String>,
    blade: Option<String>,
    mirror: Option<String>,
    blade_timeout_ns: u64,
    blade_loss_timeout_ns: u64,
    encrypt: bool,
    share: bool,
    replacement: String,
    eviction: String,
    faults: String,
    link_delay_ns: u64,
    disk_delay_ns: u64,
    prefetch: bool,
    compress: bool,
}

#[derive(Serialize)]
struct Counters {
    faults: u64,
    first_touches: u64,
    fetches: u64,
    rescues: u64,
    write_faults: u64,
    prefetches: u64,
    evictions: u64,
    evictions_clean: u64,
    evictions_refused: u64,
    store_refusals: u64,
    corrupt_reads: u64,
    lost_pages: u64,
    disk_reads: u64,
    blade_reads: u64,
    mirror_reads: u64,
    blade_read_bytes: u64,
    blade_writes: u64,
    blade_written_bytes: u64,
    blade_refusals: u64,
    blade_stalls: u64,
    blade_stall_max_ns: u64,
    processes: u64,
    fault_ns: u64,
    fault_max_ns: u64,
}

/// Time from reading a fault to answering it, in ns, with an error of up to 12.5 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultTimes {
    /// Half of the faults took no longer.
    pub p50_ns: u64,
    /// Nine in ten.
    pub p90_ns: u64,
    /// 99 in a hundred.
    pub p99_ns: u64,
    /// 999 in a thousand.
    pub p999_ns: u64,
}

/// The eviction scheme, and the results of `--eviction auto`'s trials.
#[derive(Serialize)]
struct Choice {
    /// The scheme at the end; null if no process was paged.
    scheme: Option<&'static str>,
    trials: u64,
    changes: u64,
    /// When the latest change was, seconds since the start.
    changed_after_seconds: Option<f64>,
    /// Page-ins per second during the latest trial, under each scheme.
    on_demand_pages_per_second: Option<u64>,
    pre_evict_pages_per_second: Option<u64>,
}

impl Choice {
    /// The choice at the end of a run of this duration.
    fn of(counters: &ChoiceCounters, seconds: f64) -> Self {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let some = |rate: &AtomicU64| (count(&counters.trials) > 0).then(|| count(rate));
        let since_ns = now_ns().saturating_sub(count(&counters.changed_at_ns));
        let changes = count(&counters.changes);
        Self {
            scheme: match counters.scheme.load(Relaxed).checked_sub(1) {
                Some(s) if s == Eviction::OnDemand as u32 => Some("on-demand"),
                Some(_) => Some("pre-evict"),
                None => None,
            },
            trials: count(&counters.trials),
            changes,
            changed_after_seconds: (changes > 0)
                .then(|| (seconds - since_ns as f64 / 1e9).max(0.0)),
            on_demand_pages_per_second: some(&counters.on_demand_rate),
            pre_evict_pages_per_second: some(&counters.pre_evict_rate),
        }
    }
}

/// All fields, in the order in which they are printed.
#[derive(Serialize)]
pub struct Report {
    program: Vec<String>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    seconds: f64,
    settings: Settings,
    counters: Counters,
    fault_times: FaultTimes,
    faults_per_second: f64,
    eviction: Choice,
    budget: Budget,
    /// At the moment when the program held most.
    fullest: Memory,
    peaks: Peaks,
    /// The memory of processes that continue as daemons.
    end: Memory,
}

impl Report {
    /// Reads the shared page when the run is over.
    pub fn new(
        options: &Run,
        tree: &Tree,
        watch: &Watch,
        (exit_code, signal): (Option<i32>, Option<i32>),
        took: Duration,
    ) -> Self {
        let set = &tree.settings;
        let sums = &tree.counters;
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let seconds = took.as_secs_f64();
        Self {
            program: options.program.iter().map(|word| word.display().to_string()).collect(),
            exit_code,
            signal,
            seconds,
            settings: Settings {
                local_bytes: options.local,
                store_bytes: set.store_bytes,
                disk: options.disk.as_ref().map(|dir| dir.display().to_string()),
                blade: options.remote.blade.clone(),
                mirror: options.remote.mirror.clone(),
                blade_timeout_ns: set.blade.timeout_ns,
                blade_loss_timeout_ns: set.blade.loss_timeout_ns,
                encrypt: !options.remote.no_encrypt,
                share: options.remote.share.is_some(),
                replacement: name_of(options.replacement),
                eviction: name_of(options.eviction),
                faults: name_of(options.faults),
                link_delay_ns: set.link_delay_ns,
                disk_delay_ns: set.disk_delay_ns,
                prefetch: options.prefetch == Switch::On,
                compress: options.compress == Switch::On,
            },
            counters: Counters {
                faults: count(&sums.faults),
                first_touches: count(&sums.first_touches),
                fetches: count(&sums.fetches),
                rescues: count(&sums.rescues),
                write_faults: count(&sums.write_faults),
                prefetches: count(&sums.prefetches),
                evictions: count(&sums.evictions),
                evictions_clean: count(&sums.evictions_clean),
                evictions_refused: count(&sums.evictions_refused),
                store_refusals: count(&sums.store_refusals),
                corrupt_reads: count(&sums.corrupt_reads),
                lost_pages: count(&sums.lost_pages),
                disk_reads: count(&sums.disk_reads),
                blade_reads: count(&sums.blade_reads),
                mirror_reads: count(&sums.mirror_reads),
                blade_read_bytes: count(&sums.blade_read_bytes),
                blade_writes: count(&sums.blade_writes),
                blade_written_bytes: count(&sums.blade_written_bytes),
                blade_refusals: count(&sums.blade_refusals),
                blade_stalls: count(&sums.blade_stalls),
                blade_stall_max_ns: count(&sums.blade_stall_max_ns),
                processes: count(&sums.processes),
                fault_ns: count(&sums.fault_ns),
                fault_max_ns: count(&sums.fault_max_ns),
            },
            fault_times: fault_times(&histogram(tree)),
            faults_per_second: count(&sums.faults) as f64 / seconds.max(1e-9),
            eviction: Choice::of(&sums.choice, seconds),
            budget: watch.budget(tree),
            fullest: watch.fullest,
            peaks: watch.peaks,
            end: Memory::now(tree),
        }
    }
}

/// Faults by duration so far.
pub fn histogram(tree: &Tree) -> [u64; BUCKETS] {
    std::array::from_fn(|at| tree.fault_histogram[at].load(Relaxed))
}

/// The quantiles of a histogram of faults; zeros when it is empty.
pub fn fault_times(histogram: &[u64; BUCKETS]) -> FaultTimes {
    let total: u64 = histogram.iter().sum();
    let quantile = |per_mille: u64| {
        // The rank of the fault that ends this share, counted from 1.
        let rank = (total * per_mille).div_ceil(1000);
        let mut seen = 0;
        let bucket = histogram.iter().position(|&count| {
            seen += count;
            count > 0 && seen >= rank
        });
        bucket.map_or(0, bucket_floor_ns)
    };
    FaultTimes {
        p50_ns: quantile(500),
        p90_ns: quantile(900),
        p99_ns: quantile(990),
        p999_ns: quantile(999),
    }
}

fn gauge(value: &AtomicI64) -> u64 {
    u64::try_from(value.load(Relaxed)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use spillway_pager::tree::bucket_of_ns;

    use super::*;
    use crate::run::tests::settings;
    use crate::shared_tree::SharedTree;

    #[test]
    fn quantiles_are_those_of_the_faults() {
        let mut histogram = [0; BUCKETS];
        assert_eq!(fault_times(&histogram), FaultTimes::default());
        for ns in 1..=1000u64 {
            histogram[bucket_of_ns(ns * 1000)] += 1;
        }
        let times = fault_times(&histogram);
        for (got, exact) in [
            (times.p50_ns, 500_000),
            (times.p90_ns, 900_000),
            (times.p99_ns, 990_000),
            (times.p999_ns, 999_000),
        ] {
            assert!(got <= exact && got * 9 >= exact * 8, "{got} for {exact}");
        }
        let mut single = [0; BUCKETS];
        single[40] = 1;
        assert_eq!(fault_times(&single).p999_ns, bucket_floor_ns(40));
    }

    #[test]
    fn a_choice_is_told_with_what_it_was_made_by() {
        let counters = ChoiceCounters::default();
        let told = || serde_json::to_value(Choice::of(&counters, 5.0)).unwrap();
        let nothing = serde_json::json!({
            "scheme": null, "trials": 0, "changes": 0, "changed_after_seconds": null,
            "on_demand_pages_per_second": null, "pre_evict_pages_per_second": null,
        });
        assert_eq!(told(), nothing);
        counters.scheme.store(1 + Eviction::PreEvict as u32, Relaxed);
        counters.trials.store(1, Relaxed);
        counters.on_demand_rate.store(70, Relaxed);
        counters.pre_evict_rate.store(80, Relaxed);
        let kept = serde_json::json!({
            "scheme": "pre-evict", "trials": 1, "changes": 0, "changed_after_seconds": null,
            "on_demand_pages_per_second": 70, "pre_evict_pages_per_second": 80,
        });
        assert_eq!(told(), kept);
        counters.scheme.store(1 + Eviction::OnDemand as u32, Relaxed);
        counters.changes.store(1, Relaxed);
        counters.changed_at_ns.store(now_ns() - 2_000_000_000, Relaxed);
        let changed = told();
        assert_eq!(changed["scheme"], "on-demand");
        let after = changed["changed_after_seconds"].as_f64().unwrap();
        assert!((after - 3.0).abs() < 0.5, "{after}");
    }

    #[test]
    fn the_fullest_moment_keeps_what_belongs_together() {
        let tree = SharedTree::new(&settings()).unwrap();
        let sums = &tree.counters;
        let mut watch = Watch::default();
        for (local, far, store_bytes) in [(10, 90, 50_000), (60, 0, 90_000), (20, 30, 1)] {
            sums.resident_pages.store(local, Relaxed);
            sums.far_pages.store(far, Relaxed);
            sums.store_bytes.store(store_bytes, Relaxed);
            watch.update(&tree, None);
        }
        let fullest = watch.fullest();
        assert_eq!(fullest.all_local_bytes, 100 * 4096);
        assert_eq!(fullest.total_bytes, 10 * 4096 + 50_000);
        assert_eq!(watch.peaks.local_bytes, 60 * 4096);
        assert_eq!(watch.peaks.total_bytes, 60 * 4096 + 90_000);
    }

    #[test]
    fn native_memory_is_what_is_neither_managed_nor_store() {
        let tree = SharedTree::new(&settings()).unwrap();
        tree.counters.resident_pages.store(10, Relaxed);
        tree.counters.store_bytes.store(4096, Relaxed);
        let mut watch = Watch::default();
        let usage =
            Usage { rss_bytes: 1 << 20, pss_bytes: 1 << 20, processes: 2, ..Usage::default() };
        watch.update(&tree, Some(usage));
        assert_eq!(watch.peaks.native_bytes, (1 << 20) - 11 * 4096);
    }
}
