//! Mapped address ranges that grow on demand, and the budget that bounds them.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use spillway_types::PAGE_BYTES;

/// What the frames of a store are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory: a fork inherits a consistent copy.
    Anonymous,
    /// A memfd, which other processes can map.
    Memfd,
}

/// Who takes from a budget. The later ones leave less to the others: without memory for its index a
/// store can hold nothing, and without memory for checksums it can move nothing to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Chunks of frames.
    Frames,
    /// Index entries.
    Index,
    /// What is known about pages in files.
    Files,
}

/// A cap on bytes that several users take from.
#[derive(Debug)]
pub struct Budget {
    taken: AtomicU64,
    cap: u64,
}

impl Budget {
    /// A budget of `cap` bytes.
    pub const fn new(cap: u64) -> Self {
        Self { taken: AtomicU64::new(0), cap }
    }

    /// Takes `bytes` if they fit.
    #[must_use]
    pub fn take(&self, bytes: u64, to: Use) -> bool {
        let cap = self.cap - self.kept_from(to);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(bytes).filter(|&sum| sum <= cap)
            })
            .is_ok()
    }

    /// Bytes that are kept for others.
    fn kept_from(&self, to: Use) -> u64 {
        let kept = match to {
            Use::Frames => (self.cap / 64).clamp(128 << 10, 4 << 20),
            Use::Index => 32 << 10,
            Use::Files => 0,
        };
        kept.min(self.cap)
    }

    /// Bytes that a user can still take.
    pub fn left(&self, to: Use) -> u64 {
        (self.cap - self.kept_from(to)).saturating_sub(self.taken())
    }

    /// Gives `bytes` back.
    pub fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes taken now.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Most bytes that can be taken.
    pub const fn cap(&self) -> u64 {
        self.cap
    }
}

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
        let flags = MapFlags::NORESERVE;
        let (base, file) = match backing {
            Backing::Anonymous => {
                // SAFETY: a new mapping at an address of the kernel's choice.
                let base = unsafe {
                    rustix::mm::mmap_anonymous(
                        ptr::null_mut(),
                        bytes,
                        ProtFlags::empty(),
                        flags | MapFlags::PRIVATE,
                    )?
                };
                (base, None)
            }
            Backing::Memfd => {
                let file = rustix::fs::memfd_create("spillway-store", MemfdFlags::CLOEXEC)?;
                rustix::fs::ftruncate(&file, bytes as u64)?;
                // SAFETY: a new mapping at an address of the kernel's choice.
                let base = unsafe {
                    rustix::mm::mmap(
                        ptr::null_mut(),
                        bytes,
                        ProtFlags::empty(),
                        flags | MapFlags::SHARED,
                        file.as_fd(),
                        0,
                    )?
                };
                (base, Some(file))
            }
        };
        let region = Self { base: base.cast(), bytes, file };
        // SAFETY: the advice concerns the mapping just made and changes no byte of it.
        unsafe {
            rustix::mm::madvise(base, bytes, Advice::LinuxDontDump)?;
            // A kernel without huge pages does not know this advice; then there is no need of it.
            let _ = rustix::mm::madvise(base, bytes, Advice::LinuxNoHugepage);
        }
        Ok(region)
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
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
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
pub struct GrowArray<T> {
    region: Arc<Region>,
    /// Which part of the region is the array's, bytes.
    start: usize,
    bytes: usize,
    committed_bytes: AtomicU64,
    element: PhantomData<T>,
}

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
        Self { region: region.clone(), start, bytes, committed_bytes, element: PhantomData }
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

    #[inline(always)]
    fn base(&self) -> *mut T {
        // SAFETY: the part lies within the region, as was checked when it was made.
        unsafe { self.region.base().add(self.start).cast() }
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
        unsafe { &*self.base().add(at) }
    }

    /// The element at `at`, to change.
    ///
    /// # Panics
    /// Beyond [`Self::len`].
    #[inline(always)]
    pub fn get_mut(&mut self, at: usize) -> &mut T {
        assert!(at < self.len());
        // SAFETY: as in `get`; the array is borrowed mutably.
        unsafe { &mut *self.base().add(at) }
    }
}
