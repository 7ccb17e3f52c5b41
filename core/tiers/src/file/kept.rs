//! A file of pages that outlives the process, with the memory of its checksums.
//!
//! The file has no name: the fd store keeps its descriptor with the store's memory, and both end
//! together. The checksums lie in a memfd that is also kept. A page is written first, then its
//! checksum; the index names the slot last. So a slot that the index does not name is free, whatever
//! its contents, and one that it names has its page and checksum.
//!
//! The tier's own threads wait for the disk; callers wait until a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::slots::{Slots, checksum};
use super::taken::{Shared, Taken};
use super::trouble::{DiskError, DiskTrouble, Trouble};
use super::turns::Turns;
use super::workers::Workers;
use super::{SLOT_BITS, WRITE_PAGES_MAX, nameless, punch};
use crate::PageBuf;
use crate::budget::Budget;
use crate::region::{Backing, GrowArray, Region};
use crate::sync::{AtomicU64, Ordering};
use spillway_platform::page_file::PageFile;
use spillway_types::PAGE_BYTES;

/// Reads that wait for the disk at the same time.
const READERS: usize = 8;
/// Writes, and other changes of the file, that do.
const WRITERS: usize = 4;
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;
/// Ratio of slots to pages, so that rows of slots can be found in a nearly full file.
const ROOM: (u64, u64) = (9, 8);
/// Most pages of the file: what the index can name.
const PAGES_MAX: u64 = 1 << 35;

/// How the file is used.
#[derive(Clone, Copy, Debug)]
pub struct KeptSettings {
    /// Most bytes that pages may take.
    pub capacity_bytes: u64,
    /// How long a read or write may take before it counts as failed.
    pub deadline: Duration,
    /// Time that each takes besides its own, to emulate a slower disk.
    pub delay: Duration,
}

/// Counters of a file tier since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Most pages that it may have.
    pub capacity_pages: u64,
    /// Pages that it has.
    pub pages: u64,
    /// Pages read.
    pub read_pages: u64,
    /// Pages written.
    pub written_pages: u64,
    /// Pages that it refused, because it was full or failed.
    pub refused_pages: u64,
    /// Reads that failed or took too long.
    pub failed_reads: u64,
    /// Pages that differed from what was written.
    pub corrupt_pages: u64,
    /// Why it last refused a page; none if it accepted it.
    pub trouble: Option<DiskTrouble>,
    /// Its last error, and when that was; none if there was none.
    pub last_error: Option<(DiskError, Instant)>,
}

/// The file tier of a store that is kept.
#[derive(Debug)]
pub struct KeptFile {
    shared: Arc<Shared>,
    sums: Arc<Region>,
    pages_max: u64,
    /// Whether another process has begun it.
    taken_over: bool,
    deadline: Duration,
    readers: Workers,
    writers: Workers,
    turns: Turns,
    read_pages: AtomicU64,
    written_pages: AtomicU64,
    refused_pages: AtomicU64,
    failed_reads: AtomicU64,
}

impl KeptFile {
    /// A new file in `directory`.
    ///
    /// # Errors
    /// The file can't be made there.
    pub fn create(directory: &Path, settings: KeptSettings) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let directory = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
        let file = nameless(&directory)?;
        let pages = (settings.capacity_bytes / PAGE_BYTES as u64).min(PAGES_MAX / 2);
        let slots = pages.div_ceil(ROOM.1) * ROOM.0;
        let sums = Region::reserve(GrowArray::<u64>::bytes_for(slots as usize), Backing::Memfd)?;
        Self::with(file, sums, false, settings)
    }

    /// Takes a file over that another process kept, with the memory of its checksums.
    /// [`Self::claim`] and [`Self::settle`] tell then what is in it.
    ///
    /// # Errors
    /// `InvalidData` when the descriptors are not those of such a file.
    pub fn take_over(file: OwnedFd, sums: OwnedFd, settings: KeptSettings) -> io::Result<Self> {
        let is_file =
            rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file();
        let bytes = rustix::fs::fstat(&sums)?.st_size as u64;
        let fits = bytes.is_multiple_of(PAGE_BYTES as u64) && bytes <= PAGES_MAX * 8;
        if !is_file || !fits {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let sums = Region::adopt(sums, bytes as usize)?;
        Self::with(file, sums, true, settings)
    }

    fn with(
        file: OwnedFd,
        sums: Region,
        taken_over: bool,
        settings: KeptSettings,
    ) -> io::Result<Self> {
        let sums = Arc::new(sums);
        let room = sums.bytes() / size_of::<u64>();
        let slots = Slots::with_sums(GrowArray::within(&sums, &mut 0, room))?;
        let shared = Shared::new(file.into(), slots, settings.delay);
        let pages_max = settings.capacity_bytes / PAGE_BYTES as u64;
        Ok(Self {
            shared: Arc::new(shared),
            sums,
            pages_max: pages_max.min(room as u64 / ROOM.0 * ROOM.1),
            taken_over,
            deadline: settings.deadline,
            readers: Workers::new("disk-read", READERS),
            writers: Workers::new("disk-write", WRITERS),
            turns: Turns::default(),
            read_pages: AtomicU64::new(0),
            written_pages: AtomicU64::new(0),
            refused_pages: AtomicU64::new(0),
            failed_reads: AtomicU64::new(0),
        })
    }

    /// The descriptors to be kept: of the file, and of the checksums' memory.
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.shared.file.as_fd(), self.sums.descriptor()?])
    }

    /// Whether writes go past the kernel's cache.
    pub fn is_direct(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.shared.file).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
    }

    /// Marks a slot as used that an index names. False when it is already, or there is none.
    pub fn claim(&self, file: u8, slot: u32, budget: &Budget) -> bool {
        let claimed = self.taken_over && self.shared.slots.lock().claim(place(file, slot), budget);
        self.shared.pages.fetch_add(u64::from(claimed), Ordering::Relaxed);
        claimed
    }

    /// After the last [`Self::claim`]: gives back to the disk what no index names, if the disk does
    /// that. One that fails is no reason to lose what lies in memory.
    ///
    /// # Errors
    /// The memory of checksums can't be given back.
    pub fn settle(&self) -> io::Result<()> {
        let mut slots = self.shared.slots.lock();
        for group in slots.settle()? {
            punch(&self.shared.file, group);
        }
        let bytes = (slots.high() * PAGE_BYTES) as u64;
        if self.shared.file.metadata().is_ok_and(|file| file.len() > bytes) {
            let _ = self.shared.file.set_len(bytes);
        }
        Ok(())
    }

    /// What happened so far. Corrupt pages are counted by who knows that they are.
    pub fn counters(&self) -> DiskCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCounters {
            capacity_pages: self.pages_max,
            pages: load(&self.shared.pages),
            read_pages: load(&self.read_pages),
            written_pages: load(&self.written_pages),
            refused_pages: load(&self.refused_pages),
            failed_reads: load(&self.failed_reads),
            corrupt_pages: 0,
            trouble: self.shared.trouble().last.or(self.is_full().then_some(DiskTrouble::Full)),
            last_error: self.shared.last_error(),
        }
    }

    /// The disk returned other bytes than were written.
    pub fn note_corrupt(&self) {
        self.shared.note_error(DiskError::Corrupt);
    }

    /// Whether the disk has failed just before.
    fn rests(&self) -> bool {
        self.shared.trouble().rests()
    }

    /// Whether a page would be written now: there is room, and the disk has not just failed.
    pub fn takes(&self) -> bool {
        !self.rests() && !self.is_full()
    }

    /// Whose puts move pages here at the same time.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// How long a read or write may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    fn is_full(&self) -> bool {
        self.shared.pages.load(Ordering::Relaxed) + WRITE_PAGES_MAX as u64 > self.pages_max
    }

    /// Writes up to [`WRITE_PAGES_MAX`] pages, and tells the file's number and the slot of each in
    /// `places`. False when the tier is full, the disk fails or takes too long, or has done so just
    /// before.
    pub fn write(
        &self,
        pages: &[&[u8; PAGE_BYTES]],
        budget: &Budget,
        places: &mut [Option<(u8, u32)>; WRITE_PAGES_MAX],
    ) -> bool {
        let pages = &pages[..pages.len().min(WRITE_PAGES_MAX)];
        let count = pages.len() as u64;
        let done =
            if self.rests() { Err(None) } else { self.try_write(pages, budget).map_err(Some) };
        match done {
            Ok(slots) => {
                *self.shared.trouble() = Trouble::default();
                self.written_pages.fetch_add(count, Ordering::Relaxed);
                for (place, slot) in places.iter_mut().zip(slots) {
                    *place = Some(((slot >> SLOT_BITS) as u8, (slot & SLOT_MASK) as u32));
                }
                true
            }
            Err(trouble) => {
                self.refused_pages.fetch_add(count, Ordering::Relaxed);
                // Whether it is full is seen at any time.
                if let Some(DiskTrouble::Failed(errno)) = trouble {
                    self.shared.trouble().note(errno.into());
                    self.shared.note_error(DiskError::Write(errno));
                }
                false
            }
        }
    }

    /// Lets a thread write to a failed disk, to check whether it works again. Does not wait for it; call it
    /// periodically.
    pub fn try_again(&self, budget: &Budget) {
        let mut trouble = self.shared.trouble();
        if trouble.last.is_none() || trouble.trying || trouble.rests() {
            return;
        }
        let taken = Taken::take(&self.shared, WRITE_PAGES_MAX, self.pages_max, budget);
        let Ok(taken) = taken else { return };
        trouble.trying = true;
        drop(trouble);
        let (shared, deadline) = (Arc::clone(&self.shared), self.deadline);
        let job = move || {
            let began = Instant::now();
            let done = taken.write(&[PageBuf::ZERO; WRITE_PAGES_MAX]).map(drop);
            let is_late = began.elapsed() > deadline;
            let done = if is_late { Err(Errno::TIMEDOUT) } else { done };
            if let Err(errno) = done {
                shared.note_error(DiskError::Write(errno));
            }
            let mut trouble = shared.trouble();
            trouble.trying = false;
            match done {
                Ok(()) => *trouble = Trouble::default(),
                Err(errno) => trouble.note(errno.into()),
            }
        };
        if self.writers.hand_over(Box::new(job)).is_err() {
            self.shared.trouble().trying = false;
        }
    }

    /// Gives the slots.
    fn try_write(
        &self,
        pages: &[&[u8; PAGE_BYTES]],
        budget: &Budget,
    ) -> Result<Vec<usize>, DiskTrouble> {
        let taken = Taken::take(&self.shared, pages.len(), self.pages_max, budget)?;
        let slots: Vec<usize> = taken.slots().collect();
        let sums: Vec<u64> =
            slots.iter().zip(pages).map(|(&slot, page)| checksum(page, slot as u64)).collect();
        let copies: Vec<PageBuf> = pages.iter().map(|page| PageBuf(**page)).collect();
        let done = self.writers.wait_for(self.deadline, move || taken.write(&copies));
        let mut taken = done.map_err(|error| errno_of(&error))??;
        let mut all = self.shared.slots.lock();
        for (&slot, sum) in slots.iter().zip(sums) {
            all.set_sum(slot, sum);
        }
        taken.kept = true;
        Ok(slots)
    }

    /// Frees a slot. What is to be given back to the disk is, some time.
    pub fn free(&self, file: u8, slot: u32) {
        let group = self.shared.slots.lock().give(place(file, slot));
        self.shared.pages.fetch_sub(1, Ordering::Relaxed);
        let Some(group) = group else { return };
        self.shared.emptied().push(group);
        let shared = Arc::clone(&self.shared);
        // Without a thread it is used again as it is.
        let _ = self.writers.hand_over(Box::new(move || shared.punch_next()));
    }

    /// The checksum of a slot in use.
    pub fn sum(&self, file: u8, slot: u32) -> u64 {
        self.shared.slots.lock().sum(place(file, slot))
    }

    /// Reads a slot; false when it is not what `sum` was noted of.
    ///
    /// # Errors
    /// What the disk says; `TimedOut`.
    pub fn read(&self, file: u8, slot: u32, sum: u64, page: &mut PageBuf) -> io::Result<bool> {
        let (slot, shared) = (place(file, slot), Arc::clone(&self.shared));
        let work = move || {
            std::thread::sleep(shared.delay);
            let mut page = Box::new(PageBuf::ZERO);
            PageFile::new(&shared.file).read_page(slot as u64, &mut page.0)?;
            Ok(page)
        };
        let read = self.readers.wait_for(self.deadline, work).and_then(|read| read);
        match read {
            Ok(read) => {
                self.read_pages.fetch_add(1, Ordering::Relaxed);
                page.0.copy_from_slice(&read.0);
                Ok(checksum(&page.0, slot as u64) == sum)
            }
            // The slot was freed and punched out since it was looked up, or the file was cut.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => {
                self.failed_reads.fetch_add(1, Ordering::Relaxed);
                self.shared.note_error(DiskError::Read(errno_of(&error)));
                Err(error)
            }
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::from_io_error(error).unwrap_or(Errno::AGAIN),
    }
}

/// The number of a slot in the one file, of the two parts that the index has of it.
const fn place(file: u8, slot: u32) -> usize {
    (file as usize) << SLOT_BITS | slot as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(deadline_ms: u64, delay_ms: u64) -> KeptSettings {
        KeptSettings {
            capacity_bytes: 1 << 20,
            deadline: Duration::from_millis(deadline_ms),
            delay: Duration::from_millis(delay_ms),
        }
    }

    fn create(settings: KeptSettings) -> KeptFile {
        let own = std::env::current_exe().unwrap();
        KeptFile::create(own.parent().unwrap(), settings).unwrap()
    }

    #[test]
    fn slots_of_a_late_write_are_not_to_be_had_before_it_ends() {
        // Long enough for a busy machine to begin the write, and to look before it ends.
        let file = create(settings(400, 2000));
        let budget = Budget::new(1 << 20);
        let page = [7; PAGE_BYTES];
        let written = file.try_write(&[&page; WRITE_PAGES_MAX], &budget);
        assert_eq!(written, Err(DiskTrouble::Failed(Errno::TIMEDOUT)));
        assert_eq!(file.counters().pages, WRITE_PAGES_MAX as u64);
        let first = |file: &KeptFile| {
            let taken = Taken::take(&file.shared, 4, file.pages_max, &budget).unwrap();
            taken.slots().next().unwrap()
        };
        assert_eq!(first(&file), WRITE_PAGES_MAX);
        let until = Instant::now() + Duration::from_secs(20);
        while first(&file) != 0 {
            assert!(Instant::now() < until, "they are free when it has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(file.counters().pages, 0);
    }

    #[test]
    fn what_is_still_to_be_punched_out_is_used_once_where_there_is_nothing_else() {
        let file = create(settings(20_000, 0));
        let budget = Budget::new(1 << 20);
        let mut slots = file.shared.slots.lock();
        while slots.take_rows(WRITE_PAGES_MAX, &budget).is_some() {}
        let emptied = (64..128).find_map(|slot| slots.give(slot));
        assert_eq!(emptied, Some(1), "a group has 64 slots");
        drop(slots);
        file.shared.emptied().extend(emptied);
        let take = |count| Taken::take(&file.shared, count, file.pages_max, &budget);
        let taken = take(WRITE_PAGES_MAX).unwrap();
        assert!(taken.slots().eq(64..96));
        assert!(file.shared.emptied().is_empty(), "it would be punched out while it is used");
        let rest = take(WRITE_PAGES_MAX).unwrap();
        assert!(rest.slots().eq(96..128));
        assert_eq!(take(1).err(), Some(DiskTrouble::Failed(Errno::NOMEM)));
        assert_eq!(file.counters().pages, 2 * WRITE_PAGES_MAX as u64);
    }

    #[test]
    fn after_each_failure_the_disk_rests() {
        let mut trouble = Trouble::default();
        assert!(!trouble.rests());
        for _ in 0..2 {
            trouble.note(DiskTrouble::Failed(Errno::IO));
            assert!(trouble.rests());
            trouble.until = Some(Instant::now());
            assert!(!trouble.rests());
        }
    }

    #[test]
    fn a_disk_that_serves_again_is_noticed_without_a_put() {
        let budget = Budget::new(1 << 20);
        let trouble = DiskTrouble::Failed(Errno::NOSPC);
        for (file, expected) in [
            (create(settings(20_000, 0)), None),
            (create(settings(20, 100)), Some(DiskTrouble::Failed(Errno::TIMEDOUT))),
        ] {
            file.try_again(&budget);
            assert_eq!(file.counters().trouble, None);
            file.shared.trouble().last = Some(trouble);
            file.shared.note_error(DiskError::Write(Errno::NOSPC));
            file.try_again(&budget);
            file.try_again(&budget);
            assert!(file.counters().pages <= WRITE_PAGES_MAX as u64, "one try at a time");
            let until = Instant::now() + Duration::from_secs(20);
            while file.counters().trouble == Some(trouble) {
                assert!(Instant::now() < until, "it is not tried");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!((file.counters().trouble, file.takes()), (expected, expected.is_none()));
            // The last error stays when the disk serves again. A try that fails replaces it.
            let last_error = file.counters().last_error.map(|(error, _)| error);
            let errno = if expected.is_none() { Errno::NOSPC } else { Errno::TIMEDOUT };
            assert_eq!(last_error, Some(DiskError::Write(errno)));
            while file.counters().pages != 0 || file.shared.trouble().trying {
                assert!(Instant::now() < until, "pages are left, or it is not tried again");
            }
        }
    }

    #[test]
    fn writes_that_fail_leave_nothing_taken() {
        let sound = create(settings(20_000, 0));
        let [file, sums] = sound.descriptors().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let only_read = std::fs::File::open(path).unwrap();
        let sums = sums.try_clone_to_owned().unwrap();
        let file = KeptFile::take_over(only_read.into(), sums, settings(20_000, 0)).unwrap();
        let budget = Budget::new(1 << 20);
        let page = [7; PAGE_BYTES];
        for _ in 0..50 {
            let written = file.try_write(&[&page; WRITE_PAGES_MAX], &budget);
            assert_eq!(written, Err(DiskTrouble::Failed(Errno::BADF)));
        }
        assert_eq!(file.counters().pages, 0);
        let mut places = [None; WRITE_PAGES_MAX];
        assert!(!file.write(&[&page], &budget, &mut places) && !file.takes());
        assert_eq!(places[0], None);
        let last_error = file.counters().last_error.map(|(error, _)| error);
        assert_eq!(last_error, Some(DiskError::Write(Errno::BADF)));
        assert_eq!(file.counters().trouble, Some(DiskTrouble::Failed(Errno::BADF)));
        file.note_corrupt();
        let last_error = file.counters().last_error.map(|(error, _)| error);
        assert_eq!(last_error, Some(DiskError::Corrupt), "a later one replaces it");
    }
}
