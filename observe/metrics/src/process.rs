//! The process's use of the machine. The names are those of Prometheus' own clients.

use crate::metric::{Metric, counter, gauge};

/// The daemon's process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSample {
    /// CPU time, user and system, µs.
    pub cpu_us: u64,
    /// Memory in use, bytes.
    pub resident_bytes: u64,
    /// Address space in use, bytes.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors.
    pub open_descriptors: u64,
    /// The limit of open descriptors; `None` means no limit.
    pub descriptors_max: Option<u64>,
    /// When it started, µs since 1970.
    pub started_us: u64,
}

/// Metrics of the daemon's process.
pub(crate) const PROCESS: [Metric<ProcessSample>; 7] = [
    counter(
        "process_cpu_seconds_total",
        "Processor time, user and system.",
        |p: &ProcessSample| Some(p.cpu_us),
    )
    .in_millionths(),
    gauge("process_resident_memory_bytes", "Memory in use, the store's included.", |p| {
        Some(p.resident_bytes)
    }),
    gauge("process_virtual_memory_bytes", "Address space in use.", |p| Some(p.virtual_bytes)),
    gauge("process_threads", "Threads of the process.", |p| Some(p.threads)),
    gauge("process_open_fds", "Open file descriptors.", |p| Some(p.open_descriptors)),
    gauge(
        "process_max_fds",
        "The most file descriptors that may be open; missing if there is no limit.",
        |p| p.descriptors_max,
    ),
    gauge(
        "process_start_time_seconds",
        "When the process started, in seconds since 1970.",
        |p: &ProcessSample| Some(p.started_us),
    )
    .in_millionths(),
];
