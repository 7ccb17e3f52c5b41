//! The memory that both sides share. Only this module accesses it. It is a memfd of the server or, for programs in
//! guests, a window in the guest's own memory.
//!
//! The other side can write any byte of it at any time. So this module reads and writes queues and control
//! words as atomics, and data by copies that are opaque to the compiler. It hands out no reference to data.

use core::arch::asm;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use spillway_wire::nvme::{COMMAND_BYTES, COMPLETION_BYTES, Command, Completion};
use spillway_wire::ring::{Geometry, WINDOW_PAGE_BYTES, control};

/// Seals that keep the region's length, so that no access to it can fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Least length, in bytes, at which copying by cache lines is faster than a loop over words.
const LINE_COPY_MIN: usize = 256;

/// A mapping of the region.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    geometry: Geometry,
    /// The whole mapping. It is larger than the region if the region lies in huge pages.
    mapped: *mut c_void,
    mapped_bytes: usize,
}

// SAFETY: the mapping belongs to no thread, and is accessed only by atomics and by copies that tolerate other writers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of zeros. Returns it and the descriptor with which the other side maps it.
    ///
    /// # Errors
    /// If there is no memory or no descriptor left.
    pub fn create(geometry: Geometry) -> io::Result<(Self, OwnedFd)> {
        let bytes = geometry.region_bytes() as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not have NOEXEC_SEAL.
        let file = rustix::fs::memfd_create("spillway-ring", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create("spillway-ring", flags))?;
        rustix::fs::ftruncate(&file, bytes)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let region = Self::map(&file, geometry)?;
        Ok((region, file))
    }

    /// Maps the region that the other side created.
    ///
    /// # Errors
    /// If the file is shorter than `geometry` or could shrink; those of mmap(2).
    pub fn map(file: impl AsFd, geometry: Geometry) -> io::Result<Self> {
        let bytes = geometry.region_bytes();
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(&file)?.st_size < bytes as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the region is not sealed"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is long enough and can't shrink.
        let base = unsafe {
            let base =
                rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0)?;
            // This advice changes no byte.
            rustix::mm::madvise(base, bytes, Advice::LinuxDontDump)?;
            base
        };
        Ok(Self { base: base.cast(), geometry, mapped: base, mapped_bytes: bytes })
    }

    /// Maps a window in a guest's memory, as the host: the huge pages lie at `offsets` of the VM's memory file.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the number of offsets is not the region's number of huge pages, or an offset
    /// is not of a huge page within the file; those of mmap(2).
    pub fn map_guest(file: impl AsFd, offsets: &[u64], geometry: Geometry) -> io::Result<Self> {
        let end = rustix::fs::fstat(&file)?.st_size as u64;
        let page = WINDOW_PAGE_BYTES as u64;
        let lies_within = |&at: &u64| at.is_multiple_of(page) && at < end && end - at >= page;
        if offsets.len() != geometry.window_pages() || !offsets.iter().all(lies_within) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // One page more for alignment: the host's huge pages must be mapped at multiples of their size.
        let mapped_bytes = (offsets.len() + 1) * WINDOW_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping without access, at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), mapped_bytes, ProtFlags::empty(), flags)?
        };
        let ahead = mapped.cast::<u8>().align_offset(WINDOW_PAGE_BYTES);
        let region =
            Self { base: mapped.cast::<u8>().wrapping_add(ahead), geometry, mapped, mapped_bytes };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        for (at, &offset) in offsets.iter().enumerate() {
            let place = region.base.wrapping_add(at * WINDOW_PAGE_BYTES).cast::<c_void>();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: the range lies within the mapping made above, and replaces nothing else.
            unsafe {
                rustix::mm::mmap(place, WINDOW_PAGE_BYTES, access, flags, &file, offset)?;
                // This advice changes no byte.
                rustix::mm::madvise(place, WINDOW_PAGE_BYTES, Advice::LinuxDontDump)?;
                rustix::mm::madvise(place, WINDOW_PAGE_BYTES, Advice::LinuxDontFork)?;
            }
        }
        Ok(region)
    }

    /// Maps a window as a program of the guest: a file of huge pages, or a device's memory, that the guest's agent lends.
    /// The window starts at page `first` of the file.
    ///
    /// # Errors
    /// If the file is shorter than `geometry`; those of mmap(2).
    pub fn map_window(file: impl AsFd, first: u32, geometry: Geometry) -> io::Result<Self> {
        let bytes = geometry.window_pages() * WINDOW_PAGE_BYTES;
        let offset = u64::from(first) * WINDOW_PAGE_BYTES as u64;
        let end = offset + bytes as u64;
        if (rustix::fs::fstat(&file)?.st_size as u64) < end {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the window is too short"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice. The agent could shorten the file; it is trusted
        // like the kernel.
        let base = unsafe {
            let flags = MapFlags::SHARED;
            let base = rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, &file, offset)?;
            // This advice changes no byte.
            rustix::mm::madvise(base, bytes, Advice::LinuxDontDump)?;
            base
        };
        Ok(Self { base: base.cast(), geometry, mapped: base, mapped_bytes: bytes })
    }

    /// Frees the region's memory, even if the other side keeps its descriptor or mapping. Afterwards the region reads
    /// as zeros.
    pub fn discard(&self) {
        let (base, bytes) = (self.base.cast::<c_void>(), self.geometry.region_bytes());
        // SAFETY: readers of the region tolerate any bytes at any time, also zeros. If the daemon locks its memory, it
        // has locked the region too, and the kernel refuses to remove locked memory.
        let removed = unsafe {
            rustix::mm::munlock(base, bytes)
                .and_then(|()| rustix::mm::madvise(base, bytes, Advice::LinuxRemove))
        };
        if let Err(error) = removed {
            tracing::error!(%error, bytes, "a ring's memory stays until its client lets go");
        }
    }

    /// The sizes.
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= self.geometry.region_bytes() && at.is_multiple_of(4));
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; all accesses of
        // this process to control words are atomic.
        unsafe { &*self.base.add(at).cast() }
    }

    /// The doorbell: the number of submitted commands.
    #[inline(always)]
    pub fn submitted(&self) -> &AtomicU32 {
        self.word(control::SUBMITTED)
    }

    /// 1 while the server wants a wake-up.
    #[inline(always)]
    pub fn server_asleep(&self) -> &AtomicU32 {
        self.word(control::SERVER_ASLEEP)
    }

    /// 1 while the client wants a wake-up.
    #[inline(always)]
    pub fn client_asleep(&self) -> &AtomicU32 {
        self.word(control::CLIENT_ASLEEP)
    }

    /// `N` words of 8 bytes at offset `at`.
    #[inline(always)]
    fn words<const N: usize>(&self, at: usize) -> &[AtomicU64; N] {
        debug_assert!(at + 8 * N <= self.geometry.region_bytes() && at.is_multiple_of(8));
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; all accesses of
        // this process to queue entries are atomic.
        unsafe { &*self.base.add(at).cast() }
    }

    /// A copy of command number `count`.
    #[inline]
    pub fn command(&self, count: u32) -> Command {
        const WORDS: usize = COMMAND_BYTES / 8;
        let mut bytes = [0; COMMAND_BYTES];
        let words = self.words::<WORDS>(self.geometry.command_at(count));
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Command::decode(&bytes)
    }

    /// Writes command number `count`. The server sees it after the doorbell.
    #[inline]
    pub fn set_command(&self, count: u32, command: &Command) {
        const WORDS: usize = COMMAND_BYTES / 8;
        let bytes = command.encode();
        let words = self.words::<WORDS>(self.geometry.command_at(count));
        for (word, bytes) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Completion number `count`, if its phase bit shows that it was written.
    #[inline]
    pub fn completion(&self, count: u32) -> Option<Completion> {
        let [low, high] = self.words(self.geometry.completion_at(count));
        let high = high.load(Ordering::Acquire);
        if (high >> 48 & 1 != 0) != self.geometry.phase(count) {
            return None;
        }
        let mut bytes = [0; COMPLETION_BYTES];
        bytes[..8].copy_from_slice(&low.load(Ordering::Relaxed).to_ne_bytes());
        bytes[8..].copy_from_slice(&high.to_ne_bytes());
        Some(Completion::decode(&bytes))
    }

    /// Writes completion number `count` with its phase bit. A client that sees it also sees all earlier writes to the
    /// data area.
    #[inline]
    pub fn complete(&self, count: u32, completion: Completion) {
        let bytes = Completion { phase: self.geometry.phase(count), ..completion }.encode();
        let (words, _) = bytes.as_chunks::<8>();
        let [low, high] = self.words(self.geometry.completion_at(count));
        low.store(u64::from_ne_bytes(words[0]), Ordering::Relaxed);
        high.store(u64::from_ne_bytes(words[1]), Ordering::Release);
    }

    /// The address of `bytes` bytes at `offset` of the data area.
    ///
    /// # Panics
    /// If they do not lie in the data area.
    #[inline]
    fn data(&self, offset: usize, bytes: usize) -> *mut u8 {
        let area = self.geometry.data_bytes() as usize;
        assert!(offset <= area && bytes <= area - offset, "data outside the data area");
        // SAFETY: the data area lies within the mapping.
        unsafe { self.base.add(self.geometry.data_at() + offset) }
    }

    /// Copies `bytes` to `offset` of the data area.
    ///
    /// # Panics
    /// If they do not lie in the data area.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.data(offset, bytes.len());
        if bytes.len() >= LINE_COPY_MIN || !to.cast::<u64>().is_aligned() {
            // SAFETY: both ranges are valid for that many bytes. They do not overlap, because one is this process's own
            // memory.
            unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
            return;
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for (at, word) in words.iter().enumerate() {
            // SAFETY: aligned, and inside the data area as checked above.
            let shared = unsafe { &*to.add(8 * at).cast::<AtomicU64>() };
            shared.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        for (at, byte) in rest.iter().enumerate() {
            // SAFETY: inside the data area as checked above.
            let shared = unsafe { &*to.add(8 * words.len() + at).cast::<AtomicU8>() };
            shared.store(*byte, Ordering::Relaxed);
        }
    }

    /// Copies from `offset` of the data area into `bytes`.
    ///
    /// # Panics
    /// If they do not lie in the data area.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.data(offset, bytes.len());
        if bytes.len() >= LINE_COPY_MIN || !from.cast::<u64>().is_aligned() {
            // SAFETY: as in `write`.
            unsafe { copy(bytes.as_mut_ptr(), from, bytes.len()) };
            return;
        }
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for (at, word) in words.iter_mut().enumerate() {
            // SAFETY: aligned, and inside the data area as checked above.
            let shared = unsafe { &*from.add(8 * at).cast::<AtomicU64>() };
            *word = shared.load(Ordering::Relaxed).to_ne_bytes();
        }
        for (at, byte) in rest.iter_mut().enumerate() {
            // SAFETY: inside the data area as checked above.
            let shared = unsafe { &*from.add(8 * words.len() + at).cast::<AtomicU8>() };
            *byte = shared.load(Ordering::Relaxed);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping exists.
        let _ = unsafe { rustix::mm::munmap(self.mapped, self.mapped_bytes) };
    }
}

/// Copies memory that other processes may write meanwhile. A plain copy would be a data race in Rust's memory model.
///
/// # Safety
/// `to` is valid for writing and `from` for reading `bytes` bytes, and they do not overlap.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let (lines, rest) = (bytes / 64, bytes % 64);
    let (mut to, mut from) = (to, from);
    if lines != 0 {
        // SAFETY: by the caller's contract. SSE2 is part of x86-64.
        unsafe {
            asm!("2:",
                "movups {a}, [{from}]", "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]", "movups {d}, [{from} + 48]",
                "movups [{to}], {a}", "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}", "movups [{to} + 48], {d}",
                "add {from}, 64", "add {to}, 64", "dec {lines}", "jnz 2b",
                lines = inout(reg) lines => _, from = inout(reg) from, to = inout(reg) to,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack));
        }
    }
    // SAFETY: by the caller's contract. The ABI keeps the direction flag clear.
    unsafe {
        asm!("rep movsb", inout("rcx") rest => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> (Region, OwnedFd) {
        Region::create(Geometry::new(4, 16384).unwrap()).unwrap()
    }

    #[test]
    fn both_mappings_see_the_same() {
        let (ours, file) = region();
        let theirs = Region::map(&file, ours.geometry()).unwrap();
        for bytes in [0, 1, 7, 8, 100, 255, 256, 4096, 10_001] {
            for offset in [0, 8, 13] {
                let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + offset) as u8).collect();
                ours.write(offset, &value);
                let mut read = vec![0; bytes];
                theirs.read(offset, &mut read);
                assert_eq!(read, value);
            }
        }
        let mut command = Command::new(2, 3, 4);
        command.cdw15 = 5;
        ours.set_command(6, &command);
        assert_eq!(theirs.command(6), command);
    }

    #[test]
    fn completions_are_there_in_their_round_only() {
        let (region, _file) = region();
        for count in 0..20 {
            assert_eq!(region.completion(count), None);
            region.complete(count, Completion { id: count as u16, ..Completion::default() });
            assert_eq!(region.completion(count).unwrap().id, count as u16);
            assert_eq!(region.completion(count + 4), None);
        }
    }

    #[test]
    fn a_region_can_neither_shrink_nor_grow_nor_be_sealed_further() {
        let (region, file) = region();
        let bytes = region.geometry().region_bytes() as u64;
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::ftruncate(&file, bytes + 4096).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        // A hole can be punched, and reads as zeros.
        region.write(0, &[1; 300]);
        region.discard();
        let mut read = [1; 300];
        region.read(0, &mut read);
        assert_eq!(read, [0; 300]);
    }

    #[test]
    fn a_locked_region_can_be_given_back() {
        let (region, file) = region();
        region.write(0, &[1; 4096]);
        // SAFETY: the mapping is this test's; locking changes no byte.
        unsafe {
            rustix::mm::mlock(region.base.cast(), region.geometry().region_bytes()).unwrap();
        }
        region.discard();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
    }

    #[test]
    fn a_region_that_could_shrink_is_not_mapped() {
        let geometry = Geometry::new(4, 4096).unwrap();
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, geometry.region_bytes() as u64).unwrap();
        assert!(Region::map(&file, geometry).is_err());
        let (_, short) = region();
        assert!(Region::map(&short, Geometry::new(256, 1 << 20).unwrap()).is_err());
    }

    #[test]
    fn a_window_is_put_together_from_where_its_pages_lie() {
        let geometry = Geometry::filling(64, 2).unwrap();
        let page = WINDOW_PAGE_BYTES as u64;
        let memory = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 8 * page).unwrap();
        let host = Region::map_guest(&memory, &[5 * page, 2 * page], geometry).unwrap();
        let last = geometry.data_bytes() as usize - 1;
        host.write(0, b"first");
        host.write(last, b"l");
        let mut byte = [0; 5];
        rustix::io::pread(&memory, &mut byte, 5 * page + geometry.data_at() as u64).unwrap();
        assert_eq!(&byte, b"first");
        rustix::io::pread(&memory, &mut byte[..1], 3 * page - 1).unwrap();
        assert_eq!(byte[0], b'l');
        for wrong in [&[0][..], &[0, 8 * page], &[0, page + 4096], &[0, u64::MAX - page + 1]] {
            assert!(Region::map_guest(&memory, wrong, geometry).is_err(), "{wrong:?}");
        }
        let program = Region::map_window(&memory, 6, geometry).unwrap();
        program.write(0, b"part");
        rustix::io::pread(&memory, &mut byte[..4], 6 * page + geometry.data_at() as u64).unwrap();
        assert_eq!(&byte[..4], b"part");
        for wrong in [7, 8, u32::MAX] {
            assert!(Region::map_window(&memory, wrong, geometry).is_err(), "{wrong}");
        }
    }

    #[test]
    #[should_panic = "outside the data area"]
    fn data_outside_the_area_is_not_copied() {
        let (region, _file) = region();
        region.write(16384 - 99, &[0; 100]);
    }
}
