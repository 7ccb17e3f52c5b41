//! Blocks that lie side by side and are locked together.

/// Blocks of a group, which one lock covers: what one request to the file moves at most.
pub const GROUP_BLOCKS: usize = 64;

/// Blocks of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) number: u64,
    pub(crate) first: u64,
}

impl Group {
    pub(crate) const fn of(block: u64) -> Self {
        let number = block / GROUP_BLOCKS as u64;
        Self { number, first: number * GROUP_BLOCKS as u64 }
    }
}

/// The runs of ones in a mask: where each begins and how long it is.
pub(crate) fn runs(mask: u64) -> impl Iterator<Item = (usize, usize)> {
    let mut rest = mask;
    let mut at = 0;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let skip = rest.trailing_zeros();
        let start = at + skip;
        let length = (rest >> skip).trailing_ones();
        at = start + length;
        rest = mask.checked_shr(at).unwrap_or(0);
        Some((start as usize, length as usize))
    })
}
