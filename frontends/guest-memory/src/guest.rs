//! A guest whose memory was handed over: executes the steps of [`crate::steps`] on the kernel.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use spillway_platform::page_file::read_exact_at;
use spillway_platform::uffd::{Message, Uffd, decode};
use spillway_tiers::PageBuf;
use spillway_types::PAGE_BYTES;

use crate::Far;
use crate::map::{Map, PageLocation};
use crate::regions::{Layout, Region, Run};
use crate::steps::{Filled, World};

/// Bytes in a block, as stat(2) counts them.
const BLOCK_BYTES: u64 = 512;
/// Pause before a fault is tried again after the host had no memory for the page.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(10);

/// The reason why the manager can't go on with a guest.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Fatal {
    /// The guest's process has ended.
    #[error("the monitor has ended")]
    Gone,
    /// Another process created a page in the memory file in place of a far one.
    #[error(
        "the page at {0:#x} was far and something other than the manager put another one there: only the monitor may \
         have the memory mapped"
    )]
    Foreign(u64),
    /// The kernel kept a page that was punched out.
    #[error("the page at {0:#x} could not be punched out of its memory file")]
    Unpunched(u64),
}

/// The descriptors of a guest.
#[derive(Debug)]
pub struct Descriptors {
    /// The userfaultfd.
    pub uffd: OwnedFd,
    /// The memory files that came with it.
    pub files: Vec<OwnedFd>,
    /// The file with the pages' initial contents; zeros without one.
    pub source: Option<OwnedFd>,
}

/// A guest's memory.
#[derive(Debug)]
pub struct Guest {
    uffd: Uffd,
    files: Vec<OwnedFd>,
    source: Option<OwnedFd>,
    layout: Layout,
    map: Map,
    far: Far,
    /// Regions that the monitor has unmapped or moved.
    left: Vec<AtomicBool>,
    _uffd: OwnedFd,
}

impl Guest {
    /// A guest from a checked handover.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn new(
        descriptors: Descriptors,
        layout: Layout,
        map: Map,
        far: Far,
    ) -> Result<Self, Errno> {
        let Descriptors { uffd, files, source } = descriptors;
        let flags = rustix::fs::fcntl_getfl(&uffd)?;
        rustix::fs::fcntl_setfl(&uffd, flags | OFlags::NONBLOCK)?;
        // The file position is shared with the monitor.
        let files = files.into_iter().map(|file| own_position(&file).unwrap_or(file)).collect();
        let left = layout.regions().iter().map(|_| AtomicBool::new(false)).collect();
        let number = Uffd::from_number(uffd.as_raw_fd());
        Ok(Self { uffd: number, files, source, layout, map, far, left, _uffd: uffd })
    }

    /// The regions.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The map.
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// The tiers.
    pub const fn far(&self) -> &Far {
        &self.far
    }

    /// Whether pages can leave.
    pub const fn pages_out(&self) -> bool {
        !self.files.is_empty()
    }

    /// The descriptor to poll for messages.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }

    /// The next message, which stays in the map until [`Map::clear_message`].
    ///
    /// # Errors
    /// `AGAIN` if there is none.
    pub fn receive(&self) -> Result<Message, Errno> {
        self.map.receive(|raw| self.uffd.read_raw(raw)).map(|raw| decode(&raw))
    }

    /// Bytes that the memory files take.
    pub fn resident(&self) -> u64 {
        let blocks = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks);
        self.files.iter().map(|file| blocks(file) as u64 * BLOCK_BYTES).sum()
    }

    /// Sends SIGBUS to the thread that waits at an address outside all regions.
    pub fn refuse(&self, address: usize) {
        if self.uffd.poison(address & !(PAGE_BYTES - 1)).is_err() {
            self.uffd.wake(address, PAGE_BYTES);
        }
    }

    /// Handles a range that the monitor has unmapped or moved: from now on no page of the regions that it touches
    /// leaves.
    pub fn leave(&self, start: u64, end: u64) {
        for (region, left) in self.layout.regions().iter().zip(&self.left) {
            if region.address < end && start < region.address + region.bytes {
                left.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Unregisters all regions from the userfaultfd: the guest continues without a manager.
    ///
    /// # Errors
    /// Those of ioctl_userfaultfd(2).
    pub fn unregister(&self) -> Result<(), Errno> {
        for region in self.layout.regions() {
            match self.uffd.unregister(region.address as usize, region.bytes as usize) {
                Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::SRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The range of a run in the monitor's memory: address and bytes.
    fn range(&self, run: Run) -> (usize, usize) {
        let (region, inside) = self.layout.locate(run.first);
        ((region.address + inside) as usize, (run.count * self.layout.unit_bytes()) as usize)
    }

    /// The range of a run in its memory file: file, offset and bytes.
    fn in_file(&self, run: Run) -> Option<(&OwnedFd, u64, u64)> {
        let (region, inside) = self.layout.locate(run.first);
        let file = self.files.get(region.file)?;
        Some((file, region.offset + inside, run.count * self.layout.unit_bytes()))
    }

    /// The first run with contents in a region, at or after the unit `from`.
    fn present_in(&self, region: &Region, from: u64) -> Option<Run> {
        let unit_bytes = self.layout.unit_bytes();
        let file = self.files.get(region.file)?;
        let end = region.offset + region.bytes;
        let start = region.offset + (from - region.first) * unit_bytes;
        let data = rustix::fs::seek(file, SeekFrom::Data(start)).ok().filter(|&at| at < end)?;
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(end).min(end);
        let first = region.first + (data - region.offset) / unit_bytes;
        let count = (hole - region.offset).div_ceil(unit_bytes) + region.first - first;
        Some(Run { first, count })
    }
}

/// The same file, with a position of its own.
fn own_position(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

impl World for Guest {
    type Fatal = Fatal;
    type Page = [u8];
    type Pages = [PageBuf];

    fn place(&self, unit: u64) -> PageLocation {
        self.map.place(unit)
    }

    fn set_place(&self, unit: u64, place: PageLocation) -> Result<(), Fatal> {
        self.map.set_place(unit, place);
        Ok(())
    }

    fn emptied(&self) -> PageLocation {
        if self.source.is_some() { PageLocation::Emptied } else { PageLocation::Near }
    }

    fn protect(&self, run: Run) -> Result<bool, Fatal> {
        let (address, bytes) = self.range(run);
        match self.uffd.protect(address, bytes) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Err(Fatal::Gone),
            Err(Errno::NOENT) => {
                self.leave(address as u64, (address + bytes) as u64);
                Ok(false)
            }
            Err(_) => Ok(false),
        }
    }

    fn release(&self, run: Run) -> Result<(), Fatal> {
        let (address, bytes) = self.range(run);
        match self.uffd.unprotect(address, bytes) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(Fatal::Gone),
            // An event is unread: the writer faults again, and is released then.
            Err(_) => self.wake(run),
        }
    }

    fn wake(&self, run: Run) -> Result<(), Fatal> {
        let (address, bytes) = self.range(run);
        self.uffd.wake(address, bytes);
        Ok(())
    }

    /// Reads by pread(2), which does not fill holes. An access through a mapping would.
    fn read(&self, run: Run, pages: &mut [PageBuf]) -> Result<bool, Fatal> {
        let Some((file, offset, _)) = self.in_file(run) else { return Ok(false) };
        let mut offsets = (offset..).step_by(PAGE_BYTES);
        let pages = &mut pages[..run.count as usize];
        Ok(pages.iter_mut().all(|page| {
            offsets.next().is_some_and(|at| read_exact_at(file, &mut page.0, at).is_ok())
        }))
    }

    fn put(
        &self,
        run: Run,
        pages: &mut [PageBuf],
        places: &mut [PageLocation],
    ) -> Result<(), Fatal> {
        self.far.put(&self.map, run, pages, places);
        Ok(())
    }

    fn punch(&self, run: Run) -> Result<bool, Fatal> {
        let Some((file, offset, bytes)) = self.in_file(run) else { return Ok(false) };
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(file, mode, offset, bytes).is_err() {
            return Ok(false);
        }
        // If the kernel can't split a huge page, the punched part becomes zeros but stays allocated.
        match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(data) if data < offset + bytes => {
                Err(Fatal::Unpunched((self.range(run).0 as u64) + data - offset))
            }
            _ => Ok(true),
        }
    }

    fn fetch(&self, unit: u64, place: PageLocation, page: &mut [u8]) -> Result<bool, Fatal> {
        Ok(self.far.fetch(unit, place, page))
    }

    fn first(&self, unit: u64, place: PageLocation, page: &mut [u8]) -> Result<bool, Fatal> {
        match &self.source {
            Some(source) if place == PageLocation::Near => {
                let (region, inside) = self.layout.locate(unit);
                Ok(read_exact_at(source, page, region.offset + inside).is_ok())
            }
            _ => {
                page.fill(0);
                Ok(true)
            }
        }
    }

    fn fill(&self, unit: u64, page: &[u8]) -> Result<Filled, Fatal> {
        let (address, bytes) = self.range(Run::one(unit));
        assert!(page.len() >= bytes, "a page of the guest's size");
        match self.uffd.copy(address, page.as_ptr(), bytes, false).stopped {
            None => Ok(Filled::Done),
            Some(Errno::EXIST) => Ok(Filled::There),
            Some(Errno::SRCH) => Err(Fatal::Gone),
            Some(Errno::NOMEM | Errno::NOSPC) => {
                thread::sleep(NO_MEMORY_PAUSE);
                Ok(Filled::Later)
            }
            Some(Errno::AGAIN) => Ok(Filled::Later),
            Some(_) => Ok(Filled::Gone),
        }
    }

    fn poison(&self, unit: u64) -> Result<(), Fatal> {
        let (address, bytes) = self.range(Run::one(unit));
        (address..address + bytes).step_by(PAGE_BYTES).for_each(|page| self.refuse(page));
        Ok(())
    }

    fn forget(&self, unit: u64, place: PageLocation) -> Result<(), Fatal> {
        self.far.forget(unit, place);
        Ok(())
    }

    fn foreign(&self, unit: u64) -> Fatal {
        Fatal::Foreign(self.range(Run::one(unit)).0 as u64)
    }

    fn present(&self, from: u64) -> Result<Option<Run>, Fatal> {
        let regions = self.layout.regions().iter().zip(&self.left);
        let unit_bytes = self.layout.unit_bytes();
        Ok(regions
            .filter(|(region, left)| {
                region.first + region.bytes / unit_bytes > from && !left.load(Ordering::Relaxed)
            })
            .find_map(|(region, _)| self.present_in(region, from.max(region.first))))
    }

    fn noted(&self) -> Vec<Run> {
        match decode(&self.map.message()) {
            Message::Remove { start, end } => {
                self.layout.runs_between(start as u64, end as u64).collect()
            }
            _ => Vec::new(),
        }
    }

    fn clear_note(&self) -> Result<(), Fatal> {
        self.map.clear_message();
        Ok(())
    }

    fn forget_strays(&self) -> Result<(), Fatal> {
        self.far.forget_strays(&self.map);
        Ok(())
    }

    fn release_all(&self) -> Result<(), Fatal> {
        for region in self.layout.regions() {
            let (address, bytes) = (region.address as usize, region.bytes as usize);
            if self.pages_out() {
                // If an event is unread, this fails, and each writer's own fault releases it.
                let _ = self.uffd.unprotect(address, bytes);
            }
            self.uffd.wake(address, bytes);
        }
        Ok(())
    }
}
