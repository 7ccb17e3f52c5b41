//! Equal values of a sharing domain in one frame or cell.
//!
//! A value that arrives, or a page that is packed, finds an equal one by the tables of
//! [`spillway_tiers::Arena`] and [`spillway_tiers::Cells`]. The scan finds remaining duplicates: a page
//! in a frame whose equal is packed, two that arrived at the same moment, one that came back from the
//! disk. It also restores list membership: shared memory is on a list through one of its entries, and
//! leaves the list when that entry is removed, even if others remain.

use spillway_tiers::blade::SEALED_PAGE_BYTES;
use spillway_tiers::sync::Ordering;
use spillway_tiers::{CellPin, Pinned, SHARED_BYTES_MIN, least_cell_bytes};
use spillway_types::PAGE_BYTES;

use crate::config::Dedup;
use crate::index::{Index, LEAF_SLOTS, LeafKey, ROOT_CHUNK};
use crate::list::List;
use crate::pool::Access;
use crate::position::{HandlePosition, SHARDS};
use crate::scan::{Scan, SharedMemory};
use crate::scratch::Packer;
use crate::slot::{PREPAID, Slot, ValueLocation};
use crate::store::Store;

/// A value that is not shared yet.
struct Alone<'a> {
    /// Where in its leaf it is.
    place: u32,
    slot: Slot,
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    Page(Pinned<'a>),
    Cell(CellPin<'a>),
}

impl Store {
    /// The sharing domain within which values of this kind share memory with equal ones, if they do.
    pub(crate) fn domain(&self, access: Access) -> Option<u16> {
        let shares = self.config.dedup != Dedup::Off && !access.ephemeral;
        shares.then(|| self.clients[usize::from(access.client)].domain())
    }

    /// Puts a value or a packed page into a cell, with a sharing domain into one of equal content if there is
    /// one. Also tells whether that is so. `None` when memory is out.
    pub(crate) fn store_cell(
        &self,
        domain: Option<u16>,
        content: &[u8],
        packed: bool,
    ) -> Option<(u32, bool)> {
        match domain {
            Some(domain) => self.cells.store_shared(&self.arena, domain, content, packed),
            None if packed => Some((self.cells.store_packed(&self.arena, content)?, false)),
            None => Some((self.cells.store(&self.arena, content)?, false)),
        }
    }

    /// Replaces full, unpublished frames by equal ones, or makes them findable.
    pub(crate) fn share_frames(&self, access: Access, frames: &mut [u32]) {
        let Some(domain) = self.domain(access) else { return };
        for frame in frames {
            let page = self.arena.content(*frame);
            if let Some(equal) = self.arena.find_shared(domain, page, *frame) {
                self.arena.release(*frame);
                *frame = equal;
            } else {
                self.arena.share(*frame, domain);
            }
        }
    }

    /// The sharing domain of a slot's value, if values share memory.
    pub(crate) fn domain_of_owner(&self, slot: Slot) -> Option<u16> {
        let shares = self.config.dedup != Dedup::Off && slot.owner() != PREPAID;
        shares.then(|| self.clients[usize::from(slot.owner())].domain())
    }

    /// Makes the memory of a slot's value findable for sharing.
    pub(crate) fn share_memory(&self, slot: Slot) {
        let Some(domain) = self.domain_of_owner(slot) else { return };
        match slot.place() {
            ValueLocation::Raw { frame, length, .. } if usize::from(length) == PAGE_BYTES => {
                self.arena.share(frame, domain);
            }
            ValueLocation::Small { cell, length } | ValueLocation::Packed { cell, length } => {
                self.cells.share(&self.arena, cell, domain, usize::from(length));
            }
            ValueLocation::Large { cell } => {
                self.large().each_frame(cell, &mut |frame| self.arena.share(frame, domain));
            }
            _ => {}
        }
    }

    /// References to the frame or cell of a persistent value: entries, and readers. 0 for one that lies in
    /// neither.
    fn references(&self, slot: Slot) -> u16 {
        match slot.place() {
            ValueLocation::Raw { frame, .. } => self.arena.meta(frame).references(),
            ValueLocation::Small { cell, .. } | ValueLocation::Packed { cell, .. } => {
                self.cells.meta(&self.arena, cell).references()
            }
            _ => 0,
        }
    }

    /// Counts a value that is replaced, before its memory is released.
    pub(crate) fn note_unshared(&self, old: Slot) {
        if self.config.dedup != Dedup::Off && self.references(old) > 1 {
            self.unshared_values.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Memory that values share; `None` if sharing is off.
    pub fn shared_memory(&self) -> Option<SharedMemory> {
        (self.config.dedup != Dedup::Off).then(|| SharedMemory {
            merged_values: self.merged_values.load(Ordering::Relaxed),
            unshared_values: self.unshared_values.load(Ordering::Relaxed),
            ..self.sharing_scan.lock().last
        })
    }

    /// Scans up to `values_max` values, from where the last call ended, for equal ones that do not share memory yet:
    /// hashes each, and also packs raw pages. Returns how many it scanned: fewer only at the end of the store, after
    /// which the next call restarts. One task at a time: another waits.
    pub fn scan_for_equals(&self, values_max: usize, packer: &mut Packer) -> usize {
        if self.config.dedup == Dedup::Off {
            return 0;
        }
        let mut scan = self.sharing_scan.lock();
        let mut looked_at = 0;
        while looked_at < values_max {
            let Some(more) = self.scan_leaf(&mut scan, packer) else { break };
            looked_at += more;
        }
        looked_at
    }

    /// Looks at the values of the next leaf. Gives how many there were, or `None` behind the last one.
    fn scan_leaf(&self, scan: &mut Scan, packer: &mut Packer) -> Option<usize> {
        let shard = scan.shard;
        let mut index = self.shards[shard].lock();
        if scan.leaf >= index.leaf_high() {
            drop(index);
            scan.leaf = 0;
            scan.shard = (shard + 1) % SHARDS;
            if scan.shard == 0 {
                scan.last = core::mem::take(&mut scan.seen);
                return None;
            }
            return Some(0);
        }
        let leaf = scan.leaf;
        scan.leaf += 1;
        if !index.is_live(leaf) {
            return Some(0);
        }
        let key = index.key(leaf);
        if key.chunk == ROOT_CHUNK || self.lifetimes.is_ephemeral(key.pool) {
            return Some(0);
        }
        let mut count = 0;
        let mut alone = [const { None }; LEAF_SLOTS];
        for (at, alone) in alone.iter_mut().enumerate() {
            let slot = index.slot(leaf, at as u32);
            if slot.is_empty() || slot.owner() == PREPAID {
                continue;
            }
            count += 1;
            self.count_scanned(slot, &mut scan.seen);
            self.count_shared(slot, &mut scan.seen);
            *alone = self.alone(&mut index, shard, leaf, at as u32);
        }
        drop(index);
        for value in alone.into_iter().flatten() {
            self.merge(key, value, packer);
        }
        Some(count)
    }

    /// Counts a value in memory that could be shared, or what keeps it from being shared.
    fn count_scanned(&self, slot: Slot, seen: &mut SharedMemory) {
        match slot.place() {
            ValueLocation::Raw { length, .. } => {
                seen.unfit_values += u64::from(usize::from(length) < PAGE_BYTES);
            }
            ValueLocation::Small { length, .. } | ValueLocation::Packed { length, .. } => {
                seen.unfit_values += u64::from(usize::from(length) < SHARED_BYTES_MIN);
            }
            ValueLocation::Large { cell } => {
                let is_sealed = self.large().length(cell) == SEALED_PAGE_BYTES;
                seen.sealed_values += u64::from(is_sealed);
            }
            _ => return,
        }
        seen.scanned_values += 1;
    }

    fn count_shared(&self, slot: Slot, seen: &mut SharedMemory) {
        let mut count = |references: u16, bytes: usize| {
            if references > 1 {
                seen.values += 1;
                // Each of them saves its part.
                seen.saved_bytes += (bytes - bytes / usize::from(references)) as u64;
            }
        };
        match slot.place() {
            ValueLocation::Small { length, .. } | ValueLocation::Packed { length, .. } => {
                count(self.references(slot), least_cell_bytes(usize::from(length)));
            }
            ValueLocation::Large { cell } => self.large().each_frame(cell, &mut |frame| {
                count(self.arena.meta(frame).references(), PAGE_BYTES);
            }),
            _ => count(self.references(slot), PAGE_BYTES),
        }
    }

    /// Pins the value of a slot whose memory is not shared, and lists it if it can be moved.
    fn alone(&self, index: &mut Index, shard: usize, leaf: u32, at: u32) -> Option<Alone<'_>> {
        let mut slot = index.slot(leaf, at);
        // One that is being moved has a second reference.
        if self.references(slot) != 1 {
            return None;
        }
        if !slot.listed() && List::of(slot.place(), false).is_some() {
            slot = self.list(slot, shard, leaf, at, false);
            let kept = index.set(leaf, at, slot, self.budget());
            debug_assert!(kept, "changing a used slot takes no memory");
        }
        let bytes = match slot.place() {
            ValueLocation::Raw { frame, length, .. } if usize::from(length) == PAGE_BYTES => {
                Bytes::Page(self.arena.pin(frame)?)
            }
            ValueLocation::Small { cell, length } | ValueLocation::Packed { cell, length } => {
                Bytes::Cell(self.cells.pin(&self.arena, cell, usize::from(length))?)
            }
            _ => return None,
        };
        Some(Alone { place: at, slot, bytes })
    }

    /// Makes a value share the memory of an equal one, if there is one; otherwise makes it findable.
    fn merge(&self, key: LeafKey, value: Alone<'_>, packer: &mut Packer) {
        let Some(domain) = self.domain_of_owner(value.slot) else { return };
        let Some(place) = self.find_equal(domain, &value, packer) else {
            self.share_memory(value.slot);
            return;
        };
        let new = Slot::new(place, value.slot.owner());
        let at = HandlePosition::of_leaf(key, value.place, self.seed);
        let mut index = self.shards[at.shard].lock();
        let found = self.find(&index, &at).filter(|&(_, slot)| slot == value.slot);
        if let Some((leaf, slot)) = found {
            self.unlist(slot, at.shard, false);
            let kept = index.set(leaf, at.index, new, self.budget());
            debug_assert!(kept, "changing a used slot takes no memory");
            self.merged_values.fetch_add(1, Ordering::Relaxed);
        }
        drop(index);
        let Alone { slot: old, bytes, .. } = value;
        drop(bytes);
        self.free_place(if found.is_some() { old } else { new });
    }

    /// The place of an equal value, with a reference to it: in a frame, or packed.
    fn find_equal(
        &self,
        domain: u16,
        value: &Alone<'_>,
        packer: &mut Packer,
    ) -> Option<ValueLocation> {
        let find_packed = |content: &[u8], except| {
            let cell = self.cells.find_shared(&self.arena, domain, content, except)?;
            self.packed_pages.fetch_add(1, Ordering::Relaxed);
            Some(ValueLocation::Packed { cell, length: content.len() as u16 })
        };
        match (&value.bytes, value.slot.place()) {
            (Bytes::Page(page), ValueLocation::Raw { frame, length, incompressible }) => {
                if let Some(frame) = self.arena.find_shared(domain, page, frame) {
                    return Some(ValueLocation::Raw { frame, length, incompressible: false });
                }
                let packs = self.config.compress && !incompressible && self.compressed_pages() != 0;
                let length = if packs { packer.pack(page)? } else { return None };
                find_packed(&packer.packed[..length], None)
            }
            (Bytes::Cell(content), ValueLocation::Packed { cell, .. }) => {
                find_packed(content, Some(cell))
            }
            (Bytes::Cell(content), ValueLocation::Small { cell, length }) => {
                let cell = self.cells.find_shared(&self.arena, domain, content, Some(cell))?;
                Some(ValueLocation::Small { cell, length })
            }
            _ => None,
        }
    }
}
