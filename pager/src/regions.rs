//! Which address ranges are managed, in order, none touching another of its kind.

/// A managed range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
    /// The program locked it: it stays resident and counts.
    pub locked: bool,
    /// The program asked that children do not get it.
    pub dont_fork: bool,
}

/// The managed ranges.
#[derive(Debug, Default)]
pub struct Regions {
    list: Vec<Region>,
    /// Single pages that stay resident, by address, and for how many reasons.
    kept: Vec<(usize, u32)>,
}

impl Regions {
    /// No ranges.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: Vec::new(), kept: Vec::new() }
    }

    /// All ranges by address.
    #[must_use]
    pub fn all(&self) -> &[Region] {
        &self.list
    }

    /// The range that holds an address.
    #[must_use]
    pub fn find(&self, address: usize) -> Option<&Region> {
        let after = self.list.partition_point(|r| r.start <= address);
        self.list[..after].last().filter(|r| address < r.end)
    }

    /// The range that holds an address or else the first one after it.
    #[must_use]
    pub fn at_or_after(&self, address: usize) -> Option<&Region> {
        self.list.get(self.list.partition_point(|r| r.end <= address))
    }

    /// The parts of `[start, end)` that are managed.
    pub fn overlaps(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let first = self.list.partition_point(|r| r.end <= start);
        self.list[first..]
            .iter()
            .take_while(move |r| r.start < end)
            .map(move |r| (r.start.max(start), r.end.min(end)))
    }

    /// Makes a range managed; it is neither locked nor kept from children, whatever it was.
    pub fn insert(&mut self, start: usize, end: usize) {
        self.remove(start, end);
        self.put(Region { start, end, locked: false, dont_fork: false });
    }

    /// Makes a range not managed.
    pub fn remove(&mut self, start: usize, end: usize) {
        self.split(start);
        self.split(end);
        self.list.retain(|r| r.end <= start || r.start >= end);
        let (first, last) = self.kept_between(start, end);
        self.kept.drain(first..last);
    }

    fn kept_between(&self, start: usize, end: usize) -> (usize, usize) {
        let first = self.kept.partition_point(|&(page, _)| page < start);
        let last = self.kept.partition_point(|&(page, _)| page < end);
        (first, last.max(first))
    }

    /// Keeps a page resident, for one reason more.
    pub fn keep(&mut self, page: usize) {
        match self.kept.binary_search_by_key(&page, |&(page, _)| page) {
            Ok(at) => self.kept[at].1 += 1,
            Err(at) => self.kept.insert(at, (page, 1)),
        }
    }

    /// Takes one reason away to keep a page resident.
    pub fn let_go(&mut self, page: usize) {
        if let Ok(at) = self.kept.binary_search_by_key(&page, |&(page, _)| page) {
            self.kept[at].1 -= 1;
            if self.kept[at].1 == 0 {
                self.kept.remove(at);
            }
        }
    }

    /// The pages between two addresses that stay resident.
    pub fn kept(&self, start: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        let (first, last) = self.kept_between(start, end);
        self.kept[first..last].iter().map(|&(page, _)| page)
    }

    /// Makes a range managed that was moved from elsewhere, with the marks that it had there. The old
    /// place is not managed any more, unless it is kept.
    pub fn move_range(&mut self, from: usize, to: usize, bytes: usize, keeps_source: bool) {
        let (start, end) = (from, from + bytes);
        let marks: Vec<_> = {
            let there = self.list.iter().filter(|r| r.start < end && start < r.end);
            there.map(|r| Region { start: r.start.max(start), end: r.end.min(end), ..*r }).collect()
        };
        let (first, last) = self.kept_between(start, end);
        let kept: Vec<_> = self.kept.drain(first..last).collect();
        if !keeps_source {
            self.remove(start, end);
        }
        self.insert(to, to + bytes);
        let at = self.kept_between(to, to).0;
        self.kept.splice(at..at, kept.into_iter().map(|(page, count)| (to + (page - from), count)));
        for old in marks.into_iter().filter(|r| r.locked || r.dont_fork) {
            let (first, last) = (to + (old.start - from), to + (old.end - from));
            self.change(first, last, |r| (r.locked, r.dont_fork) = (old.locked, old.dont_fork));
        }
    }

    /// Changes the managed parts of a range.
    pub fn change(&mut self, start: usize, end: usize, change: impl Fn(&mut Region)) {
        self.split(start);
        self.split(end);
        for region in &mut self.list {
            if region.start >= start && region.end <= end {
                change(region);
            }
        }
    }

    fn split(&mut self, at: usize) {
        let after = self.list.partition_point(|r| r.start < at);
        if after > 0 && self.list[after - 1].end > at {
            let tail = Region { start: at, ..self.list[after - 1] };
            self.list[after - 1].end = at;
            self.list.insert(after, tail);
        }
    }

    fn put(&mut self, new: Region) {
        let alike = |a: &Region, b: &Region| {
            a.end == b.start && a.locked == b.locked && a.dont_fork == b.dont_fork
        };
        let at = self.list.partition_point(|r| r.start < new.start);
        if at > 0 && alike(&self.list[at - 1], &new) {
            self.list[at - 1].end = new.end;
            if at < self.list.len() && alike(&self.list[at - 1], &self.list[at]) {
                self.list[at - 1].end = self.list[at].end;
                self.list.remove(at);
            }
        } else if at < self.list.len() && alike(&new, &self.list[at]) {
            self.list[at].start = new.start;
        } else {
            self.list.insert(at, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(regions: &Regions) -> Vec<(usize, usize)> {
        regions.all().iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn neighbours_join_and_holes_split() {
        let mut regions = Regions::new();
        regions.insert(10, 20);
        regions.insert(30, 40);
        regions.insert(20, 30);
        assert_eq!(ranges(&regions), [(10, 40)]);
        regions.remove(15, 25);
        assert_eq!(ranges(&regions), [(10, 15), (25, 40)]);
        assert_eq!(regions.overlaps(12, 30).collect::<Vec<_>>(), [(12, 15), (25, 30)]);
        assert!(regions.find(14).is_some() && regions.find(15).is_none());
        assert_eq!(regions.at_or_after(15).unwrap().start, 25);
    }

    #[test]
    fn kept_pages_move_along_and_go_with_their_range() {
        let mut regions = Regions::new();
        let kept = |regions: &Regions| regions.kept(0, usize::MAX).collect::<Vec<_>>();
        regions.insert(100, 200);
        for page in [150, 110, 150, 190] {
            regions.keep(page);
        }
        regions.let_go(150);
        assert_eq!(kept(&regions), [110, 150, 190]);
        regions.move_range(140, 1140, 20, true);
        assert_eq!(kept(&regions), [110, 190, 1150]);
        regions.remove(180, 200);
        regions.let_go(1150);
        assert_eq!(kept(&regions), [110]);
    }

    #[test]
    fn a_moved_range_keeps_its_marks() {
        let mut regions = Regions::new();
        regions.insert(100, 200);
        regions.change(120, 140, |r| r.dont_fork = true);
        regions.move_range(110, 1110, 50, false);
        assert_eq!(
            ranges(&regions),
            [(100, 110), (160, 200), (1110, 1120), (1120, 1140), (1140, 1160)]
        );
        assert!(regions.find(1130).unwrap().dont_fork && !regions.find(1150).unwrap().dont_fork);
        regions.move_range(1110, 2110, 50, true);
        assert!(regions.find(1130).is_some() && regions.find(2130).unwrap().dont_fork);
    }

    #[test]
    fn locked_parts_stay_apart() {
        let mut regions = Regions::new();
        regions.insert(0, 100);
        regions.change(40, 60, |r| r.locked = true);
        assert_eq!(ranges(&regions), [(0, 40), (40, 60), (60, 100)]);
        assert!(regions.find(50).unwrap().locked && !regions.find(60).unwrap().locked);
    }
}
