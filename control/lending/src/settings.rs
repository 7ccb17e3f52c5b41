//! The operator's settings of lending.

use core::time::Duration;

use crate::message::is_slab;
use crate::{Error, Mode};

/// Upper limit of a borrower's devices: the kernel supports some 30 swap areas.
pub const DEVICES_MAX: u32 = 8;

/// The settings of one host's machine. Hosts that lend to each other may differ in all of them: a request names its
/// slabs' size, an ack its lease, a recall its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Memory use above which a host borrows, or recalls its loans, permille (Tupper).
    pub upper_permille: u32,
    /// Memory use below which a host returns devices, including the pages that would come back from swap,
    /// permille (Tlower).
    pub lower_permille: u32,
    /// How long memory use must be beyond a threshold before the host acts.
    pub dwell: Duration,
    /// How much a lender can share.
    pub shareable: Shareable,
    /// Whether one host may borrow and lend at the same time.
    pub roles: Roles,
    /// The place of each slab's second copy.
    pub backup: Backup,
    /// How loans are used.
    pub mode: Mode,
    /// Bytes of a slab: a power of two, 1 MiB to 1 GiB.
    pub slab_bytes: u64,
    /// Capacity of the local file in slabs, for all devices; 0 means no file.
    pub file_slabs: u64,
    /// Fewest slabs to borrow at a time. A swap device can't grow, and there are few of them.
    pub device_slabs_min: u32,
    /// Most slabs of a device.
    pub device_slabs_max: u32,
    /// Most devices, 1 to 8.
    pub devices_max: u32,
    /// How long a borrower waits for the answer to a request, including one repetition, before it asks another
    /// host.
    pub answer_timeout: Duration,
    /// How often a borrower asks further lenders for missing slabs, before it uses what it has.
    pub rounds_max: u32,
    /// Pause before a refused or failed action is retried; up to half of it is added at random.
    pub retry: Duration,
    /// How long a loan lasts unless renewed. It is renewed after each third of that.
    pub lease: Duration,
    /// How long a lender waits beyond the lease: more than clocks drift apart within a lease.
    pub lease_margin: Duration,
    /// How long a borrower has when a loan is recalled: at least the lease and its margin.
    pub recall_deadline: Duration,
    /// Slabs that are copied to a new place at the same time.
    pub moves_max: u32,
    /// A slab whose copying takes longer than this no longer counts against that limit, so that others need not wait
    /// for it. Including such slabs there are at most four times as many.
    pub slow_move: Duration,
}

/// What a lender can share (the paper's equations 1 and 2). In both cases a grant counts in full from its
/// reservation, and no grant is made that would exceed the upper threshold if fully used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shareable {
    /// Everything except this many bytes, which the host keeps for itself (Mt - Mr).
    Reserve(u64),
    /// Memory that is not in use at the time (Mt - Mu).
    Dynamic,
}

/// Whether one host may borrow and lend at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roles {
    /// Never: through neutral between the roles, as in the paper.
    Single,
    /// It may. This is safe while it lends only local memory that is never swapped out: the daemon's memory is locked,
    /// and only local memory counts as lendable, never borrowed memory. Otherwise two hosts could each need the other
    /// to free a page.
    Both,
}

/// Where the second copy of each slab lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backup {
    /// There is none: if a lender is lost, so are its pages. The operator must choose this explicitly.
    None,
    /// With a second lender; in the local file if there is no second lender and the slab fits.
    Mirror,
    /// In the local file, through a write-back buffer.
    File,
}

impl Default for Settings {
    /// Borrow above 80 % for 1 s, return below 60 %; single role, mirrored, 64 MiB slabs, no local file.
    fn default() -> Self {
        Self {
            upper_permille: 800,
            lower_permille: 600,
            dwell: Duration::from_secs(1),
            shareable: Shareable::Dynamic,
            roles: Roles::Single,
            backup: Backup::Mirror,
            mode: Mode::FanOut,
            slab_bytes: 64 << 20,
            file_slabs: 0,
            device_slabs_min: 16,
            device_slabs_max: 1024,
            devices_max: DEVICES_MAX,
            answer_timeout: Duration::from_secs(1),
            rounds_max: 4,
            retry: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            lease_margin: Duration::from_secs(2),
            recall_deadline: Duration::from_secs(60),
            moves_max: 4,
            slow_move: Duration::from_secs(15),
        }
    }
}

impl Settings {
    /// Checks the settings against each other.
    ///
    /// # Errors
    /// [`Error::Settings`] with the first contradiction.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = [
            (self.upper_permille > 1000, "upper: a share of memory, at most 1"),
            (self.lower_permille >= self.upper_permille, "lower: must be less than upper"),
            (!is_slab(self.slab_bytes), "slab_bytes: a power of two, 1 MiB to 1 GiB"),
            (
                self.devices_max == 0 || self.devices_max > DEVICES_MAX,
                "devices_max: 1 to 8 swap devices",
            ),
            (
                self.device_slabs_min == 0 || self.device_slabs_min > self.device_slabs_max,
                "a device has at least 1 slab, and at most as many as its largest",
            ),
            (
                self.device_slabs_max > crate::LOAN_SLABS_MAX,
                "a device has at most 65536 slabs; make slabs larger",
            ),
            (self.rounds_max == 0 || self.moves_max == 0, "rounds and moves: at least 1"),
            (
                [self.answer_timeout, self.retry, self.lease, self.slow_move]
                    .iter()
                    .any(Duration::is_zero),
                "times: more than 0",
            ),
            (
                self.answer_timeout * 3 > self.lease,
                "lease: at least three times the time to answer, or no renewal can be late",
            ),
            (
                self.recall_deadline < self.lease + self.lease_margin,
                "recall_deadline: at least lease and margin, or a borrower could use what was taken back",
            ),
            (
                self.recall_deadline.as_millis() > u128::from(crate::MESSAGE_MS_MAX),
                "recall_deadline: at most a week",
            ),
            (
                self.backup == Backup::File && self.file_slabs == 0,
                "backup: the local file has no room for a slab",
            ),
            (
                self.mode == Mode::Direct && self.backup != Backup::None,
                "mode: direct has no backup; set backup none, and mirror with the kernel's md",
            ),
        ];
        match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, why)) => Err(Error::Settings(why)),
            None => Ok(()),
        }
    }

    /// A share of `bytes`.
    pub const fn share(bytes: u64, permille: u32) -> u64 {
        (bytes as u128 * permille as u128 / 1000) as u64
    }
}
