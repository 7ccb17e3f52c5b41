//! Where a put's value lies: in which kind of memory, and what gives way to it.

use spillway_tiers::sync::Ordering;
use spillway_tiers::{CELL_BYTES_MAX, Disk, Use as Memory, WRITE_PAGES_MAX, uniform_word};
use spillway_types::PAGE_BYTES;

use crate::pool::Access;
use crate::scratch::{Packer, Scratch};
use crate::slot::ValueLocation;
use crate::store::Store;

/// Most ephemeral values that one put may drop: several times the number in a chunk of the smallest cells, because
/// values dropped one after the other need not be adjacent.
const EVICTIONS_MAX: usize = 16 * 1024;

/// How often one put makes room by other means, each of which may wait for a disk.
pub(super) const TRIES_MAX: usize = 256;

/// Where a value was copied to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) place: ValueLocation,
    /// Whether another entry has the frame or cell already, and so its place on a list.
    pub(crate) shared: bool,
}

impl From<ValueLocation> for Placed {
    fn from(place: ValueLocation) -> Self {
        Self { place, shared: false }
    }
}

impl Store {
    /// Whether memory is so far out that whoever makes no room itself must leave what is freed to the
    /// index and to what knows of the files: without these no page could leave any more. A store makes
    /// room on a disk that is kept itself, whoever puts.
    fn leaves_room_to_callers(&self) -> bool {
        let files = self.files.as_ref().and_then(Disk::own);
        self.own_scratch.is_none() && files.is_some() && self.arena.left(Memory::Index) == 0
    }

    /// Allocates memory for a value and copies it there, and drops ephemeral values if necessary.
    /// Callers with scratch memory also make room by writing cold pages to files. For others the store
    /// packs pages, if configured, and writes cold ones to a kept disk. `None` if memory is exhausted.
    pub(super) fn place(
        &self,
        access: Access,
        lane: usize,
        pages: u64,
        mut scratch: Option<&mut Scratch>,
        mut copy: impl FnMut(Access, usize, Option<&mut Scratch>) -> Option<Placed>,
    ) -> Option<Placed> {
        if scratch.is_none() && self.leaves_room_to_callers() {
            return None;
        }
        let mut tries = 0;
        for _ in 0..EVICTIONS_MAX {
            let place = copy(access, lane, scratch.as_deref_mut());
            if place.is_some() || access.is_reserved() {
                return place;
            }
            if self.evict(access.client) {
                continue;
            }
            tries += 1;
            if tries > TRIES_MAX {
                break;
            }
            if let Some(scratch) = scratch.as_deref_mut() {
                if self.page_out(WRITE_PAGES_MAX, scratch) == 0 {
                    return None;
                }
            } else if !self.make_room(pages) {
                break;
            }
        }
        // There are no free frames, but there may be a free cell.
        let mut own = self.own_scratch.as_ref()?.lock();
        copy(access, lane, Some(&mut own))
    }

    /// Has `store` put something where a client's values lie, at the cost of ephemeral values if need be, as
    /// for a put. `None` when memory is out.
    pub(crate) fn place_at(
        &self,
        access: Access,
        lane: usize,
        store: impl Fn() -> Option<ValueLocation>,
    ) -> Option<ValueLocation> {
        let placed = self.place(access, lane, 1, None, |_, _, _| store().map(Placed::from));
        placed.map(|placed| placed.place)
    }

    pub(super) fn try_place(
        &self,
        access: Access,
        lane: usize,
        value: &[u8],
        packer: Option<&mut Packer>,
    ) -> Option<Placed> {
        if access.is_reserved() {
            return self.place_reserved(access.reserve, value).map(Placed::from);
        }
        let domain = self.domain(access);
        if value.len() > PAGE_BYTES {
            let mut copy = |at: usize, part: &mut [u8]| {
                part.copy_from_slice(&value[at..at + part.len()]);
            };
            let cell = self.large().store(lane, domain, value.len(), &mut copy)?;
            return Some(ValueLocation::Large { cell }.into());
        }
        let length = value.len() as u16;
        if value.len() <= CELL_BYTES_MAX {
            let (cell, shared) = self.store_cell(domain, value, false)?;
            return Some(Placed { place: ValueLocation::Small { cell, length }, shared });
        }
        let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(value) else {
            let frame = self.arena.store(lane, value)?;
            return Some(ValueLocation::Raw { frame, length, incompressible: false }.into());
        };
        if let Some(word) = uniform_word(page) {
            self.uniform_pages.fetch_add(1, Ordering::Relaxed);
            return Some(ValueLocation::Uniform { word }.into());
        }
        let mut incompressible = false;
        if let Some(packer) = packer
            && self.config.compress
            && packer.expects_gain()
        {
            match packer.pack(page) {
                Some(length) => {
                    if let Some(packed) = self.keep_packed(domain, &packer.packed[..length]) {
                        return Some(packed);
                    }
                }
                None => incompressible = true,
            }
        }
        let (frame, shared) = match domain {
            None => (self.arena.store(lane, page)?, false),
            Some(domain) => {
                // Whoever shares the frame has it on the same list.
                incompressible = false;
                self.arena.store_shared(lane, domain, page)?
            }
        };
        Some(Placed { place: ValueLocation::Raw { frame, length, incompressible }, shared })
    }

    /// Puts a packed page into a cell. `None` if memory is exhausted.
    pub(crate) fn keep_packed(&self, domain: Option<u16>, packed: &[u8]) -> Option<Placed> {
        let (cell, shared) = self.store_cell(domain, packed, true)?;
        self.packed_pages.fetch_add(1, Ordering::Relaxed);
        Some(Placed { place: ValueLocation::Packed { cell, length: packed.len() as u16 }, shared })
    }
}
