//! Computes how many pages a store can hold.

use spillway_types::PAGE_BYTES;

/// Granularity of the packing ratio, so that targets do not change with every page.
const STEPS: u64 = 16;
/// Largest packing ratio that counts.
const PACKED_MAX: u64 = 64;

/// A store's memory figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Most bytes that it may take.
    pub capacity_bytes: u64,
    /// Bytes in use, including the index and written pages of block devices.
    pub taken_bytes: u64,
    /// Pages that clients hold.
    pub used_pages: u64,
    /// Pages reserved for block devices.
    pub reserved_pages: u64,
    /// Of these, pages that are written.
    pub written_pages: u64,
    /// Most pages that the store's disk may have.
    pub disk_pages_max: u64,
    /// Of the pages that clients hold, those on the disk.
    pub disk_pages: u64,
}

impl Room {
    /// The pages available to clients, including those that they hold: the capacity without block devices, at
    /// the present packing ratio, plus the store's disk. An almost empty store has no meaningful ratio, and
    /// counts as not packing.
    pub fn pages(&self) -> u64 {
        let page_bytes = PAGE_BYTES as u64;
        let capacity_bytes = self.capacity_bytes.saturating_sub(self.reserved_pages * page_bytes);
        let taken_bytes = self.taken_bytes.saturating_sub(self.written_pages * page_bytes);
        let packing = if taken_bytes < capacity_bytes / 8 {
            STEPS
        } else {
            let held_bytes = u128::from(self.used_pages.saturating_sub(self.disk_pages))
                * u128::from(page_bytes);
            let packing = held_bytes * u128::from(STEPS) / u128::from(taken_bytes.max(1));
            packing.clamp((STEPS / 2).into(), (STEPS * PACKED_MAX).into()) as u64
        };
        let in_memory =
            u128::from(capacity_bytes) * u128::from(packing) / u128::from(STEPS * page_bytes);
        in_memory as u64 + self.disk_pages_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MIB_PAGES: u64 = 256;

    #[test]
    fn packed_pages_make_room() {
        let empty = Room { capacity_bytes: 1024 * MIB, ..Room::default() };
        assert_eq!(empty.pages(), 1024 * MIB_PAGES);
        let little = Room { taken_bytes: 127 * MIB, used_pages: 1000 * MIB_PAGES, ..empty };
        assert_eq!(little.pages(), 1024 * MIB_PAGES, "too little to tell");
        // Three to one.
        let packed = Room { taken_bytes: 200 * MIB, used_pages: 600 * MIB_PAGES, ..empty };
        assert_eq!(packed.pages(), 3 * 1024 * MIB_PAGES);
        // 260 in 200 are 20.8 sixteenths.
        let some = Room { used_pages: 260 * MIB_PAGES, ..packed };
        assert_eq!(some.pages(), 20 * 64 * MIB_PAGES);
        // Short values take more than their pages; it goes down to a half.
        let short = Room { used_pages: MIB_PAGES, ..packed };
        assert_eq!(short.pages(), 512 * MIB_PAGES);
        let of_one_word = Room { used_pages: u64::MAX / 4096, ..packed };
        assert_eq!(of_one_word.pages(), 64 * 1024 * MIB_PAGES);
    }

    #[test]
    fn a_disk_adds_its_pages_and_does_not_count_as_packing() {
        let disk = Room {
            capacity_bytes: 1024 * MIB,
            taken_bytes: 900 * MIB,
            used_pages: 2900 * MIB_PAGES,
            disk_pages_max: 4096 * MIB_PAGES,
            disk_pages: 2000 * MIB_PAGES,
            ..Room::default()
        };
        assert_eq!(disk.pages(), (1024 + 4096) * MIB_PAGES);
    }

    #[test]
    fn what_block_devices_have_is_not_to_be_had() {
        let half = Room {
            capacity_bytes: 1024 * MIB,
            taken_bytes: 512 * MIB,
            reserved_pages: 512 * MIB_PAGES,
            written_pages: 512 * MIB_PAGES,
            ..Room::default()
        };
        assert_eq!(half.pages(), 512 * MIB_PAGES);
        // 100 MiB in use beside the device, three to one.
        let beside = Room { taken_bytes: 612 * MIB, used_pages: 300 * MIB_PAGES, ..half };
        assert_eq!(beside.pages(), 3 * 512 * MIB_PAGES);
        let all = Room { reserved_pages: 2048 * MIB_PAGES, ..half };
        assert_eq!(all.pages(), 0);
    }
}
