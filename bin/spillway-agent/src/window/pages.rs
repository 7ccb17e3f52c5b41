//! Huge pages for windows: files on hugetlbfs, pinned by a registered io_uring buffer, with known guest-physical
//! addresses.
//!
//! Two things keep a page from the guest's kernel while the host may write to it. The file has a name, so it keeps its
//! pages after every process has ended. The pin keeps the pages in place, even if a program empties its file. A small
//! process shares the pins, and outlives an agent that is killed (holder.rs).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::fs::{ftruncate, statfs};
use rustix::io_uring::{
    IoringRegisterOp, IoringRsrcFlags, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_rsrc_register, io_uring_rsrc_update2, io_uring_setup, iovec,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use spillway_guests::window::WINDOWS_MAX;

use crate::parse;

/// Size of a huge page, bytes.
pub const PAGE_BYTES: u64 = 2 << 20;
/// The kernel's number for hugetlbfs.
const HUGETLBFS: u64 = 0x9584_58f6;
/// Attempts to allocate a window whose pages do not lie in memory that the host may take away.
const TRIES: usize = 3;
/// Bytes of an entry of pagemap, its bits with the number of a 4 KiB frame, and its bit for a present page.
const ENTRY_BYTES: u64 = 8;
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;
const FRAME_BYTES: u64 = 4096;

/// The source of windows. It is opened with all privileges, before the program drops them: the kernel checks the
/// opener.
#[derive(Debug)]
pub struct Pages {
    folder: PathBuf,
    /// Prefix of the names of this run's files.
    run: String,
    pagemap: File,
    iomem: File,
    overcommit: PathBuf,
    pins: OwnedFd,
    free: Vec<u32>,
}

/// A window's memory, in use until [`Pages::give_back`].
#[derive(Debug)]
pub struct Window {
    file: File,
    path: PathBuf,
    slot: u32,
    /// The guest-physical addresses of its pages, divided by the page size.
    pub pages: Vec<u64>,
}

impl AsFd for Window {
    /// The file that a program maps.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Pages {
    /// Opens the folder for windows on the hugetlbfs at `mount`. `run` distinguishes this run of the agent from others.
    ///
    /// # Errors
    /// There is no hugetlbfs with 2 MiB pages, or the kernel refuses to pin memory.
    pub fn open(root: &Path, mount: &Path, run: String) -> io::Result<Self> {
        let kind = statfs(mount)?;
        if kind.f_type as u64 != HUGETLBFS || kind.f_bsize as u64 != PAGE_BYTES {
            return Err(io::Error::new(
                ErrorKind::NotFound,
                "no hugetlbfs with pages of 2 MiB is mounted there",
            ));
        }
        let folder = mount.join("spillway-agent");
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let pins = pins()?;
        Ok(Self {
            folder,
            run,
            pagemap: File::open(root.join("proc/self/pagemap"))?,
            iomem: File::open(root.join("proc/iomem"))?,
            overcommit: root.join("proc/sys/vm/nr_overcommit_hugepages"),
            pins,
            free: (0..WINDOWS_MAX as u32).collect(),
        })
    }

    /// A window without pages, in a folder that need not be on hugetlbfs.
    #[cfg(test)]
    pub fn pretended(folder: &Path) -> (Self, Window) {
        let none = || File::open("/dev/null").unwrap();
        let path = folder.join("window");
        let file = File::create(&path).unwrap();
        let pages = Self {
            folder: folder.to_owned(),
            run: String::new(),
            pagemap: none(),
            iomem: none(),
            overcommit: folder.join("overcommit"),
            pins: none().into(),
            free: Vec::new(),
        };
        (pages, Window { file, path, slot: 0, pages: Vec::new() })
    }

    /// The descriptor that holds all pins.
    pub const fn pins(&self) -> &OwnedFd {
        &self.pins
    }

    /// The folder with the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Allows the kernel to create this many huge pages on demand, in addition to those that the guest's owner has
    /// reserved. They are ordinary memory before and after.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn allow(&self, pages: u64) -> io::Result<()> {
        let allowed = fs::read_to_string(&self.overcommit)?.trim().parse().unwrap_or(0_u64);
        if allowed >= pages {
            return Ok(());
        }
        fs::write(&self.overcommit, pages.to_string())
    }

    /// Allocates a window of this many zeroed pages, none of them in memory that the host may take away.
    ///
    /// # Errors
    /// There are no huge pages, or they can't be pinned.
    pub fn make(&mut self, id: u64, count: usize) -> io::Result<Window> {
        let movable = parse::virtio_mem(&self.iomem()?);
        // Keep unsuitable pages until the end, so that the next attempt gets others.
        let mut elsewhere = Vec::new();
        let made = (0..TRIES).find_map(|attempt| match self.try_make(id, attempt, count) {
            Ok(window) if window.pages.iter().any(|&page| is_in(&movable, page)) => {
                elsewhere.push(window);
                None
            }
            done => Some(done),
        });
        for window in elsewhere {
            self.give_back(window);
        }
        made.unwrap_or_else(|| {
            Err(io::Error::other("all huge pages lie in memory that the host may take away"))
        })
    }

    fn try_make(&mut self, id: u64, attempt: usize, count: usize) -> io::Result<Window> {
        let slot = self.free.pop().ok_or_else(|| io::Error::other("there are too many windows"))?;
        let path = self.folder.join(format!("{}-{id}-{attempt}", self.run));
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                self.free.push(slot);
                return Err(error);
            }
        };
        let mut window = Window { file, path, slot, pages: Vec::new() };
        match self.fill(&window, count) {
            Ok(pages) => {
                window.pages = pages;
                Ok(window)
            }
            Err(error) => {
                self.give_back(window);
                Err(error)
            }
        }
    }

    /// Allocates a window's pages, pins them and finds their addresses.
    fn fill(&self, window: &Window, count: usize) -> io::Result<Vec<u64>> {
        let bytes = count * PAGE_BYTES as usize;
        ftruncate(&window.file, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; no other process has the file yet.
        let base =
            unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &window.file, 0)? };
        let pinned = self.pin(window.slot, iovec { iov_base: base, iov_len: bytes });
        let pages = pinned.and_then(|()| {
            (0..count).map(|at| self.place(base as u64 + at as u64 * PAGE_BYTES)).collect()
        });
        // SAFETY: the mapping was made above, and nothing refers to it.
        unsafe { munmap(base, bytes)? };
        pages
    }

    /// The guest-physical page number of a page that is mapped at an address of this process.
    fn place(&self, address: u64) -> io::Result<u64> {
        let mut entry = [0; ENTRY_BYTES as usize];
        self.pagemap.read_exact_at(&mut entry, address / FRAME_BYTES * ENTRY_BYTES)?;
        let entry = u64::from_ne_bytes(entry);
        let address = (entry & FRAME) * FRAME_BYTES;
        if entry & PRESENT == 0 || address == 0 || !address.is_multiple_of(PAGE_BYTES) {
            return Err(io::Error::other(
                "the kernel does not say where a page lies: the agent must start with CAP_SYS_ADMIN",
            ));
        }
        Ok(address / PAGE_BYTES)
    }

    /// Returns a window's memory to the guest. Call it when the host has released the window.
    pub fn give_back(&mut self, window: Window) {
        // The file may already be unlinked. A pin that can't be undone keeps its page and its slot.
        let _ = fs::remove_file(&window.path);
        match self.pin(window.slot, iovec { iov_base: ptr::null_mut(), iov_len: 0 }) {
            Ok(()) => self.free.push(window.slot),
            Err(error) => eprintln!("spillway-agent: a window's page stays pinned: {error}"),
        }
    }

    /// Removes the files of earlier runs. Call it when the host has released all of them.
    pub fn forget_others(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with(&format!("{}-", self.run)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Registers memory in a slot, replacing the former registration.
    fn pin(&self, slot: u32, memory: iovec) -> io::Result<()> {
        let mut update = io_uring_rsrc_update2::default();
        update.offset = slot;
        update.data = io_uring_ptr::new((&raw const memory).cast_mut().cast());
        update.nr = 1;
        let bytes = size_of_val(&update) as u32;
        let op = IoringRegisterOp::RegisterBuffersUpdate;
        // SAFETY: both structures live until the call returns; the memory is mapped, or none.
        let done = unsafe { io_uring_register(&self.pins, op, (&raw const update).cast(), bytes)? };
        if done == 1 { Ok(()) } else { Err(io::Error::other("nothing was pinned")) }
    }

    fn iomem(&self) -> io::Result<String> {
        let mut bytes = vec![0; 1 << 18];
        let mut held = 0;
        while held < bytes.len() {
            match self.iomem.read_at(&mut bytes[held..], held as u64)? {
                0 => break,
                count => held += count,
            }
        }
        bytes.truncate(held);
        String::from_utf8(bytes).map_err(io::Error::other)
    }
}

fn is_in(ranges: &[Range<u64>], page: u64) -> bool {
    let address = page * PAGE_BYTES;
    ranges.iter().any(|range| range.start < address + PAGE_BYTES && address < range.end)
}

/// A ring that submits nothing: it only has a table of empty buffers.
fn pins() -> io::Result<OwnedFd> {
    let mut params = io_uring_params::default();
    // SAFETY: the kernel writes only to `params`, which lives until the call returns.
    let ring = unsafe { io_uring_setup(1, &mut params)? };
    let mut table = io_uring_rsrc_register::default();
    table.nr = WINDOWS_MAX as u32;
    table.flags = IoringRsrcFlags::REGISTER_SPARSE;
    let bytes = size_of_val(&table) as u32;
    let op = IoringRegisterOp::RegisterBuffers2;
    // SAFETY: the structure lives until the call returns, and refers to no memory.
    unsafe { io_uring_register(&ring, op, (&raw const table).cast(), bytes)? };
    Ok(ring)
}

/// A name that distinguishes a run of the agent from all others.
pub fn run_name() -> io::Result<String> {
    Ok(format!("{:016x}", random()?))
}

/// An unpredictable number.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_host_may_take_are_known_at_both_ends() {
        let range = 10 * PAGE_BYTES..12 * PAGE_BYTES;
        let ranges = std::slice::from_ref(&range);
        let inside: Vec<u64> = (0..20).filter(|&page| is_in(ranges, page)).collect();
        assert_eq!(inside, [10, 11]);
    }

    #[test]
    fn a_window_that_can_not_be_filled_leaves_its_place_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (mut pages, window) = Pages::pretended(folder.path());
        pages.pins = pins().unwrap();
        pages.free = vec![0];
        drop(std::fs::remove_file(&window.path));
        for attempt in 0..3 {
            // These are not huge pages.
            let error = pages.try_make(7, attempt, 1).unwrap_err();
            assert!(!error.to_string().contains("too many"), "{error}");
            assert_eq!(pages.free, [0]);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
    }

    #[test]
    fn a_place_without_hugetlbfs_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = Pages::open(Path::new("/"), folder.path(), "run".into()).unwrap_err();
        assert!(error.to_string().contains("hugetlbfs"), "{error}");
    }
}
