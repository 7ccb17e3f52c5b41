//! Metrics of guests that grow and shrink.

use crate::metric::{Metric, counter, gauge};

/// The section pool at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct SectionsSample {
    /// The capacity, bytes.
    pub capacity_bytes: u64,
    /// Memory of guests, bytes.
    pub used_bytes: u64,
    /// Memory lent to the store, bytes.
    pub lent_bytes: u64,
}

/// A guest at one moment.
#[derive(Clone, Debug, Default)]
pub struct VmSample {
    /// Its name.
    pub name: String,
    /// Its size, bytes; `None` while its monitor is out of reach.
    pub size_bytes: Option<u64>,
    /// Its target by the policy, bytes.
    pub target_bytes: u64,
    /// Memory reserved for its devices, bytes.
    pub set_aside_bytes: u64,
    /// Memory allocated beyond that for its next growth, bytes.
    pub ready_bytes: u64,
    /// Memory that it needs at once but could not get, bytes.
    pub wanted_bytes: u64,
    /// Memory that it kept although asked to return it, bytes.
    pub kept_bytes: u64,
    /// Available memory in it, as its agent reports, bytes.
    pub available_bytes: Option<u64>,
    /// Processes that its kernel killed for lack of memory, as its agent reports.
    pub kills: Option<u64>,
    /// Messages of its agent that were ignored.
    pub ignored_messages: u64,
    /// Changes of size that reached their aim, that ended otherwise, and that were refused.
    pub resizes: [u64; 3],
}

/// Metrics of the section pool.
pub(crate) const SECTIONS: [Metric<SectionsSample>; 3] = [
    gauge("spillway_sections_capacity_bytes", "Memory reserved for guests.", |s| {
        Some(s.capacity_bytes)
    }),
    gauge("spillway_sections_used_bytes", "The part of it that guests have.", |s| {
        Some(s.used_bytes)
    }),
    gauge(
        "spillway_sections_lent_bytes",
        "The part of it that is lent to the store until guests need it.",
        |s| Some(s.lent_bytes),
    ),
];

/// Metrics of each guest.
pub(crate) const VM: [Metric<VmSample>; 13] = [
    gauge("spillway_vm_attached", "1 while the guest's monitor answers, else 0.", |v| {
        Some(u64::from(v.size_bytes.is_some()))
    }),
    gauge("spillway_vm_size_bytes", "The guest's memory, boot memory included.", |v| v.size_bytes),
    gauge("spillway_vm_target_bytes", "The size to which the policy would set the guest.", |v| {
        Some(v.target_bytes)
    }),
    gauge("spillway_vm_set_aside_bytes", "Memory reserved for the guest's devices.", |v| {
        Some(v.set_aside_bytes)
    }),
    gauge("spillway_vm_ready_bytes", "Memory allocated beyond that, for the next growth.", |v| {
        Some(v.ready_bytes)
    }),
    gauge(
        "spillway_vm_wanted_bytes",
        "Memory that the guest needs at once and could not be given.",
        |v| Some(v.wanted_bytes),
    ),
    gauge(
        "spillway_vm_kept_bytes",
        "Memory that the guest was recently asked to return, but kept.",
        |v| Some(v.kept_bytes),
    ),
    gauge(
        "spillway_vm_available_bytes",
        "Available memory in the guest, as its agent reports.",
        |v| v.available_bytes,
    ),
    counter(
        "spillway_vm_kills_total",
        "Processes that the guest's kernel killed for lack of memory, as its agent reports.",
        |v| v.kills,
    ),
    counter(
        "spillway_vm_ignored_messages_total",
        "Messages of the guest's agent that the daemon ignored: too many, or implausible.",
        |v| Some(v.ignored_messages),
    ),
    counter("spillway_vm_resizes_reached_total", "Changes of size that reached their goal.", |v| {
        Some(v.resizes[0])
    }),
    counter(
        "spillway_vm_resizes_failed_total",
        "Changes of size that did not reach their goal.",
        |v| Some(v.resizes[1]),
    ),
    counter("spillway_vm_resizes_refused_total", "Orders that the daemon refused.", |v| {
        Some(v.resizes[2])
    }),
];
