//! Huge pages for windows: files on hugetlbfs, pinned by a registered io_uring buffer, whose places in the guest's memory are known.
//!
//! Two things keep a page from the guest's kernel while the host may write to it. The file has a name, so that it holds its pages
//! when every process has died. The pin holds them where they are, also when a program empties its file; a small process of its own
//! shares the pins, and outlives an agent that is killed (holder.rs).

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

/// A huge page.
pub const PAGE_BYTES: u64 = 2 << 20;
/// The kernel's number for hugetlbfs.
const HUGETLBFS: u64 = 0x9584_58f6;
/// Pages of a window that are tried in vain, because the host may take them away, before there is none.
const TRIES: usize = 3;
/// Bytes of an entry of pagemap, the bits that are the number of a frame of 4 KiB, and the one that says that there is one.
const ENTRY_BYTES: u64 = 8;
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;
const FRAME_BYTES: u64 = 4096;

/// Where windows come from. Opened with all rights, which the program gives up then: the kernel goes by who has opened.
#[derive(Debug)]
pub struct Pages {
    folder: PathBuf,
    /// What the names of this run's files begin with.
    run: String,
    pagemap: File,
    iomem: File,
    overcommit: PathBuf,
    pins: OwnedFd,
    free: Vec<u32>,
}

/// A window's memory. It is in use until [`Pages::give_back`].
#[derive(Debug)]
pub struct Window {
    file: File,
    path: PathBuf,
    slot: u32,
    /// Where its pages lie: guest-physical addresses divided by the size of a page.
    pub pages: Vec<u64>,
}

impl AsFd for Window {
    /// What a program maps.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Pages {
    /// Windows in a folder of hugetlbfs at `mount`; `run` tells this run of the agent from others.
    ///
    /// # Errors
    /// There is no hugetlbfs of 2 MiB, or the kernel pins no memory for anybody.
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

    /// A window in a folder that need not be hugetlbfs, without pages.
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

    /// The descriptor that all pins hang on.
    pub const fn pins(&self) -> &OwnedFd {
        &self.pins
    }

    /// Where the files lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lets the kernel make so many huge pages when they are wanted, beside those that the guest's owner has set aside. They are
    /// ordinary memory before and after.
    ///
    /// # Errors
    /// The kernel does not.
    pub fn allow(&self, pages: u64) -> io::Result<()> {
        let allowed = fs::read_to_string(&self.overcommit)?.trim().parse().unwrap_or(0_u64);
        if allowed >= pages {
            return Ok(());
        }
        fs::write(&self.overcommit, pages.to_string())
    }

    /// A window of so many pages of zeros, none of them in memory that the host may take away.
    ///
    /// # Errors
    /// There are no huge pages, or they can't be pinned.
    pub fn make(&mut self, id: u64, count: usize) -> io::Result<Window> {
        let movable = parse::virtio_mem(&self.iomem()?);
        // Those that lie elsewhere are kept meanwhile, so that others come.
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

    /// Has the kernel give a window its pages, pins them and finds out where they lie.
    fn fill(&self, window: &Window, count: usize) -> io::Result<Vec<u64>> {
        let bytes = count * PAGE_BYTES as usize;
        ftruncate(&window.file, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nobody else has the file yet.
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

    /// Where a page lies that is mapped at an address of this process, in pages.
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

    /// Gives a window's memory to the guest again. To be called when the host has it no more.
    pub fn give_back(&mut self, window: Window) {
        // It may have a name no more; and a pin that can't be undone keeps its page, and its slot.
        let _ = fs::remove_file(&window.path);
        match self.pin(window.slot, iovec { iov_base: ptr::null_mut(), iov_len: 0 }) {
            Ok(()) => self.free.push(window.slot),
            Err(error) => eprintln!("spillway-agent: a window's page stays pinned: {error}"),
        }
    }

    /// Removes what earlier runs have left. To be called when the host has nothing of it any more.
    pub fn forget_others(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with(&format!("{}-", self.run)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Registers memory in a slot, in place of what was there.
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

/// A ring that submits nothing: it has a table of buffers, all empty.
fn pins() -> io::Result<OwnedFd> {
    let mut params = io_uring_params::default();
    // SAFETY: the kernel writes to `params` alone, which lives until the call returns.
    let ring = unsafe { io_uring_setup(1, &mut params)? };
    let mut table = io_uring_rsrc_register::default();
    table.nr = WINDOWS_MAX as u32;
    table.flags = IoringRsrcFlags::REGISTER_SPARSE;
    let bytes = size_of_val(&table) as u32;
    let op = IoringRegisterOp::RegisterBuffers2;
    // SAFETY: the structure lives until the call returns, and names no memory.
    unsafe { io_uring_register(&ring, op, (&raw const table).cast(), bytes)? };
    Ok(ring)
}

/// Tells a run of the agent from all others.
pub fn run_name() -> io::Result<String> {
    Ok(format!("{:016x}", random()?))
}

/// A number that nobody guesses.
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
            // What lies there is no huge page.
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
