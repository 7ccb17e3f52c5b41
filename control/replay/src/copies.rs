//! Which copies of a run's unchanged pages stay in the store: `Store::copy_pays` of core/store/src/blade.rs
//! (docs/adr/0032-clean-copies-below.md), for a run whose blade is the node.

/// How long the store counts as short of room after a refused put, ns: as in core/tiers/src/blade.
const SHORT_NS: u64 = 8_000_000_000;
/// How long it sends no page after a refused put, ns.
const PAUSE_NS: u64 = 200_000_000;
/// Most pages from the disk for which removed copies leave room.
const LEFT_ROOM_MAX: u64 = 1024;

/// A run's knowledge of its copies.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    /// Pages whose copy was removed after they were read: they leave as if they had been written.
    without: Vec<bool>,
    refused_ns: Option<u64>,
    /// Copies removed from the store whose room no page from the disk has taken yet.
    left_room: u64,
}

impl Copies {
    /// Of a run with keys below `keys`.
    pub(crate) fn new(keys: u32) -> Self {
        Self { without: vec![false; keys as usize], refused_ns: None, left_room: 0 }
    }

    /// Records a page that leaves. Returns whether it goes to the disk, because the store has just refused one.
    pub(crate) fn goes_to_disk(&mut self, key: u32, now_ns: u64) -> bool {
        self.without[key as usize] = false;
        self.refused_ns.is_some_and(|refused_ns| now_ns < refused_ns + PAUSE_NS)
    }

    /// Records a put that the store has refused.
    pub(crate) fn refused(&mut self, now_ns: u64) {
        self.refused_ns = Some(now_ns);
    }

    /// Records a page that was read, from the store if `hit`, else from the disk. Returns whether its copy is removed.
    pub(crate) fn read(&mut self, key: u32, hit: bool, now_ns: u64) -> bool {
        let is_short = self.refused_ns.is_some_and(|refused| now_ns < refused + SHORT_NS);
        let removed = match (hit, is_short) {
            (true, false) => false,
            (true, true) => {
                self.left_room = (self.left_room + 1).min(LEFT_ROOM_MAX);
                true
            }
            (false, true) => {
                let is_room = self.left_room > 0;
                self.left_room = self.left_room.saturating_sub(1);
                is_room
            }
            (false, false) => true,
        };
        self.without[key as usize] = removed;
        removed
    }

    /// Whether an unchanged page that leaves must be put again.
    pub(crate) fn is_without(&self, key: u32) -> bool {
        self.without[key as usize]
    }

    /// Forgets all pages, as at the end of a program.
    pub(crate) fn forget(&mut self) {
        self.without.fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of ADR 32.
    #[test]
    fn copies_stay_where_there_is_room_for_them() {
        let mut copies = Copies::new(4);
        assert!(!copies.read(0, true, 0), "with room, the store's copy stays");
        assert!(copies.read(1, false, 0), "and the disk's is removed");
        assert!(copies.is_without(1) && !copies.is_without(0));
        assert!(!copies.goes_to_disk(1, 5));
        copies.refused(5);
        assert!(!copies.is_without(1), "it is on the disk again");
        assert!(copies.goes_to_disk(2, 4 + PAUSE_NS) && !copies.goes_to_disk(2, 5 + PAUSE_NS));
        assert!(!copies.read(1, false, 6), "without room, the disk's copy stays");
        assert!(copies.read(0, true, 7), "and the store's is removed");
        assert!(copies.read(1, false, 8), "which leaves room for one page from the disk");
        assert!(!copies.read(2, false, 9));
        assert!(!copies.read(3, true, 5 + SHORT_NS), "8 s after the refusal there is room again");
        copies.forget();
        assert!(!copies.is_without(0));
    }
}
