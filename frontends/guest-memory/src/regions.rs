//! The regions of a handover, validated before use.

use serde::{Deserialize, Serialize};

use crate::{Error, REGIONS_MAX};

const SMALL: u64 = 4096;
const LARGE: u64 = 2 << 20;
/// End of the address space (five levels of page tables).
const ADDRESS_END: u64 = 1 << 56;

/// A region as the monitor names it, unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Its address in the monitor's memory.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Its offset in its file.
    pub offset: u64,
    /// Size of its pages.
    pub page_bytes: u64,
    /// Which of the memory files holds it.
    pub file: usize,
}

/// A checked region. A *unit* is a page of the guest, of whatever size. Units are numbered across all regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its address in the monitor's memory.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Its offset in its file.
    pub offset: u64,
    /// Which of the memory files holds it.
    pub file: usize,
    /// The number of its first unit.
    pub first: u64,
}

/// The regions of a guest, by address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    regions: Vec<Region>,
    unit_bytes: u64,
    units: u64,
}

/// Consecutive units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub first: u64,
    /// The number of units.
    pub count: u64,
}

impl Run {
    /// One unit.
    pub const fn one(unit: u64) -> Self {
        Self { first: unit, count: 1 }
    }

    /// The unit after the last.
    pub const fn end(self) -> u64 {
        self.first + self.count
    }

    /// Its units.
    pub const fn units(self) -> core::ops::Range<u64> {
        self.first..self.end()
    }
}

impl Layout {
    /// Checks a monitor's regions against the lengths of the received memory files.
    ///
    /// # Errors
    /// Says what is wrong with the first invalid region.
    pub fn check(claimed: &[Claimed], files: &[u64], paged_out: bool) -> Result<Self, Error> {
        if claimed.is_empty() {
            return Err(Error::NoRegion);
        }
        if claimed.len() > REGIONS_MAX {
            return Err(Error::ManyRegions(claimed.len()));
        }
        for (at, region) in claimed.iter().enumerate() {
            check_one(at, region, claimed[0].page_bytes, files, paged_out)?;
        }
        overlaps(claimed, |one| (0, one.address), Error::Overlap)?;
        overlaps(claimed, |one| (one.file, one.offset), Error::FileOverlap)?;
        Ok(Self::of(claimed))
    }

    fn of(claimed: &[Claimed]) -> Self {
        let unit_bytes = claimed[0].page_bytes;
        let mut sorted: Vec<&Claimed> = claimed.iter().collect();
        sorted.sort_by_key(|one| one.address);
        let mut units = 0;
        let regions = sorted.into_iter().map(|one| {
            let first = units;
            units += one.bytes / unit_bytes;
            let Claimed { address, bytes, offset, file, .. } = *one;
            Region { address, bytes, offset, file, first }
        });
        let regions = regions.collect();
        Self { regions, unit_bytes, units }
    }

    /// The regions, by address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes of a unit.
    pub const fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Number of units.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Bytes of all regions.
    pub const fn bytes(&self) -> u64 {
        self.units * self.unit_bytes
    }

    /// The unit that contains an address.
    pub fn unit_of(&self, address: u64) -> Option<u64> {
        let region = self.regions.partition_point(|region| region.address <= address);
        let region = &self.regions[region.checked_sub(1)?];
        let inside = address - region.address;
        (inside < region.bytes).then(|| region.first + inside / self.unit_bytes)
    }

    /// The region of a unit, and the unit's offset in it.
    pub fn locate(&self, unit: u64) -> (&Region, u64) {
        let region = self.regions.partition_point(|region| region.first <= unit);
        let region = &self.regions[region.saturating_sub(1)];
        (region, (unit - region.first) * self.unit_bytes)
    }

    /// Cuts a run at the end of the region in which it begins.
    pub fn within_region(&self, run: Run) -> Run {
        let (region, inside) = self.locate(run.first);
        let left = (region.bytes - inside) / self.unit_bytes;
        Run { first: run.first, count: run.count.min(left) }
    }

    /// The units that lie wholly or partly between two addresses, a run for each region.
    pub fn runs_between(&self, start: u64, end: u64) -> impl Iterator<Item = Run> + '_ {
        self.regions.iter().filter_map(move |region| {
            let from = start.max(region.address);
            let to = end.min(region.address + region.bytes);
            (from < to).then(|| {
                let first = (from - region.address) / self.unit_bytes;
                let last = (to - region.address).div_ceil(self.unit_bytes);
                Run { first: region.first + first, count: last - first }
            })
        })
    }
}

fn check_one(
    at: usize,
    region: &Claimed,
    page_bytes: u64,
    files: &[u64],
    paged_out: bool,
) -> Result<(), Error> {
    if region.bytes == 0 {
        return Err(Error::Empty(at));
    }
    // Large pages can't be evicted one small page at a time.
    if region.page_bytes != SMALL && (paged_out || region.page_bytes != LARGE) {
        return Err(Error::PageSize { region: at, bytes: region.page_bytes });
    }
    if region.page_bytes != page_bytes {
        return Err(Error::MixedPages(at));
    }
    let numbers = [("address", region.address), ("size", region.bytes), ("offset", region.offset)];
    for (what, value) in numbers {
        // In a memory file, a region of large pages may begin at any small page.
        let step = if what == "offset" { SMALL } else { page_bytes };
        if !value.is_multiple_of(step) {
            return Err(Error::Unaligned { region: at, what, value });
        }
    }
    let ends = |from: u64| from.checked_add(region.bytes).filter(|&end| end <= ADDRESS_END);
    let (Some(_), Some(end)) = (ends(region.address), ends(region.offset)) else {
        return Err(Error::Wraps(at));
    };
    let Some(&bytes) = files.get(region.file) else {
        return Err(Error::Missing { region: at, file: region.file, came: files.len() });
    };
    if end > bytes {
        return Err(Error::Beyond { region: at, end, bytes });
    }
    Ok(())
}

/// Refuses two regions that overlap by the addresses that `start` returns.
fn overlaps(
    claimed: &[Claimed],
    start: impl Fn(&Claimed) -> (usize, u64),
    error: impl Fn(usize, usize) -> Error,
) -> Result<(), Error> {
    let mut order: Vec<usize> = (0..claimed.len()).collect();
    order.sort_by_key(|&at| start(&claimed[at]));
    for pair in order.windows(2) {
        let (one, other) = (start(&claimed[pair[0]]), start(&claimed[pair[1]]));
        if one.0 == other.0 && other.1 - one.1 < claimed[pair[0]].bytes {
            return Err(error(pair[0].min(pair[1]), pair[0].max(pair[1])));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 1 << 30;

    fn region(address: u64, pages: u64, offset: u64) -> Claimed {
        Claimed { address, bytes: pages * SMALL, offset, page_bytes: SMALL, file: 0 }
    }

    fn check(claimed: &[Claimed]) -> Result<Layout, Error> {
        Layout::check(claimed, &[FILE], true)
    }

    #[test]
    fn regions_are_counted_through_by_address() {
        let layout = check(&[region(0x9000_0000, 4, 0x4000), region(0x1000_0000, 2, 0)]).unwrap();
        assert_eq!((layout.units(), layout.bytes()), (6, 6 * SMALL));
        assert_eq!(layout.unit_of(0x1000_0000), Some(0));
        assert_eq!(layout.unit_of(0x1000_1fff), Some(1));
        assert_eq!(layout.unit_of(0x1000_2000), None);
        assert_eq!(layout.unit_of(0x0fff_ffff), None);
        assert_eq!(layout.unit_of(0x9000_3fff), Some(5));
        assert_eq!(layout.unit_of(0x9000_4000), None);
        let (found, inside) = layout.locate(3);
        assert_eq!((found.offset, inside), (0x4000, SMALL));
        assert_eq!(layout.locate(1).1, SMALL);
        assert_eq!(layout.within_region(Run { first: 1, count: 9 }), Run::one(1));
        assert_eq!(layout.within_region(Run { first: 2, count: 9 }), Run { first: 2, count: 4 });
        let runs: Vec<Run> = layout.runs_between(0x1000_1000, 0x9000_1001).collect();
        assert_eq!(runs, [Run::one(1), Run { first: 2, count: 2 }]);
    }

    #[test]
    fn what_can_not_be_is_refused_with_its_own_line() {
        let good = region(0x1000_0000, 4, 0);
        let with = |change: fn(&mut Claimed)| {
            let mut bad = region(0x2000_0000, 4, 0x10_0000);
            change(&mut bad);
            check(&[good.clone(), bad]).unwrap_err()
        };
        assert_eq!(check(&[]), Err(Error::NoRegion));
        let many = vec![good.clone(); REGIONS_MAX + 1];
        assert_eq!(check(&many), Err(Error::ManyRegions(REGIONS_MAX + 1)));
        assert_eq!(with(|bad| bad.bytes = 0), Error::Empty(1));
        assert!(matches!(with(|bad| bad.page_bytes = 12), Error::PageSize { region: 1, .. }));
        assert!(matches!(with(|bad| bad.page_bytes = LARGE), Error::PageSize { region: 1, .. }));
        for (change, what) in [
            ((|bad: &mut Claimed| bad.address += 1) as fn(&mut Claimed), "address"),
            (|bad| bad.bytes += 1, "size"),
            (|bad| bad.offset += 1, "offset"),
        ] {
            let error = with(change);
            assert!(matches!(error, Error::Unaligned { region: 1, what: its, .. } if its == what));
        }
        assert_eq!(with(|bad| bad.address = u64::MAX - SMALL + 1), Error::Wraps(1));
        assert_eq!(with(|bad| bad.address = ADDRESS_END - SMALL), Error::Wraps(1));
        assert_eq!(with(|bad| bad.offset = u64::MAX - SMALL + 1), Error::Wraps(1));
        assert_eq!(with(|bad| bad.file = 1), Error::Missing { region: 1, file: 1, came: 1 });
        let end = FILE + 3 * SMALL;
        assert_eq!(
            with(|bad| bad.offset = FILE - SMALL),
            Error::Beyond { region: 1, end, bytes: FILE }
        );
        assert_eq!(with(|bad| bad.address = 0x1000_3000), Error::Overlap(0, 1));
        assert_eq!(with(|bad| bad.address = 0x0fff_d000), Error::Overlap(0, 1));
        assert_eq!(with(|bad| bad.offset = 0x3000), Error::FileOverlap(0, 1));
        // Adjacent regions do not overlap.
        assert!(check(&[good.clone(), region(0x1000_4000, 4, 0x4000)]).is_ok());
        for line in [with(|bad| bad.file = 1), Error::NoRegion, Error::Late(5)] {
            assert!(!line.to_string().contains('\n'));
        }
    }

    #[test]
    fn large_pages_are_served_where_nothing_is_paged_out() {
        let large = Claimed { page_bytes: LARGE, bytes: LARGE, ..region(LARGE, 0, SMALL) };
        assert!(Layout::check(std::slice::from_ref(&large), &[FILE], false).is_ok());
        let odd = Claimed { address: LARGE + SMALL, ..large.clone() };
        assert!(Layout::check(&[odd], &[FILE], false).is_err());
        let small = region(1 << 40, 1, 1 << 29);
        assert_eq!(Layout::check(&[large, small], &[FILE], false), Err(Error::MixedPages(1)));
    }
}
