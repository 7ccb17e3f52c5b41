//! Paged programs: what a program's supervisor reports to a daemon, and the targets that the daemon returns.

use crate::{ClientId, Denied, Statistics};

/// Least local frames of a program, pages: enough for all pages that one instruction or system call touches.
pub const PROGRAM_PAGES_MIN: u64 = 256;

/// A supervisor's request to register its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration<'a> {
    /// User of the supervisor, from the kernel.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: i32,
    /// The name that the supervisor gives for the program; not verified.
    pub program: &'a str,
    /// The limit on local frames that its user set, pages.
    pub local_pages: u64,
    /// Its present limit, pages. Less than `local_pages` if an earlier daemon gave it a lower target.
    pub budget_pages: u64,
}

/// A program's counters since its start, and the pages that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Pages that are resident.
    pub resident_pages: u64,
    /// Pages of its budget that its evictor keeps free ahead of need.
    pub reserve_pages: u64,
    /// Faults of any kind.
    pub faults: u64,
    /// Faults on a page that was never touched before.
    pub first_touches: u64,
    /// Faults on a page that had been paged out.
    pub refaults: u64,
    /// Pages that were paged out.
    pub pages_out: u64,
}

impl ProgramCounters {
    /// The counters as a client's statistics, with local frames in place of the store's pages. A first touch is a
    /// stored put, a fault on a page that was paged out is a refused put and a miss. Accesses without a fault are not
    /// counted.
    pub const fn statistics(&self, target_pages: u64) -> Statistics {
        Statistics {
            puts: self.first_touches.saturating_add(self.refaults),
            puts_stored: self.first_touches,
            puts_refused_at_target: self.refaults,
            puts_refused_node_full: 0,
            puts_refused_other: 0,
            gets: self.faults,
            hits: self.faults.saturating_sub(self.refaults),
            misses: self.refaults,
            flushed_pages: 0,
            evicted_pages: self.pages_out,
            used_pages: self.resident_pages,
            target_pages,
            reserved_pages: 0,
        }
    }
}

/// A daemon's answer to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Local frames that it may hold, pages. `u64::MAX`: the limit that its user set.
    pub target_pages: u64,
    /// Whether an operator allows it more frames than its user set.
    pub beyond_local: bool,
    /// Time until its next report, ms.
    pub interval_ms: u32,
}

/// The registry of a host's programs, as their frontend sees it.
pub trait Programs: Send + Sync {
    /// Registers a program. The caller calls [`Self::leave`] once when the program has ended.
    ///
    /// # Errors
    /// [`Denied`]: the user may not register programs, or is at its limit of programs.
    fn register(&self, who: Registration<'_>) -> Result<(ClientId, Orders), Denied>;

    /// Records a program's counters, and returns its target.
    fn report(&self, program: ClientId, counters: ProgramCounters) -> Orders;

    /// Removes a program that has ended.
    fn leave(&self, program: ClientId);

    /// Counts a connection that is closed because it sent no hello in time.
    fn hello_late(&self) {}
}
