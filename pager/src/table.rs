//! The page table: one word for each managed page, found by its address.
//!
//! A tree of three levels over the 47-bit address space: a gigabyte, two megabytes, a page. Its
//! memory is private and anonymous, so a forked child has a copy of its own. A page without an
//! entry, or with entry 0, has never been touched: it reads as zero.

use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::map_native;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// Pages that are evicted together: a window. One word of bits has room for one.
pub const WINDOW_PAGES: usize = 64;
/// Pages of a leaf: two megabytes.
pub const LEAF_PAGES: usize = 512;
const LEAF_BYTES: usize = LEAF_PAGES * PAGE_SIZE;
const NODE_LEAVES: usize = 512;
const NODE_BYTES: usize = NODE_LEAVES * LEAF_BYTES;
const NODES: usize = (1 << 47) / NODE_BYTES;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PageState {
    /// Nowhere: it reads as zero.
    Untouched = 0,
    /// In the program's memory.
    Resident = 1,
    /// In the store, under [`Entry::handle`].
    Far = 2,
    /// In transit to the program; the task that set this completes it.
    Filling = 3,
    /// In transit out of the program; the task that set this completes it.
    Leaving = 4,
    /// In the victim pool, in the staging slot [`Entry::handle`].
    Pooled = 5,
    /// Lost to a checksum: a touch raises SIGBUS.
    Poisoned = 6,
}

/// The word of a page: its state, flags, and a 48-bit number that belongs to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// The empty entry.
    pub const NONE: Self = Self(0);
    /// The store still holds the page's bytes under the entry's handle: it is write-protected
    /// since it was read in.
    pub const CLEAN: u64 = 1 << 3;
    /// A thread waits until the page has arrived or left, and must be woken then.
    pub const WAITED: u64 = 1 << 4;
    /// The page came with a fork and is counted by the process it came from.
    pub const INHERITED: u64 = 1 << 5;
    /// The kernel refused to move the page when the hand last passed.
    pub const REFUSED: u64 = 1 << 6;
    /// A thread that dropped the page is asking the kernel whether it is gone. Whoever fills the page meanwhile takes
    /// the flag away.
    pub const ASKED: u64 = 1 << 7;
    const STATE: u64 = 7;
    const HANDLE_SHIFT: u32 = 16;

    /// An entry in a state, without flags.
    #[must_use]
    pub const fn new(state: PageState, handle: u64) -> Self {
        Self(state as u64 | handle << Self::HANDLE_SHIFT)
    }

    /// The same with these flags added.
    #[must_use]
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    /// The same with these flags taken away.
    #[must_use]
    pub const fn without(self, flags: u64) -> Self {
        Self(self.0 & !flags)
    }

    /// The same in another state: flags and handle stay.
    #[must_use]
    pub const fn to(self, state: PageState) -> Self {
        Self(self.0 & !Self::STATE | state as u64)
    }

    /// Where the page is.
    #[must_use]
    pub const fn state(self) -> PageState {
        match self.0 & Self::STATE {
            1 => PageState::Resident,
            2 => PageState::Far,
            3 => PageState::Filling,
            4 => PageState::Leaving,
            5 => PageState::Pooled,
            6 => PageState::Poisoned,
            _ => PageState::Untouched,
        }
    }

    /// Whether a flag is set.
    #[must_use]
    pub const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// The number that belongs to the state.
    #[must_use]
    pub const fn handle(self) -> u64 {
        self.0 >> Self::HANDLE_SHIFT
    }
}

/// The entries of two megabytes of addresses.
#[repr(C)]
pub struct Leaf {
    entries: [AtomicU64; LEAF_PAGES],
    /// Resident pages of the leaf, so that the hand can pass over empty ones.
    pub resident: AtomicI32,
}

impl Leaf {
    /// The word of the page at this place of the leaf.
    #[must_use]
    pub fn entry(&self, at: usize) -> &AtomicU64 {
        &self.entries[at]
    }

    /// The page's entry now.
    #[must_use]
    pub fn load(&self, at: usize) -> Entry {
        Entry(self.entries[at].load(Ordering::Acquire))
    }

    /// Replaces an entry if it is unchanged.
    #[must_use]
    pub fn exchange(&self, at: usize, seen: Entry, new: Entry) -> bool {
        self.entries[at]
            .compare_exchange(seen.0, new.0, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Replaces the entry of a page that the caller is filling or moving out, and returns whether a
    /// thread waits for that.
    pub fn settle(&self, at: usize, new: Entry) -> bool {
        let old = Entry(self.entries[at].swap(new.without(Entry::WAITED).0, Ordering::SeqCst));
        old.has(Entry::WAITED)
    }
}

#[repr(C)]
struct Node {
    leaves: [AtomicPtr<Leaf>; NODE_LEAVES],
}

/// The entries of all pages.
pub struct Table {
    nodes: *const AtomicPtr<Node>,
}

// SAFETY: the table is a tree of atomics that are never freed.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// An empty table.
    ///
    /// # Errors
    /// When the kernel gives no memory for the root.
    pub fn new() -> Result<Self, rustix::io::Errno> {
        let bytes = NODES * size_of::<AtomicPtr<Node>>();
        Ok(Self { nodes: map_native(bytes)? as *const AtomicPtr<Node> })
    }

    fn node(&self, address: usize) -> &AtomicPtr<Node> {
        // SAFETY: user addresses are below 2^47, so the place is inside the mapped, zeroed root.
        unsafe { &*self.nodes.add((address / NODE_BYTES) % NODES) }
    }

    /// The leaf of an address, if it has one.
    #[must_use]
    pub fn find(&self, address: usize) -> Option<&Leaf> {
        // SAFETY: pointers in the tree are null or point to zeroed nodes that live for ever.
        let node = unsafe { self.node(address).load(Ordering::Acquire).as_ref()? };
        let leaf = &node.leaves[address / LEAF_BYTES % NODE_LEAVES];
        // SAFETY: as above.
        unsafe { leaf.load(Ordering::Acquire).as_ref() }
    }

    /// The leaf of an address; it is made when there is none yet. None when no memory is left.
    #[must_use]
    pub fn leaf(&self, address: usize) -> Option<&Leaf> {
        let node = obtain(self.node(address))?;
        obtain(&node.leaves[address / LEAF_BYTES % NODE_LEAVES])
    }

    /// The leaf that has pages of `[start, end)` at or after `start`, and its first address in the
    /// range. Gigabytes without a node are passed over at once.
    #[must_use]
    pub fn next_leaf(&self, start: usize, end: usize) -> Option<(usize, &Leaf)> {
        let mut at = start;
        while at < end {
            if self.node(at).load(Ordering::Acquire).is_null() {
                at = (at / NODE_BYTES + 1) * NODE_BYTES;
            } else if let Some(leaf) = self.find(at) {
                return Some((at, leaf));
            } else {
                at = (at / LEAF_BYTES + 1) * LEAF_BYTES;
            }
        }
        None
    }

    /// Calls `visit` with the address, leaf and place of every page of a range that has a leaf.
    pub fn for_each(&self, start: usize, end: usize, mut visit: impl FnMut(usize, &Leaf, usize)) {
        let mut from = start;
        while let Some((at, leaf)) = self.next_leaf(from, end) {
            let stop = ((at / LEAF_BYTES + 1) * LEAF_BYTES).min(end);
            for address in (at..stop).step_by(PAGE_SIZE) {
                visit(address, leaf, place(address));
            }
            from = stop;
        }
    }
}

/// The place of an address's page in its leaf.
#[must_use]
pub const fn place(address: usize) -> usize {
    address / PAGE_SIZE % LEAF_PAGES
}

/// First address after the leaf of this one.
#[must_use]
pub const fn leaf_end(address: usize) -> usize {
    (address / LEAF_BYTES + 1) * LEAF_BYTES
}

/// The object a pointer leads to, made of zeroed memory when there is none; two that make it at
/// the same time agree on one.
fn obtain<T>(pointer: &AtomicPtr<T>) -> Option<&T> {
    let found = pointer.load(Ordering::Acquire);
    let target = if found.is_null() {
        let bytes = size_of::<T>().next_multiple_of(PAGE_SIZE);
        let made = map_native(bytes).ok()?;
        let won =
            pointer.compare_exchange(found, made as *mut T, Ordering::AcqRel, Ordering::Acquire);
        match won {
            Ok(_) => made as *mut T,
            Err(theirs) => {
                // SAFETY: this mapping was made above and nobody else has seen it.
                let _ = unsafe { rustix::mm::munmap(made as *mut _, bytes) };
                theirs
            }
        }
    } else {
        found
    };
    // SAFETY: not null; nodes and leaves are valid when zeroed and are never freed.
    unsafe { target.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_flags_and_handle_over_states() {
        let entry = Entry::new(PageState::Far, 0x1234_5678_9abc).with(Entry::CLEAN);
        let moved = entry.to(PageState::Resident);
        assert_eq!(moved.state(), PageState::Resident);
        assert!(moved.has(Entry::CLEAN));
        assert_eq!(moved.handle(), 0x1234_5678_9abc);
        assert_eq!(Entry::NONE.state(), PageState::Untouched);
    }

    #[test]
    fn leaves_are_found_over_gaps() {
        let table = Table::new().unwrap();
        let (low, high) = (0x1000_0000_0000, 0x7000_0020_0000);
        assert!(table.next_leaf(0, 1 << 47).is_none());
        table.leaf(high).unwrap().entry(place(high)).store(1, Ordering::Relaxed);
        let _ = table.leaf(low).unwrap();
        assert_eq!(table.next_leaf(0, 1 << 47).unwrap().0, low);
        assert_eq!(table.next_leaf(leaf_end(low), 1 << 47).unwrap().0, high);
        let mut resident = 0;
        table.for_each(low, high + PAGE_SIZE, |_, leaf, at| {
            resident += usize::from(leaf.load(at).state() == PageState::Resident);
        });
        assert_eq!(resident, 1);
    }
}
