//! A client's own memory: turns accesses to pages into requests to the store.
//!
//! The least recently used page leaves. The meaning of a key depends on the kind of client ([`Keys`]): the pager and
//! the libraries use pages, a kernel that swaps uses slots of its disk.

use crate::keys::Keys;
use crate::trace::{Event, KEYS_MAX, Step, Trace};

const NONE: u32 = u32::MAX;
/// Slots of a cluster of a swap disk: Linux discards whole clusters of 2 MiB.
const CLUSTER: u32 = 512;

#[derive(Clone, Copy, Debug)]
struct Page {
    newer: u32,
    older: u32,
    /// The key of its copy if it left and was not written since: its slot, or the page itself in a run. Else
    /// [`NONE`].
    slot: u32,
    resident: bool,
    far: bool,
}

const UNTOUCHED: Page = Page { newer: NONE, older: NONE, slot: NONE, resident: false, far: false };

/// A client's memory of a number of frames, and the trace so far.
#[derive(Debug)]
pub struct Local {
    frames: u32,
    keys: Keys,
    pages: Vec<Page>,
    resident: u32,
    newest: u32,
    oldest: u32,
    swap: Swap,
    think_ns: u64,
    trace: Trace,
}

impl Local {
    /// An empty memory of `frames` pages, at least one.
    pub fn new(name: impl Into<String>, frames: u32, keys: Keys) -> Self {
        Self {
            frames: frames.max(1),
            keys,
            pages: Vec::new(),
            resident: 0,
            newest: NONE,
            oldest: NONE,
            swap: Swap::default(),
            think_ns: 0,
            trace: Trace { name: name.into(), kind: keys, ..Trace::default() },
        }
    }

    /// Ends the program, and returns its trace.
    pub fn finish(mut self) -> Trace {
        self.exit();
        self.trace
    }

    /// Idles for some time.
    pub fn sleep(&mut self, ms: u32) {
        self.emit(Step::Sleep(ms.min(KEYS_MAX - 1)));
    }

    /// Marks a shift of demand.
    pub fn shift(&mut self) {
        self.emit(Step::Shift);
    }

    /// Frees all pages, as the end of a process does.
    pub fn exit(&mut self) {
        self.emit(Step::Exit);
        let keys = match self.keys {
            Keys::Pages | Keys::Run => self.pages.len(),
            Keys::Frontswap | Keys::Slots => self.swap.slots.len(),
        };
        self.trace.keys = self.trace.keys.max(keys as u32);
        self.pages.fill(UNTOUCHED);
        (self.resident, self.newest, self.oldest) = (0, NONE, NONE);
        self.swap = Swap::default();
    }

    /// Computes for `think_ns` and touches a page, which is below [`KEYS_MAX`].
    #[inline]
    pub fn access(&mut self, page: u32, write: bool, think_ns: u32) {
        self.think_ns += u64::from(think_ns);
        self.trace.accesses += 1;
        if page as usize >= self.pages.len() {
            self.pages.resize(page as usize + 1, UNTOUCHED);
        }
        if self.pages[page as usize].resident {
            if self.newest != page {
                self.unlink(page);
                self.link(page);
            }
        } else {
            self.fault(page);
        }
        if write && self.pages[page as usize].slot != NONE {
            self.free_slot(page);
        }
    }

    fn fault(&mut self, page: u32) {
        if self.resident == self.frames {
            self.evict();
        }
        let Page { far, slot, .. } = self.pages[page as usize];
        if far {
            match self.keys {
                Keys::Pages => self.emit(Step::Take(page)),
                Keys::Run => self.emit(Step::Read(page)),
                Keys::Frontswap | Keys::Slots => self.emit(Step::Get(slot)),
            }
        }
        let its = &mut self.pages[page as usize];
        (its.far, its.resident) = (false, true);
        self.resident += 1;
        self.link(page);
    }

    fn evict(&mut self) {
        let page = self.oldest;
        self.unlink(page);
        self.resident -= 1;
        let its = &mut self.pages[page as usize];
        (its.resident, its.far) = (false, true);
        match self.keys {
            Keys::Pages => self.emit(Step::Put(page)),
            Keys::Run if its.slot == NONE => {
                its.slot = page;
                self.emit(Step::Put(page));
            }
            Keys::Run => self.emit(Step::Leave(page)),
            Keys::Frontswap | Keys::Slots if its.slot == NONE => {
                let slot = self.swap.allocate();
                its.slot = slot;
                self.emit(Step::Put(slot));
            }
            // The page is clean: its slot holds a copy.
            Keys::Frontswap | Keys::Slots => {}
        }
    }

    /// Frees the slot of a page that was written.
    fn free_slot(&mut self, page: u32) {
        let slot = core::mem::replace(&mut self.pages[page as usize].slot, NONE);
        if self.keys == Keys::Run {
            return self.emit(Step::Flush(slot));
        }
        let cluster = self.swap.free(slot);
        if self.keys == Keys::Frontswap {
            self.emit(Step::Flush(slot));
        } else if let Some(cluster) = cluster {
            for slot in cluster..cluster + CLUSTER {
                self.emit(Step::Flush(slot));
            }
        }
    }

    fn emit(&mut self, step: Step) {
        // Split a time that does not fit into a word.
        while self.think_ns > u64::from(u32::MAX) {
            self.think_ns -= u64::from(u32::MAX);
            self.trace.events.push(Event::new(u32::MAX, Step::Sleep(0)));
        }
        self.trace.events.push(Event::new(self.think_ns as u32, step));
        self.think_ns = 0;
    }

    fn link(&mut self, page: u32) {
        let older = core::mem::replace(&mut self.newest, page);
        let its = &mut self.pages[page as usize];
        (its.newer, its.older) = (NONE, older);
        match older {
            NONE => self.oldest = page,
            older => self.pages[older as usize].newer = page,
        }
    }

    fn unlink(&mut self, page: u32) {
        let Page { newer, older, .. } = self.pages[page as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.pages[older as usize].newer = newer,
        }
    }
}

/// Slots of a swap disk, allocated cluster by cluster like Linux does for a disk without seeks.
#[derive(Debug, Default)]
struct Swap {
    slots: Vec<bool>,
    /// Used slots of each cluster.
    used: Vec<u32>,
    free_clusters: std::collections::VecDeque<u32>,
    cluster: Option<u32>,
    next: u32,
}

impl Swap {
    fn allocate(&mut self) -> u32 {
        loop {
            let end = self.cluster.map_or(0, |cluster| (cluster + 1) * CLUSTER);
            while self.next < end {
                let slot = self.next;
                self.next += 1;
                if !self.slots[slot as usize] {
                    self.slots[slot as usize] = true;
                    self.used[(slot / CLUSTER) as usize] += 1;
                    return slot;
                }
            }
            self.next_cluster();
        }
    }

    /// A free cluster; else one of those with the most free slots; else a new one.
    fn next_cluster(&mut self) {
        let before = self.cluster;
        let free = self.free_clusters.pop_front().or_else(|| {
            let emptiest = (0..self.used.len() as u32)
                .filter(|&cluster| Some(cluster) != before)
                .min_by_key(|&cluster| self.used[cluster as usize]);
            emptiest.filter(|&cluster| self.used[cluster as usize] < CLUSTER / 2)
        });
        let cluster = free.unwrap_or_else(|| {
            self.used.push(0);
            self.slots.resize(self.slots.len() + CLUSTER as usize, false);
            self.used.len() as u32 - 1
        });
        self.cluster = Some(cluster);
        self.next = cluster * CLUSTER;
    }

    /// Frees a slot. Returns the first slot of a cluster to discard.
    fn free(&mut self, slot: u32) -> Option<u32> {
        self.slots[slot as usize] = false;
        let cluster = slot / CLUSTER;
        self.used[cluster as usize] -= 1;
        let idle = self.used[cluster as usize] == 0 && self.cluster != Some(cluster);
        idle.then(|| {
            self.free_clusters.push_back(cluster);
            cluster * CLUSTER
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(trace: &Trace) -> Vec<Step> {
        trace.events.iter().map(|event| event.step()).collect()
    }

    #[test]
    fn pages_leave_by_least_recent_use_and_are_taken_back() {
        let mut local = Local::new("a", 2, Keys::Pages);
        for page in [0, 1, 0, 2, 1, 0] {
            local.access(page, false, 10);
        }
        let trace = local.finish();
        assert_eq!(
            steps(&trace),
            [Step::Put(1), Step::Put(0), Step::Take(1), Step::Put(2), Step::Take(0), Step::Exit]
        );
        assert_eq!(trace.compute_ns(), 60);
        assert_eq!((trace.keys, trace.accesses), (3, 6));
        assert_eq!(trace.events[0].think_ns, 40);
    }

    #[test]
    fn a_clean_page_keeps_its_slot_and_a_written_one_gets_another() {
        let mut local = Local::new("a", 1, Keys::Slots);
        for (page, write) in [(0, true), (1, true), (0, false), (1, true), (0, false)] {
            local.access(page, write, 0);
        }
        assert_eq!(
            steps(&local.finish()),
            [
                Step::Put(0),
                Step::Put(1),
                Step::Get(0),
                // Page 0 leaves without a put; page 1 is written, so its slot is free.
                Step::Get(1),
                Step::Put(2),
                Step::Get(0),
                Step::Exit,
            ]
        );
    }

    #[test]
    fn an_unchanged_page_of_a_run_only_leaves_and_a_written_one_is_put() {
        let mut local = Local::new("a", 1, Keys::Run);
        for (page, write) in [(0, true), (1, true), (0, false), (1, true), (0, false)] {
            local.access(page, write, 0);
        }
        let trace = local.finish();
        let back = [Step::Read(0), Step::Leave(0), Step::Read(1), Step::Flush(1), Step::Put(1)];
        let all = [Step::Put(0), Step::Put(1)].into_iter().chain(back);
        assert_eq!(steps(&trace), all.chain([Step::Read(0), Step::Exit]).collect::<Vec<_>>());
        assert_eq!(trace.keys, 2);
    }

    #[test]
    fn a_cluster_without_pages_is_discarded() {
        let mut swap = Swap::default();
        let slots: Vec<_> = (0..CLUSTER + 1).map(|_| swap.allocate()).collect();
        assert_eq!(slots[CLUSTER as usize], CLUSTER);
        for &slot in &slots[..CLUSTER as usize - 1] {
            assert_eq!(swap.free(slot), None);
        }
        assert_eq!(swap.free(CLUSTER - 1), Some(0));
        for slot in CLUSTER + 1..2 * CLUSTER {
            assert_eq!(swap.allocate(), slot);
        }
        assert_eq!(swap.allocate(), 0, "a free cluster is used again");
    }
}
