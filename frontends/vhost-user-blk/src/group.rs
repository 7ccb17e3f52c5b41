//! Groups of adjacent blocks that share a lock.

/// Blocks of a group. One request to the backing file covers at most one group.
pub const GROUP_BLOCKS: usize = 64;

/// A group of blocks.
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

/// The runs of ones in a mask: the start and length of each.
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
