//! The map that outlives a manager: the place of each page, in a memory file that the supervisor holds.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Words before that of the first page: marks, the message that is being processed, counters.
const HEADER_WORDS: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"guestmm1");
/// Index of the first word of the kernel's last message.
const MESSAGE_WORD: usize = 8;
const MESSAGE_BYTES: usize = 32;
const COUNTERS_WORD: usize = 64;
const WORD_BYTES: usize = 8;

const KIND_BITS: u32 = 3;
const LENGTH_BITS: u32 = 13;

/// The place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLocation {
    /// In the guest's memory, or never touched.
    Near,
    /// Removed by the guest: zeros, regardless of its initial contents.
    Emptied,
    /// In the store.
    Store,
    /// On the blade.
    Blade {
        /// Its unique number, below 2^48.
        handle: u64,
        /// Its length before sealing.
        length: u16,
    },
}

impl PageLocation {
    /// Whether the page must be fetched from a tier.
    pub const fn is_far(self) -> bool {
        matches!(self, Self::Store | Self::Blade { .. })
    }

    const fn word(self) -> u64 {
        match self {
            Self::Near => 0,
            Self::Emptied => 1,
            Self::Store => 2,
            Self::Blade { handle, length } => {
                3 | (length as u64) << KIND_BITS | handle << (KIND_BITS + LENGTH_BITS)
            }
        }
    }

    const fn of(word: u64) -> Option<Self> {
        Some(match word & ((1 << KIND_BITS) - 1) {
            0 => Self::Near,
            1 => Self::Emptied,
            2 => Self::Store,
            3 => Self::Blade {
                handle: word >> (KIND_BITS + LENGTH_BITS),
                length: (word >> KIND_BITS & ((1 << LENGTH_BITS) - 1)) as u16,
            },
            _ => return None,
        })
    }
}

/// Single words shared by the supervisor and managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The next number for a page on the blade.
    Handle = 2,
    /// The first of the numbers that may be on the blade although no page names them.
    PendingHandle = 3,
    /// The count of such numbers.
    PendingCount = 4,
    /// The unit at which the search for victims continues.
    Hand = 5,
    /// Nonzero: bring every page back and release the guest.
    Leave = 6,
    /// Number of managers that became ready.
    Ready = 7,
    /// The time at which the last manager died, ns of the monotonic clock.
    DiedNs = 12,
}

/// Counters over all managers of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Pages that left.
    Evictions,
    /// Pages that came back.
    Fetches,
    /// Pages that got their initial contents: zeros, or those of the memory file.
    FirstTouches,
    /// Writers released from a protected page.
    WriteFaults,
    /// Pages whose contents the guest discarded.
    Removed,
    /// Pages that no tier accepted.
    Refusals,
    /// Lost pages: touching them is a SIGBUS.
    Lost,
    /// Most bytes that the guest's memory took.
    ResidentMax,
    /// Longest time from a manager's death to its successor's first answer, ns.
    TakeOverMax,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Evictions,
        Self::Fetches,
        Self::FirstTouches,
        Self::WriteFaults,
        Self::Removed,
        Self::Refusals,
        Self::Lost,
        Self::ResidentMax,
        Self::TakeOverMax,
    ];
}

/// The map of a guest.
#[derive(Debug)]
pub struct Map {
    address: usize,
    units: u64,
    file: OwnedFd,
}

impl Map {
    /// A map of pages that are all near.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2).
    pub fn new(units: u64) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("spillway-guest-map", flags)?;
        rustix::fs::ftruncate(&file, (Self::words(units) * WORD_BYTES) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = Self::mapped(file, units)?;
        map.word(0).store(MAGIC, Ordering::Relaxed);
        map.word(1).store(units, Ordering::Relaxed);
        Ok(map)
    }

    /// Opens the map that another process created.
    ///
    /// # Errors
    /// `INVAL` if the file is not a map of `units` pages; those of mmap(2).
    pub fn adopt(file: OwnedFd, units: u64) -> Result<Self, Errno> {
        let bytes = rustix::fs::fstat(&file)?.st_size;
        if bytes != (Self::words(units) * WORD_BYTES) as i64 {
            return Err(Errno::INVAL);
        }
        let map = Self::mapped(file, units)?;
        let is = |at: usize, value: u64| map.word(at).load(Ordering::Relaxed) == value;
        if is(0, MAGIC) && is(1, units) { Ok(map) } else { Err(Errno::INVAL) }
    }

    const fn words(units: u64) -> usize {
        HEADER_WORDS + units as usize
    }

    fn mapped(file: OwnedFd, units: u64) -> Result<Self, Errno> {
        let bytes = Self::words(units) * WORD_BYTES;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel finds room, of a file that can't shrink under it.
        let address = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), bytes, rights, MapFlags::SHARED, &file, 0)?
        };
        Ok(Self { address: address as usize, units, file })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < Self::words(self.units), "a word of the map");
        // SAFETY: the mapping has that many words and lives as long as `self`. It is read and written only as atomic
        // words, except the words of the message, which have one writer.
        unsafe { &*((self.address as *const AtomicU64).add(at)) }
    }

    /// Number of pages.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// The file, for processes that outlive this one.
    pub const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The place of a page. An invalid entry counts as near, so no page is fetched for it.
    pub fn place(&self, unit: u64) -> PageLocation {
        let word = self.word(HEADER_WORDS + unit as usize).load(Ordering::Acquire);
        PageLocation::of(word).unwrap_or(PageLocation::Near)
    }

    /// Sets the place of a page with a single store. If the process is killed, it has done this completely or not at
    /// all, and only after everything before it.
    pub fn set_place(&self, unit: u64, place: PageLocation) {
        compiler_fence(Ordering::SeqCst);
        self.word(HEADER_WORDS + unit as usize).store(place.word(), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Reads a mark.
    pub fn mark(&self, mark: Mark) -> u64 {
        self.word(mark as usize).load(Ordering::Acquire)
    }

    /// Sets a mark.
    pub fn set_mark(&self, mark: Mark, value: u64) {
        self.word(mark as usize).store(value, Ordering::Release);
    }

    /// Allocates unused numbers, and records that they may be on the blade; returns the first.
    pub fn take_handles(&self, count: u64) -> u64 {
        let first = self.word(Mark::Handle as usize).fetch_add(count, Ordering::AcqRel);
        self.set_mark(Mark::PendingHandle, first);
        self.set_mark(Mark::PendingCount, count);
        first
    }

    /// Adds to a counter.
    pub fn count(&self, counter: Counter, by: u64) {
        self.word(COUNTERS_WORD + counter as usize).fetch_add(by, Ordering::Relaxed);
    }

    /// Raises a maximum.
    pub fn count_max(&self, counter: Counter, value: u64) {
        self.word(COUNTERS_WORD + counter as usize).fetch_max(value, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.word(COUNTERS_WORD + counter as usize).load(Ordering::Relaxed)
    }

    /// Number of far pages.
    pub fn far(&self) -> u64 {
        (0..self.units).filter(|&unit| self.place(unit).is_far()).count() as u64
    }

    /// Reads the kernel's next message into the map, where it outlives this process, because a message can be read only
    /// once. The caller holds the event lock.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn receive(
        &self,
        read: impl FnOnce(&mut [u8; MESSAGE_BYTES]) -> Result<(), Errno>,
    ) -> Result<[u8; MESSAGE_BYTES], Errno> {
        let place = self.word(MESSAGE_WORD).as_ptr().cast::<[u8; MESSAGE_BYTES]>();
        // SAFETY: four words of the header. The caller holds the event lock, so no other thread uses them.
        let message = unsafe { &mut *place };
        read(message)?;
        Ok(*message)
    }

    /// The last message that was read but not processed yet; zeros if there is none.
    pub fn message(&self) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        for (at, bytes) in message.chunks_exact_mut(WORD_BYTES).enumerate() {
            let word = self.word(MESSAGE_WORD + at).load(Ordering::Acquire);
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        message
    }

    /// Marks the message as processed.
    pub fn clear_message(&self) {
        // The first word is the message's kind; 0 means no message.
        self.word(MESSAGE_WORD).store(0, Ordering::Release);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let bytes = Self::words(self.units) * WORD_BYTES;
        // SAFETY: this object owns the mapping, and no borrow of it remains.
        let _ = unsafe { rustix::mm::munmap(self.address as *mut _, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_words() {
        let blade = |handle, length| PageLocation::Blade { handle, length };
        for place in [
            PageLocation::Near,
            PageLocation::Emptied,
            PageLocation::Store,
            blade(0, 1),
            blade(1, 4096),
            blade((1 << 48) - 1, 4096),
        ] {
            assert_eq!(PageLocation::of(place.word()), Some(place));
        }
        assert_eq!(PageLocation::Near.word(), 0, "a fresh map is near");
        assert_eq!(PageLocation::of(7), None);
    }

    #[test]
    fn what_one_process_leaves_the_next_finds() {
        let map = Map::new(1000).unwrap();
        map.set_place(999, PageLocation::Blade { handle: 77, length: 4096 });
        map.set_place(3, PageLocation::Store);
        assert_eq!(map.take_handles(32), 0);
        assert_eq!(map.take_handles(5), 32);
        map.count(Counter::TakeOverMax, 2);
        map.receive(|bytes| {
            *bytes = [9; 32];
            Ok(())
        })
        .unwrap();
        let file = map.file().try_clone().unwrap();
        drop(map);
        assert!(Map::adopt(file.try_clone().unwrap(), 999).is_err());
        let map = Map::adopt(file, 1000).unwrap();
        assert_eq!(map.place(999), PageLocation::Blade { handle: 77, length: 4096 });
        assert_eq!(
            (map.place(3), map.place(4), map.far()),
            (PageLocation::Store, PageLocation::Near, 2)
        );
        let pending = (map.mark(Mark::PendingHandle), map.mark(Mark::PendingCount));
        assert_eq!((map.mark(Mark::Handle), pending), (37, (32, 5)));
        assert_eq!(map.counted(Counter::TakeOverMax), 2);
        assert_eq!(map.message(), [9; 32]);
        map.clear_message();
        assert_eq!(map.message()[0], 0);
    }

    #[test]
    fn a_file_of_something_else_is_no_map() {
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Map::adopt(other.try_clone().unwrap(), 1).is_err());
        rustix::fs::ftruncate(&other, (Map::words(1) * WORD_BYTES) as u64).unwrap();
        assert!(Map::adopt(other, 1).is_err());
    }

    #[test]
    fn a_message_that_could_not_be_read_changes_nothing() {
        let map = Map::new(1).unwrap();
        assert_eq!(map.receive(|_| Err(Errno::AGAIN)), Err(Errno::AGAIN));
        assert_eq!(map.message(), [0; 32]);
    }
}
