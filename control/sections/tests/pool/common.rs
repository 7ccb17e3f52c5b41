//! Helpers: temporary folders, a stand-in for QEMU, temporary huge pages.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use spillway_sections::{Pool, Settings};

/// A mebibyte.
pub const MIB: u64 = 1 << 20;
/// A small section, so that tests are fast.
pub const SECTION: u64 = 4 * MIB;

/// A folder that is removed after the test.
pub struct TestFolder(PathBuf);

impl TestFolder {
    /// A new folder within `parent`.
    pub fn new(parent: impl AsRef<Path>) -> Self {
        let path = parent.as_ref().join(unique("spillway-sections"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A new folder in ordinary shared memory.
    pub fn shm() -> Self {
        Self::new("/dev/shm")
    }

    /// The pool's folder, which the pool creates.
    pub fn dir(&self) -> PathBuf {
        self.0.join("pool")
    }

    /// Settings of a pool of this many sections.
    pub fn settings(&self, sections: u64) -> Settings {
        Settings {
            dir: self.dir(),
            capacity_bytes: sections * SECTION,
            section_bytes: SECTION,
            group: None,
        }
    }

    /// Opens a pool of this many sections.
    pub fn pool(&self, sections: u64) -> Pool {
        Pool::open(&self.settings(sections)).unwrap()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unique(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{name}-{}-{number}", std::process::id())
}

/// The allocated bytes of a file.
pub fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// A file of the pool, mapped like QEMU maps it and used like a guest uses it.
pub struct Mapping {
    file: File,
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Maps the whole file without reserving memory, as with `reserve=off`.
    pub fn of(path: &Path) -> Self {
        Self::with(path, MapFlags::NORESERVE)
    }

    /// Maps the whole file, and makes the kernel reserve the memory.
    pub fn reserving(path: &Path) -> Self {
        Self::with(path, MapFlags::empty())
    }

    fn with(path: &Path, flags: MapFlags) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | flags;
        // SAFETY: a new mapping, without other references.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, flags, &file, 0).unwrap() };
        Self { file, start: start.cast(), bytes }
    }

    /// Some words of a section.
    fn words(&self, section: u64) -> impl Iterator<Item = *mut u64> {
        let start = section * SECTION;
        assert!(start + SECTION <= self.bytes as u64);
        let page = 4096;
        [0, page, SECTION / 2 - 8, SECTION / 2 + page, SECTION - 8].into_iter().map(move |at| {
            // SAFETY: within the mapping, by the assertion.
            unsafe { self.start.add((start + at) as usize).cast::<u64>() }
        })
    }

    /// Writes to a whole section.
    pub fn write(&self, section: u64, value: u64) {
        for word in self.words(section) {
            // SAFETY: an aligned place in the mapping, which only this process uses.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Whether all words of a section have this value.
    pub fn reads(&self, section: u64, value: u64) -> bool {
        // SAFETY: as above.
        self.words(section).all(|word| unsafe { word.read_volatile() } == value)
    }

    /// Punches a range, like QEMU does with unplugged memory.
    pub fn punch(&self, at: u64, bytes: u64) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, mode, at, bytes).unwrap();
    }

    /// Allocates a range, like QEMU with `prealloc=on`.
    pub fn allocate(&self, at: u64, bytes: u64) {
        fallocate(&self.file, FallocateFlags::empty(), at, bytes).unwrap();
    }

    /// Releases a range. Returns how much it held.
    pub fn take(&self, at: u64, bytes: u64) -> u64 {
        let before = self.file.metadata().unwrap().blocks();
        self.punch(at, bytes);
        (before - self.file.metadata().unwrap().blocks()) * 512
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no address of the mapping is kept.
        unsafe { munmap(self.start.cast(), self.bytes).unwrap() };
    }
}

const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A file system that is mounted for a test.
pub struct TestMount(PathBuf);

impl TestMount {
    /// `None`, with a line of output, without the permission to mount.
    pub fn new(kind: &CStr, options: &str) -> Option<Self> {
        let point = std::env::temp_dir().join(unique("spillway-mount"));
        fs::create_dir(&point).unwrap();
        // Mount without a child process: until it calls exec, a child would hold the locks of other tests' pools.
        let options = CString::new(options).unwrap();
        let flags = MountFlags::empty();
        if let Err(error) = mount(c"none", &point, kind, flags, options.as_c_str()) {
            println!("skipped: can't mount {kind:?}: {error}");
            fs::remove_dir(&point).unwrap();
            return None;
        }
        Some(Self(point))
    }

    /// A folder in the mount.
    pub fn folder(&self) -> TestFolder {
        TestFolder::new(&self.0)
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Huge pages added to the host's, and a mount of them; both are removed after the test.
pub struct HugePages {
    pages: u64,
    /// Free pages that the host had before.
    spare: u64,
    mount: Option<TestMount>,
}

impl HugePages {
    /// `None`, with a line of output, if they are not available.
    pub fn take(pages: u64, options: &str) -> Option<Self> {
        let (before, spare) = (total_huge_pages(), huge_pages("free_hugepages"));
        set_huge_pages(before + pages);
        let got = total_huge_pages().saturating_sub(before);
        let mount = TestMount::new(c"hugetlbfs", &format!("pagesize=2M{options}"));
        let taken = Self { pages: got, spare, mount };
        if got < pages {
            println!("skipped: {got} huge pages of {pages} can be had");
        }
        (got == pages && taken.mount.is_some()).then_some(taken)
    }

    /// Whether these are the host's only free huge pages, so that their number is known.
    pub fn are_all(&self) -> bool {
        if self.spare > 0 {
            println!("skipped in part: the host has {} huge pages free", self.spare);
        }
        self.spare == 0
    }

    /// A folder in the mount.
    pub fn folder(&self) -> TestFolder {
        self.mount.as_ref().unwrap().folder()
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.mount = None;
        set_huge_pages(total_huge_pages().saturating_sub(self.pages));
    }
}

/// The host's huge pages of 2 MiB.
pub fn total_huge_pages() -> u64 {
    huge_pages("nr_hugepages")
}

fn huge_pages(which: &str) -> u64 {
    let text = fs::read_to_string(Path::new(HUGE_PAGES).join(which)).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn set_huge_pages(pages: u64) {
    let _ = fs::write(Path::new(HUGE_PAGES).join("nr_hugepages"), pages.to_string());
}
