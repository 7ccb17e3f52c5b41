//! The input and output of the workload program, each one line of JSON.

use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// The order in which pages are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Every page equally likely at each access.
    Random,
    /// In address order. Each thread cycles through its own part.
    Sequential,
    /// Zipf-distributed with exponent 0.99, with a sequential scan mixed in.
    Zipf,
}

/// The content of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Random bytes.
    Random,
    /// Bytes that LZ4 compresses to about half.
    Half,
}

/// How a fault is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    /// A blocking reader pinned to each core.
    Thread,
    /// The faulting thread, in a SIGBUS handler.
    Signal,
}

/// A bare handler with which the program pages itself: the lower bound of a fault's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// How faults are answered.
    pub handler: Handler,
    /// How many pages stay; the oldest ones leave. `None`: pages are filled and never evicted, and the program touches
    /// each page once.
    pub local_pages: Option<usize>,
}

/// One run of the workload program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Pages of the mapping.
    pub pages: usize,
    /// Their content.
    pub content: Content,
    /// The order of the accesses.
    pub pattern: Pattern,
    /// Percentage of the accesses of `Pattern::Zipf` that belong to the scan.
    pub scan_percent: u32,
    /// Percentage of accesses that also write.
    pub write_percent: u32,
    /// Threads that access.
    pub threads: usize,
    /// Untimed accesses before, all threads together.
    pub warm_ops: u64,
    /// Timed accesses, all threads together.
    pub ops: u64,
    /// What each thread computes after each access, ns of one thread that has a processor to itself.
    pub compute_ns: u64,
    /// If set, the program pages itself.
    pub floor: Option<Floor>,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// From the first timed access to the end of the last thread, s.
    pub seconds: f64,
    /// Timed accesses.
    pub ops: u64,
    /// Those of them that took longer than [`MISS_NS`].
    pub misses: u64,
    /// Mean time of a miss, ns.
    pub miss_mean_ns: f64,
    /// Median of the misses, ns.
    pub miss_p50_ns: f64,
    /// 90th percentile of the misses, ns.
    pub miss_p90_ns: f64,
    /// 99th percentile of the misses, ns.
    pub miss_p99_ns: f64,
    /// Interrupts that processors sent each other during the timed accesses, of the whole machine: TLB flushes, function
    /// calls and wake-ups.
    pub interrupts: u64,
    /// Context switches of the program and of the tasks that page it, during the timed accesses.
    pub switches: u64,
    /// Accesses that found a wrong first word. The run is invalid unless this is 0.
    pub wrong: u64,
    /// Pages of the mapping that are resident at the end, by the kernel's pagemap.
    pub resident_pages: u64,
    /// Median time from reading a fault to having answered it, measured by a bare handler, ns.
    pub handler_p50_ns: Option<f64>,
}

/// An access that takes longer than this counts as a miss, ns. A cache miss takes a tenth of it.
pub const MISS_NS: f64 = 600.0;
