//! What the workload program is told to do, and what it answers: one line of JSON each way.

use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// In which order the pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Every page equally likely at each access.
    Random,
    /// In address order; each thread goes round its own part.
    Sequential,
    /// Zipf-distributed with exponent 0.99, with a sequential scan mixed in.
    Zipf,
}

/// What the pages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Random bytes.
    Random,
    /// Bytes that LZ4 brings to about half.
    Half,
}

/// Who answers a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    /// A blocking reader pinned to each core.
    Thread,
    /// The faulting thread, in a SIGBUS handler.
    Signal,
}

/// A bare handler with which the program pages itself: the least that a fault can cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// Who answers.
    pub handler: Handler,
    /// How many pages stay, the oldest leaving; when not set pages are filled and never evicted,
    /// and the program touches each page once.
    pub local_pages: Option<usize>,
}

/// One run of the workload program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Pages of the mapping.
    pub pages: usize,
    /// What they hold.
    pub content: Content,
    /// The order of the accesses.
    pub pattern: Pattern,
    /// Of a hundred accesses of `Pattern::Zipf`, how many belong to the scan.
    pub scan_percent: u32,
    /// Of a hundred accesses, how many write too.
    pub write_percent: u32,
    /// Threads that access.
    pub threads: usize,
    /// Untimed accesses ahead, all threads together.
    pub warm_ops: u64,
    /// Timed accesses, all threads together.
    pub ops: u64,
    /// When set, the program pages itself.
    pub floor: Option<Floor>,
}

/// What one run measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// From the first timed access to the end of the last thread, s.
    pub seconds: f64,
    /// Timed accesses.
    pub ops: u64,
    /// Of these, the ones that took longer than [`MISS_NS`].
    pub misses: u64,
    /// Mean time of a miss, ns.
    pub miss_mean_ns: f64,
    /// Median of the misses, ns.
    pub miss_p50_ns: f64,
    /// 90th percentile of the misses, ns.
    pub miss_p90_ns: f64,
    /// 99th percentile of the misses, ns.
    pub miss_p99_ns: f64,
    /// Accesses that found a wrong first word. Anything but 0 makes the run worthless.
    pub wrong: u64,
    /// Pages of the mapping that are resident at the end, as the kernel's pagemap has it.
    pub resident_pages: u64,
    /// Median time from reading a fault to having answered it, ns; measured by a floor's handler.
    pub handler_p50_ns: Option<f64>,
}

/// An access that takes longer than this is taken for a miss, ns. A cache miss takes a tenth of it.
pub const MISS_NS: f64 = 600.0;
