//! What a change of managed memory on its way will do.

use spillway_platform::lock::Lock;

use crate::holds::Holds;

/// The change in progress; see [`crate::change`].
pub(crate) struct ChangeInProgress {
    /// Ranges being unmapped, replaced or moved.
    pub(crate) ranges: Holds,
    /// Its effect.
    pub(crate) plan: Lock<Plan>,
}

impl ChangeInProgress {
    pub(crate) const fn new() -> Self {
        Self { ranges: Holds::new(), plan: Lock::new(Plan::NONE) }
    }
}

/// An address range: first byte, byte after the last.
pub(crate) type Range = (usize, usize);

/// The empty range.
pub(crate) const NOTHING: Range = (0, 0);

/// The effect of the change in progress, for readers of the kernel's events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Ranges that the calling thread forgets once the kernel has answered.
    pub(crate) gone: [Range; 2],
    /// The target of a move, which replaces mappings there.
    pub(crate) target: Range,
    /// The old place stays mapped when its pages have moved away.
    pub(crate) keeps_source: bool,
}

impl Plan {
    /// No change.
    pub(crate) const NONE: Self = Self { gone: [NOTHING; 2], target: NOTHING, keeps_source: false };

    /// Whether the calling thread handles a range that the kernel unmapped.
    pub(crate) fn covers(&self, start: usize, end: usize) -> bool {
        self.gone.iter().any(|&(from, to)| from <= start && end <= to)
    }
}
