//! Windows in the memory of an ivshmem device, which the host maps as a file. The guest's kernel does not manage this
//! memory, so nothing is pinned or translated, and no process holds it.
//!
//! Whoever has the descriptor of the device's memory can map all of it. So it goes to the programs of one user only:
//! docs/adr/0030-windows-in-the-guests-memory.md.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use spillway_guests::window::WindowPlace;
use spillway_wire::ring::{WINDOW_PAGE_BYTES, control};

use super::PAGES_MAX;
use super::heard::{Heard, hear};
use super::pages::random;

/// Where the kernel lists PCI devices.
const DEVICES: &str = "sys/bus/pci/devices";
/// Vendor and device number of ivshmem.
const IVSHMEM: [&str; 2] = ["0x1af4", "0x1110"];
/// The device's memory as the kernel maps it for programs. `resource2_wc` would be mapped as write-combining memory on a
/// host that obeys the guest: a doorbell could overtake the command before it.
const MEMORY: &str = "resource2";

/// A device's memory, and which of it is lent.
#[derive(Debug)]
pub struct Device {
    /// The user, whose programs get windows here.
    pub user: u32,
    file: Arc<File>,
    base: *mut u8,
    is_lent: Vec<bool>,
    /// Parts that the host has released, and the sockets of their programs, which may still write there.
    leaving: Vec<(Part, UnixStream)>,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Device {}

/// Successive pages of a device, in use until [`Device::give_back`].
#[derive(Debug)]
pub struct Part {
    /// Which device's.
    pub device: usize,
    file: Arc<File>,
    /// The first page.
    pub first: u32,
    count: usize,
    proof: u64,
}

impl Part {
    /// Where the host finds it.
    pub fn place(&self) -> WindowPlace {
        let first = u64::from(self.first);
        WindowPlace::Device {
            pages: (first..first + self.count as u64).collect(),
            proof: self.proof,
        }
    }

    /// Its huge pages.
    pub const fn count(&self) -> usize {
        self.count
    }
}

impl AsFd for Part {
    /// The file that a program maps, at its first page.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Device {
    /// Opens the guest's devices for the programs of `user`, while the program still has all privileges: those that have
    /// at least one huge page. Pages that programs of an earlier agent still map are not lent.
    ///
    /// # Errors
    /// The kernel refuses their memory, for example because it is locked down.
    pub fn find_all(root: &Path, user: u32) -> io::Result<Vec<Self>> {
        let opened = folders(root).into_iter().map(|folder| Self::open(root, &folder, user));
        opened.filter_map(Result::transpose).collect()
    }

    fn open(root: &Path, folder: &Path, user: u32) -> io::Result<Option<Self>> {
        let enable = folder.join("enable");
        if fs::read_to_string(&enable).is_ok_and(|text| text.trim() == "0") {
            fs::write(enable, "1")?;
        }
        let file = OpenOptions::new().read(true).write(true).open(folder.join(MEMORY))?;
        let whole = file.metadata()?.len() / WINDOW_PAGE_BYTES as u64;
        let pages = whole.min(PAGES_MAX) as usize;
        if pages == 0 {
            return Ok(None);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = pages * WINDOW_PAGE_BYTES;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is long enough.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0)? };
        let mapped = mapped_pages(root, &file)?;
        let is_mapped = |page| mapped.iter().any(|pages| pages.contains(&page));
        let is_lent = (0..pages as u64).map(is_mapped).collect();
        let file = Arc::new(file);
        Ok(Some(Self { user, file, base: base.cast(), is_lent, leaving: Vec::new() }))
    }

    /// The number by which the host recognizes the device, if it wrote one.
    pub fn number(&self) -> u64 {
        // SAFETY: aligned, and within the mapping.
        u64::from_le(unsafe { self.base.add(control::PROOF).cast::<u64>().read_volatile() })
    }

    /// Lends the first free place of this many pages. They are zeros, except for a number by which the host recognizes
    /// the device.
    pub fn lend(&mut self, device: usize, count: usize) -> Option<Part> {
        let free = |pages: &[bool]| pages.iter().all(|is_lent| !is_lent);
        let first = self.is_lent.windows(count).position(free)?;
        let proof = random().ok()?;
        self.is_lent[first..first + count].fill(true);
        let part = Part { device, file: self.file.clone(), first: first as u32, count, proof };
        self.clear_pages(first, count);
        self.set_proof(&part, proof);
        Some(part)
    }

    /// Removes the number: a program gets the window.
    pub fn hand_over(&self, part: &Part) {
        self.set_proof(part, 0);
    }

    /// Takes pages back. Call it when the host has released them. They are free once `program` is closed.
    pub fn give_back(&mut self, part: Part, program: Option<UnixStream>) {
        match program {
            Some(program) => self.leaving.push((part, program)),
            None => self.free(&part),
        }
    }

    /// Frees the pages that programs have left now.
    pub fn hear_programs(&mut self) {
        let all = std::mem::take(&mut self.leaving);
        for (part, mut program) in all {
            match hear(&mut program) {
                Heard::Closed => self.free(&part),
                _ => self.leaving.push((part, program)),
            }
        }
    }

    /// The sockets of the programs that may still write to pages which the host has released.
    pub fn interest(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.leaving.iter().map(|(_, program)| PollFd::new(program, PollFlags::IN))
    }

    fn free(&mut self, part: &Part) {
        let first = part.first as usize;
        self.clear_pages(first, part.count);
        self.is_lent[first..first + part.count].fill(false);
    }

    /// Clears what earlier runs of the agent lent. Call it when the host has released all of it.
    pub fn clear(&self) {
        for page in (0..self.is_lent.len()).filter(|&page| !self.is_lent[page]) {
            self.clear_pages(page, 1);
        }
    }

    fn clear_pages(&self, first: usize, count: usize) {
        // SAFETY: the pages lie within the mapping. Others may write them meanwhile, but nothing here reads them.
        unsafe {
            self.base.add(first * WINDOW_PAGE_BYTES).write_bytes(0, count * WINDOW_PAGE_BYTES);
        }
    }

    fn set_proof(&self, part: &Part, proof: u64) {
        let at = part.first as usize * WINDOW_PAGE_BYTES + control::PROOF;
        // SAFETY: aligned, and within the mapping.
        unsafe { self.base.add(at).cast::<u64>().write_volatile(proof.to_le()) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping exists.
        let _ = unsafe { munmap(self.base.cast(), self.is_lent.len() * WINDOW_PAGE_BYTES) };
    }
}

/// The folders of the ivshmem devices.
fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join(DEVICES)).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    folders.retain(|folder| {
        let number = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        ["vendor", "device"].map(number).each_ref().map(|it| it.trim()) == IVSHMEM
    });
    folders
}

/// Which pages of a device's memory processes map: those of programs of an earlier agent, which may still write there.
fn mapped_pages(root: &Path, file: &File) -> io::Result<Vec<Range<u64>>> {
    let metadata = file.metadata()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let (device, inode) = (format!("{major:02x}:{minor:02x}"), metadata.ino().to_string());
    let mut mapped = Vec::new();
    for process in fs::read_dir(root.join("proc")).into_iter().flatten().flatten() {
        // Of a process that ends meanwhile, nothing is mapped any more.
        let maps = fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
            let [range, _, offset, of_device, of_inode] = fields[..] else { continue };
            if (of_device, of_inode) == (&*device, &*inode) {
                mapped.extend(pages_of(range, offset));
            }
        }
    }
    Ok(mapped)
}

/// The huge pages of a line of /proc/PID/maps.
fn pages_of(range: &str, offset: &str) -> Option<Range<u64>> {
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (offset, bytes) = (number(offset)?, number(end)?.checked_sub(number(start)?)?);
    let page = WINDOW_PAGE_BYTES as u64;
    Some(offset / page..(offset + bytes).div_ceil(page))
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const PAGE: u64 = WINDOW_PAGE_BYTES as u64;

    /// Gives the guest below `root` a device of this many bytes, and returns its memory.
    pub fn plug(root: &Path, bytes: u64) -> File {
        plug_at(root, "0000:00:02.0", bytes)
    }

    fn plug_at(root: &Path, slot: &str, bytes: u64) -> File {
        let add = |slot: &str, device: &str| {
            let folder = root.join(DEVICES).join(slot);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), "0x1af4\n").unwrap();
            fs::write(folder.join("device"), format!("{device}\n")).unwrap();
            fs::write(folder.join("enable"), "0\n").unwrap();
            folder.join(MEMORY)
        };
        fs::write(add("0000:00:01.0", "0x1003"), "another device's").unwrap();
        let memory = add(slot, "0x1110");
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        let file = options.open(memory).unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    /// The 8 bytes at a place of a page.
    pub fn word(memory: &File, page: u64, at: usize) -> u64 {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, page * PAGE + at as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn the_devices_are_found_enabled_and_mapped_in_whole_pages() {
        let root = tempfile::tempdir().unwrap();
        let find = |user| Device::find_all(root.path(), user).unwrap();
        assert!(find(0).is_empty());
        plug(root.path(), PAGE - 1);
        assert!(find(0).is_empty(), "it has no huge page");
        plug(root.path(), 3 * PAGE + 4096);
        let devices = find(7);
        assert_eq!((devices.len(), devices[0].user, devices[0].is_lent.len()), (1, 7, 3));
        let enable = |slot| fs::read_to_string(root.path().join(DEVICES).join(slot).join("enable"));
        assert_eq!(enable("0000:00:02.0").unwrap(), "1");
        assert_eq!(enable("0000:00:01.0").unwrap(), "0\n", "another device was changed");
        plug(root.path(), (PAGES_MAX + 3) * PAGE);
        assert_eq!(find(7)[0].is_lent.len() as u64, PAGES_MAX);
    }

    #[test]
    fn the_device_with_the_host_s_number_is_used_and_no_other_is_written() {
        let root = tempfile::tempdir().unwrap();
        let strange = plug_at(root.path(), "0000:00:02.0", 2 * PAGE);
        let ours = plug_at(root.path(), "0000:00:03.0", 2 * PAGE);
        let at = control::PROOF as u64;
        for memory in [&strange, &ours] {
            memory.write_all_at(&[7; 1024], PAGE).unwrap();
        }
        strange.write_all_at(&7_u64.to_le_bytes(), at).unwrap();
        ours.write_all_at(&(1 << 40 | 7_u64).to_le_bytes(), at).unwrap();
        let devices = Device::find_all(root.path(), 0).unwrap();
        let mut memory = super::super::memory::Memory { pages: None, devices, used: None };
        memory.use_device(Some(1 << 40 | 7));
        assert_eq!(memory.used, Some(1));
        assert!(memory.lend_part(1).is_some());
        assert_eq!((word(&strange, 0, control::PROOF), word(&strange, 1, 0) & 0xff), (7, 7));
        assert_eq!(word(&ours, 1, 0), 0);
        memory.use_device(None);
        assert!(memory.lend_part(1).is_none());
    }

    #[test]
    fn pages_that_programs_of_an_earlier_agent_map_are_not_lent() {
        let root = tempfile::tempdir().unwrap();
        let memory = plug(root.path(), 5 * PAGE).metadata().unwrap();
        let (major, minor) = (rustix::fs::major(memory.dev()), rustix::fs::minor(memory.dev()));
        let process = root.path().join("proc/77");
        fs::create_dir_all(&process).unwrap();
        let line = |offset: u64, inode: u64| {
            format!(
                "7f0000000000-7f0000200000 rw-s {offset:08x} {major:02x}:{minor:02x} {inode} /a file\n"
            )
        };
        let lines = [line(PAGE, memory.ino()), line(3 * PAGE, memory.ino() + 1), "what\n".into()];
        fs::write(process.join("maps"), lines.concat()).unwrap();
        let device = Device::find_all(root.path(), 0).unwrap().remove(0);
        assert_eq!(device.is_lent, [false, true, false, false, false]);
        assert_eq!(pages_of("0-400000", "200000"), Some(1..3));
        assert_eq!(pages_of("0-1000", "1ff000"), Some(0..1));
        assert_eq!(pages_of("2000-1000", "0"), None);
    }

    #[test]
    fn parts_do_not_overlap_and_their_places_are_free_again() {
        let root = tempfile::tempdir().unwrap();
        plug(root.path(), 4 * PAGE);
        let mut device = Device::find_all(root.path(), 0).unwrap().remove(0);
        let first = device.lend(0, 1).unwrap();
        let second = device.lend(0, 2).unwrap();
        assert_eq!((first.first, second.first), (0, 1));
        let WindowPlace::Device { pages, .. } = second.place() else { panic!() };
        assert_eq!(pages, [1, 2]);
        device.give_back(first, None);
        assert!(device.lend(0, 2).is_none(), "two pages that are apart");
        assert_eq!(device.lend(0, 1).unwrap().first, 0);
        device.give_back(second, None);
        assert_eq!(device.lend(0, 3).unwrap().first, 1);
        assert!(device.lend(0, 1).is_none());
    }

    #[test]
    fn nothing_of_an_earlier_program_is_left() {
        let root = tempfile::tempdir().unwrap();
        let memory = plug(root.path(), 3 * PAGE);
        let spoil = || memory.write_all_at(&[7; 8], 2 * PAGE - 8).unwrap();
        let mut device = Device::find_all(root.path(), 0).unwrap().remove(0);
        let _other = device.lend(0, 1).unwrap();
        spoil();
        let part = device.lend(0, 1).unwrap();
        assert_eq!(word(&memory, 1, WINDOW_PAGE_BYTES - 8), 0, "at its start");
        assert_eq!(word(&memory, 1, control::PROOF), part.proof);
        device.hand_over(&part);
        assert_eq!(word(&memory, 1, control::PROOF), 0);
        spoil();
        device.clear();
        assert_ne!(word(&memory, 1, WINDOW_PAGE_BYTES - 8), 0, "it is lent");
        device.give_back(part, None);
        assert_eq!(word(&memory, 1, WINDOW_PAGE_BYTES - 8), 0, "at its end");
        spoil();
        device.clear();
        assert_eq!(word(&memory, 1, WINDOW_PAGE_BYTES - 8), 0, "of an earlier agent");
    }
}
