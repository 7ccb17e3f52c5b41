//! The guest's memory, as its QEMU shares it.
//!
//! The guest and its QEMU can change any byte at any time, so everything is copied before it is checked.
//! They can't make an access fault, because the daemon accepts only memfds that are sealed against
//! shrinking. QEMU's `memory-backend-memfd` sets this seal.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion, VolatileSlice,
};

use crate::error::Error;

/// `statfs` type of files of huge pages. An access to a hole in such a file faults if no huge page is free.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// A guest's memory.
#[derive(Debug)]
pub struct Memory {
    guest: GuestMemoryMmap,
    regions: Vec<Region>,
}

/// A region in the peer's address space and in the guest's. The peer names rings by addresses of its own.
#[derive(Clone, Copy, Debug)]
struct Region {
    user: u64,
    guest: u64,
    bytes: u64,
}

impl Memory {
    /// Maps regions of files.
    pub fn map(wanted: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<Self, Error> {
        let mut regions = Vec::new();
        let mut mapped = Vec::new();
        for (region, file) in wanted.iter().zip(files) {
            let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } =
                *region;
            let mapping = map_file(file, mmap_offset, memory_size)?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(guest_phys_addr))
                .ok_or(Error::ShortMemory)?;
            mapped.push(region);
            regions.push(Region { user: user_addr, guest: guest_phys_addr, bytes: memory_size });
        }
        mapped.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(region).0);
        let guest = GuestMemoryMmap::from_regions(mapped)
            .map_err(|error| Error::MapMemory(error.to_string()))?;
        Ok(Self { guest, regions })
    }

    /// Translates an address of QEMU to the guest's address.
    pub fn translate(&self, user: u64) -> Option<GuestAddress> {
        let its = |region: &&Region| user >= region.user && user - region.user < region.bytes;
        let region = self.regions.iter().find(its)?;
        Some(GuestAddress(region.guest.checked_add(user - region.user)?))
    }

    /// The memory that holds the virtqueues.
    pub const fn guest(&self) -> &GuestMemoryMmap {
        &self.guest
    }
}

/// Maps a part of a file that can't shrink.
pub fn map_file(file: File, offset: u64, bytes: u64) -> Result<MmapRegion, Error> {
    // Only memfds and files of huge pages support seals.
    let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed {
        return Err(Error::NotSealed);
    }
    let huge = fstatfs(&file).map_or(true, |found| found.f_type == HUGETLBFS_MAGIC);
    if huge {
        return Err(Error::HugePages);
    }
    let end = offset.checked_add(bytes).and_then(|end| i64::try_from(end).ok());
    let file_bytes = fstat(&file).map_or(0, |found| found.st_size);
    if bytes == 0 || end.is_none_or(|end| end > file_bytes) {
        return Err(Error::ShortMemory);
    }
    let place = FileOffset::from_arc(Arc::new(file), offset);
    let mapping = MmapRegion::from_file(place, bytes as usize)
        .map_err(|error| Error::MapMemory(error.to_string()))?;
    // If the daemon locks its memory, it has locked this mapping too. It must not lock the guest's memory.
    // SAFETY: the range is the mapping just made; unlocking changes no byte.
    let unlocked = unsafe { rustix::mm::munlock(mapping.as_ptr().cast(), mapping.size()) };
    unlocked.map_err(|error| Error::MapMemory(error.to_string()))?;
    Ok(mapping)
}

/// A mapping as a slice for atomic access.
pub fn slice(mapping: &MmapRegion) -> VolatileSlice<'_> {
    vm_memory::VolatileMemory::as_volatile_slice(mapping)
}
