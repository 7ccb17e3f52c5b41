//! Paged programs: what the supervisor of one tells a daemon of its local frames, and what it is told.

use crate::{ClientId, Denied, Statistics};

/// Local frames that a program can't do without, pages: those that one instruction and its system call touch.
pub const PROGRAM_PAGES_MIN: u64 = 256;

/// Who asks for a program to be counted among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration<'a> {
    /// User of the supervisor, as the kernel vouches for it.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process.
    pub pid: i32,
    /// What the program calls itself; nobody vouches for that.
    pub program: &'a str,
    /// Most local frames that its user gave it, pages.
    pub local_pages: u64,
    /// What it holds to now, pages: less than that when a daemon before this one has said so.
    pub budget_pages: u64,
}

/// What a program did since it began, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Pages that are resident.
    pub resident_pages: u64,
    /// Of its budget, pages that its evictor keeps free ahead of need.
    pub reserve_pages: u64,
    /// Faults of any kind.
    pub faults: u64,
    /// Faults on a page that was never touched before.
    pub first_touches: u64,
    /// Faults on a page that had left, for want of local frames.
    pub refaults: u64,
    /// Pages that left.
    pub pages_out: u64,
}

impl ProgramCounters {
    /// The same in the words of tmem, with local frames in the place of the store's: a page that wants a frame is a put,
    /// one that had left for want of a frame a refused put. What finds its page without a fault is seen by nobody.
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

/// What a program is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Local frames that it may hold, pages; `u64::MAX` leaves it what its user gave it.
    pub target_pages: u64,
    /// Whether an operator lets it hold more than its user gave it.
    pub beyond_local: bool,
    /// When it is to report again, milliseconds.
    pub interval_ms: u32,
}

/// The programs of a host, as their frontend sees them.
pub trait Programs: Send + Sync {
    /// Counts a program in. Whoever got an id calls [`Self::leave`] once when the program has ended.
    ///
    /// # Errors
    /// [`Denied`]: nobody may do that for this user, or it has as many programs as it may have.
    fn register(&self, who: Registration<'_>) -> Result<(ClientId, Orders), Denied>;

    /// Takes a program's counters, and says what it may hold.
    fn report(&self, program: ClientId, counters: ProgramCounters) -> Orders;

    /// A program has ended.
    fn leave(&self, program: ClientId);
}
