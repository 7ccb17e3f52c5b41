//! Mapped address ranges that grow on demand.

use core::ffi::c_void;
use core::ptr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use spillway_platform::memory::collapse;

use crate::budget::{Budget, Use};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use spillway_types::PAGE_BYTES;

/// The kind of memory of a store's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory: a fork inherits a consistent copy.
    Anonymous,
    /// A memfd of fixed length, which lives on while any process has its descriptor.
    Memfd,
}

/// Bytes of a huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// A memfd that cannot change its length: no access to its mapping ends in SIGBUS.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A reserved range of addresses. Parts are committed before use and released when empty.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    bytes: usize,
    file: Option<OwnedFd>,
}

// SAFETY: the region is a mapping, which belongs to no thread. Who may touch which bytes is up to
// the user of the raw base pointer.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` (whole pages) of address space; no memory is taken yet.
    pub fn reserve(bytes: usize, backing: Backing) -> io::Result<Self> {
        let bytes = bytes.max(PAGE_BYTES).next_multiple_of(PAGE_BYTES);
        let region = match backing {
            Backing::Anonymous => {
                let flags = MapFlags::NORESERVE | MapFlags::PRIVATE;
                // SAFETY: a new mapping at an address of the kernel's choice.
                let base = unsafe {
                    rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags)?
                };
                Self { base: base.cast(), bytes, file: None }
            }
            Backing::Memfd => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let file = rustix::fs::memfd_create("spillway-store", flags)?;
                rustix::fs::ftruncate(&file, bytes as u64)?;
                rustix::fs::fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
                Self::map(file, bytes, ProtFlags::empty())?
            }
        };
        region.advise()?;
        Ok(region)
    }

    /// Adopts memory that another process kept in a memfd: all of it is committed.
    ///
    /// # Errors
    /// `InvalidData` when the file has another length, or can be cut.
    pub fn adopt(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(PAGE_BYTES).next_multiple_of(PAGE_BYTES);
        let length = rustix::fs::fstat(&file)?.st_size;
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(FIXED));
        if length != bytes as i64 || !sealed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let region = Self::map(file, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        region.advise()?;
        Ok(region)
    }

    /// Maps a file where its huge pages are the mapping's.
    fn map(file: OwnedFd, bytes: usize, rights: ProtFlags) -> io::Result<Self> {
        let (nothing, flags) = (ProtFlags::empty(), MapFlags::NORESERVE | MapFlags::SHARED);
        let room = bytes.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let around = MapFlags::NORESERVE | MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice, of which one part is mapped
        // anew, and the rest goes before anybody knows of it.
        unsafe {
            let start = rustix::mm::mmap_anonymous(ptr::null_mut(), room, nothing, around)?;
            let before = start.align_offset(HUGE_BYTES);
            let base = start.byte_add(before);
            let mapped =
                rustix::mm::mmap(base, bytes, rights, flags | MapFlags::FIXED, file.as_fd(), 0);
            if mapped.is_err() {
                rustix::mm::munmap(start, room)?;
            }
            let base = mapped?;
            let region = Self { base: base.cast(), bytes, file: Some(file) };
            if before != 0 {
                rustix::mm::munmap(start, before)?;
            }
            rustix::mm::munmap(base.byte_add(bytes), HUGE_BYTES - before)?;
            Ok(region)
        }
    }

    /// Has the kernel allot a committed part in huge pages. What of it is in use stays as it is. Gives
    /// whether the kernel had any. Only for memfds: a part of one can be given back at any time.
    pub(crate) fn populate_huge(&self, offset: usize, bytes: usize) -> bool {
        let address = self.address(offset, bytes);
        let advise = |advice| {
            // SAFETY: the advice changes no byte.
            unsafe { rustix::mm::madvise(address, bytes, advice) }
        };
        // Some page must be there. Later the kernel must not fill what is given back with huge pages
        // again, as it would by itself where all files may have them.
        let allotted = self.populate(offset, PAGE_BYTES).is_ok()
            && advise(Advice::LinuxHugepage).is_ok()
            && collapse(address as usize, bytes).is_ok();
        let _ = advise(Advice::LinuxNoHugepage);
        allotted
    }

    fn advise(&self) -> io::Result<()> {
        let (base, bytes) = (self.base.cast(), self.bytes);
        // SAFETY: the advice concerns a mapping just made and changes no byte of it.
        unsafe {
            rustix::mm::madvise(base, bytes, Advice::LinuxDontDump)?;
            // A kernel without huge pages does not know this advice; then there is no need of it.
            let _ = rustix::mm::madvise(base, bytes, Advice::LinuxNoHugepage);
        }
        Ok(())
    }

    /// Start of the range.
    #[inline(always)]
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length of the range, bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The descriptor of a memfd's region.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    fn address(&self, offset: usize, bytes: usize) -> *mut c_void {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: just checked to lie within the mapping.
        unsafe { self.base.add(offset).cast() }
    }

    /// Makes a part (whole pages) readable and writable. New memory reads as zeros.
    pub fn commit(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the part lies in this mapping, and gaining rights harms no user of it.
        unsafe { rustix::mm::mprotect(self.address(offset, bytes), bytes, flags)? };
        Ok(())
    }

    /// Has the kernel allot the pages of a committed part at once, which saves a page fault for
    /// each. Kernels before 5.14 cannot; there each page faults at its first touch.
    pub fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        // SAFETY: populating changes no byte of the part.
        let done = unsafe {
            rustix::mm::madvise(self.address(offset, bytes), bytes, Advice::LinuxPopulateWrite)
        };
        match done {
            Err(rustix::io::Errno::INVAL) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the memory of a part back to the host. The part reads as zeros afterwards. Callers
    /// own the part: nobody holds a reference into it.
    pub fn release(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let address = self.address(offset, bytes);
        match &self.file {
            None => {
                // SAFETY: the caller owns the part, so no reference sees its bytes change.
                unsafe { rustix::mm::madvise(address, bytes, Advice::LinuxDontNeed)? };
            }
            Some(file) => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, mode, offset as u64, bytes as u64)?;
            }
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: whoever borrowed from the region is gone when it is dropped.
        // Unmapping one's own mapping cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

/// Types for which all zero bytes are a valid value.
///
/// # Safety
/// A value of all zero bytes must be valid, and dropping must do nothing.
pub unsafe trait Zeroed {}

// SAFETY: plain integers.
unsafe impl Zeroed for u32 {}
// SAFETY: plain integers.
unsafe impl Zeroed for u64 {}
// SAFETY: transparent over a plain integer.
unsafe impl Zeroed for core::sync::atomic::AtomicU64 {}
// SAFETY: transparent over a plain integer.
unsafe impl Zeroed for AtomicU8 {}
// SAFETY: transparent over a plain integer.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: transparent over a plain integer.
unsafe impl Zeroed for AtomicU64 {}

/// A boxed slice of zeros. The allocator gives memory that is zero already, so what is never touched
/// takes none.
pub fn zeroed_slice<T: Zeroed>(len: usize) -> Box<[T]> {
    // SAFETY: `Zeroed` says that zeros are a value.
    unsafe { Box::new_zeroed_slice(len).assume_init() }
}

/// An array of zeroed elements in a mapping of its own, which grows without moving.
#[derive(Debug)]
#[repr(C)]
pub struct GrowArray<T> {
    /// What every access reads comes first.
    base: *mut T,
    committed_bytes: AtomicU64,
    region: Arc<Region>,
    /// Which part of the region is the array's, bytes.
    start: usize,
    bytes: usize,
}

// SAFETY: the array owns its part of the region, as a boxed slice would.
unsafe impl<T: Send> Send for GrowArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for GrowArray<T> {}

impl<T: Zeroed> GrowArray<T> {
    /// Room for `most` elements in a region of its own; none is there yet.
    pub fn reserve(most: usize) -> io::Result<Self> {
        let region = Region::reserve(Self::bytes_for(most), Backing::Anonymous)?;
        Ok(Self::within(&Arc::new(region), &mut 0, most))
    }

    /// Room for `most` elements in the part of `region` that begins at `next`, which moves behind
    /// it. Many arrays in one region take few system calls to make.
    ///
    /// # Panics
    /// When the region ends before.
    pub fn within(region: &Arc<Region>, next: &mut usize, most: usize) -> Self {
        let (start, bytes) = (*next, Self::bytes_for(most));
        *next += bytes;
        assert!(*next <= region.bytes());
        let committed_bytes = AtomicU64::new(0);
        // SAFETY: just checked to lie within the region.
        let base = unsafe { region.base().add(start).cast() };
        Self { base, committed_bytes, region: region.clone(), start, bytes }
    }

    /// Bytes that [`Self::within`] takes for `most` elements.
    pub const fn bytes_for(most: usize) -> usize {
        most.saturating_mul(size_of::<T>()).next_multiple_of(PAGE_BYTES)
    }

    /// Grows to at least `len` elements with memory from `budget`; false when there is none left,
    /// or no room. Callers hold the lock that guards growth.
    #[must_use]
    pub fn grow(&self, len: usize, budget: &Budget, to: Use) -> bool {
        let committed = self.committed_bytes.load(Ordering::Relaxed) as usize;
        let Some(needed) = len.checked_mul(size_of::<T>()) else { return false };
        if needed <= committed {
            return true;
        }
        if needed > self.bytes {
            return false;
        }
        // In steps of a 32nd: few calls, and little that lies unused.
        let target = needed.max(committed + committed / 32).next_multiple_of(PAGE_BYTES);
        let mut target = target.min(self.bytes);
        if !budget.take((target - committed) as u64, to) {
            // Perhaps there is enough for no more than is needed.
            target = needed.next_multiple_of(PAGE_BYTES);
            if !budget.take((target - committed) as u64, to) {
                return false;
            }
        }
        let step = target - committed;
        if self.region.commit(self.start + committed, step).is_err() {
            budget.give(step as u64);
            return false;
        }
        self.committed_bytes.store(target as u64, Ordering::Release);
        true
    }

    /// Makes at least `len` elements usable that a process before this one has used, with what they
    /// hold. False when there is no room for so many. Their memory is in use, so it is charged
    /// whether or not it fits.
    #[must_use]
    pub fn restore(&self, len: usize, budget: &Budget) -> bool {
        let Some(needed) = len.checked_mul(size_of::<T>()) else { return false };
        let needed = needed.next_multiple_of(PAGE_BYTES);
        let committed = self.committed_bytes.load(Ordering::Relaxed) as usize;
        if needed <= committed {
            return true;
        }
        let step = needed - committed;
        if needed > self.bytes || self.region.commit(self.start + committed, step).is_err() {
            return false;
        }
        budget.charge(step as u64);
        self.committed_bytes.store(needed as u64, Ordering::Release);
        true
    }

    /// Makes an array of which no element can be used yet zeros, whatever was there.
    pub fn forget(&self) -> io::Result<()> {
        assert!(self.is_empty());
        self.region.release(self.start, self.bytes)
    }

    /// Makes what lies behind the elements that can be used zeros, whatever was there.
    pub fn forget_rest(&self) -> io::Result<()> {
        let committed = self.committed_bytes.load(Ordering::Acquire) as usize;
        if committed == self.bytes {
            return Ok(());
        }
        self.region.release(self.start + committed, self.bytes - committed)
    }

    /// Elements that there is room for.
    pub const fn room(&self) -> usize {
        self.bytes / size_of::<T>()
    }

    /// Elements that can be used.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.committed_bytes.load(Ordering::Acquire) as usize / size_of::<T>()
    }

    /// Whether no element can be used yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `at`.
    ///
    /// # Panics
    /// Beyond [`Self::len`].
    #[inline(always)]
    pub fn get(&self, at: usize) -> &T {
        assert!(at < self.len());
        // SAFETY: committed memory, zeroed or written as T, aligned as mappings are.
        unsafe { &*self.base.add(at) }
    }

    /// The element at `at`, to change.
    ///
    /// # Panics
    /// Beyond [`Self::len`].
    #[inline(always)]
    pub fn get_mut(&mut self, at: usize) -> &mut T {
        assert!(at < self.len());
        // SAFETY: as in `get`; the array is borrowed mutably.
        unsafe { &mut *self.base.add(at) }
    }
}

/// A table of fixed length in a part of a region, which begins with zeros.
#[derive(Debug)]
pub struct Table<T> {
    start: *const T,
    len: usize,
    /// Keeps the mapping.
    _region: Arc<Region>,
}

// SAFETY: the elements are reached by shared reference only.
unsafe impl<T: Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T: Zeroed> Table<T> {
    /// Bytes that [`Self::within`] takes for `len` elements.
    pub const fn bytes_for(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(PAGE_BYTES)
    }

    /// A table of `len` elements at `next`, which moves behind it, and commits it.
    ///
    /// # Errors
    /// Of committing.
    ///
    /// # Panics
    /// When the region ends before.
    pub fn within(region: &Arc<Region>, next: &mut usize, len: usize) -> io::Result<Self> {
        let (at, bytes) = (*next, Self::bytes_for(len));
        *next += bytes;
        region.commit(at, bytes)?;
        // SAFETY: committing checked that the part lies within the region.
        let start = unsafe { region.base().add(at).cast() };
        Ok(Self { start, len, _region: region.clone() })
    }
}

impl<T> core::ops::Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: committed memory, aligned to pages, zeroed or written as T, which `Zeroed` says
        // is a value; the region lives as long as this.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }
}
