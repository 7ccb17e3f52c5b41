//! The kernel's files, below a root that tests choose.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use spillway_guests::agent::Status;

use crate::parse::{self, KernelZones, Meminfo, Vmstat};

/// Longest file that is read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Files that are read repeatedly and stay open, and a buffer.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
    meminfo: File,
    zoneinfo: File,
    vmstat: File,
    /// None if the kernel has no PSI, or was started with psi=0.
    pressure: Option<File>,
    /// Opened with all capabilities, before the program drops them: the kernel checks the opener.
    iomem: File,
    buffer: Vec<u8>,
}

impl System {
    /// Opens the files below `root`.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn open(root: &Path) -> io::Result<Self> {
        let open = |path: &str| File::open(root.join(path));
        Ok(Self {
            root: root.to_owned(),
            meminfo: open("proc/meminfo")?,
            zoneinfo: open("proc/zoneinfo")?,
            vmstat: open("proc/vmstat")?,
            pressure: open("proc/pressure/memory").ok(),
            iomem: open("proc/iomem")?,
            buffer: Vec::with_capacity(1 << 16),
        })
    }

    /// Total and available memory, page cache and swap. This is cheap.
    pub fn meminfo(&mut self) -> Meminfo {
        parse::meminfo(read(&self.meminfo, &mut self.buffer))
    }

    /// The kernel's zones.
    pub fn zones(&mut self) -> KernelZones {
        parse::zoneinfo(read(&self.zoneinfo, &mut self.buffer))
    }

    /// Counters.
    pub fn vmstat(&mut self) -> Vmstat {
        parse::vmstat(read(&self.vmstat, &mut self.buffer))
    }

    /// Microseconds for which some task waited for memory.
    pub fn stalled_us(&mut self) -> u64 {
        // With psi=0 the file can be opened but not read.
        let Some(file) = &self.pressure else { return 0 };
        parse::stalled_us(read(file, &mut self.buffer))
    }

    /// Where the memory of virtio-mem devices lies.
    pub fn virtio_mem(&mut self) -> Vec<std::ops::Range<u64>> {
        parse::virtio_mem(read(&self.iomem, &mut self.buffer))
    }

    /// The report for the host, without the counts of memory blocks.
    pub fn status(&mut self) -> Status {
        let (memory, zones, counters) = (self.meminfo(), self.zones(), self.vmstat());
        Status {
            total_bytes: memory.total,
            available_bytes: memory.available,
            kernel_free_bytes: zones.free,
            kernel_bytes: zones.managed,
            cached_bytes: memory.cached,
            swap_used_bytes: memory.swap_used,
            offline_bytes: 0,
            stalled_us: self.stalled_us(),
            refaults: counters.refaults,
            swap_ins: counters.swap_ins,
            kills: counters.kills,
        }
    }

    /// The kernel's release and its boot id.
    pub fn identity(&self) -> (String, String) {
        let text = |path: &str| {
            let text = fs::read_to_string(self.root.join(path)).unwrap_or_default();
            text.trim().chars().filter(|it| !it.is_control()).take(128).collect()
        };
        (text("proc/sys/kernel/osrelease"), text("proc/sys/kernel/random/boot_id"))
    }
}

/// A file from its beginning, as text; empty if it can't be read.
fn read<'a>(file: &File, buffer: &'a mut Vec<u8>) -> &'a str {
    buffer.clear();
    buffer.resize(buffer.capacity().max(4096), 0);
    let mut held = 0;
    loop {
        match file.read_at(&mut buffer[held..], held as u64) {
            Ok(0) => break,
            Ok(count) => held += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                held = 0;
                break;
            }
        }
        if held == buffer.len() {
            if held >= FILE_BYTES_MAX {
                break;
            }
            buffer.resize(2 * held, 0);
        }
    }
    buffer.truncate(held);
    std::str::from_utf8(buffer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 6] = [
        ("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 40 kB\nCached: 30 kB\n"),
        (
            "proc/zoneinfo",
            "Node 0, zone Normal\n  pages free 3\n  managed 5\nNode 0, zone Movable\n  pages free 9\n",
        ),
        ("proc/vmstat", "pswpin 1\nworkingset_refault_anon 2\noom_kill 3\n"),
        ("proc/iomem", "100000000-107ffffff : System RAM (virtio_mem)\n"),
        ("proc/sys/kernel/osrelease", "6.12.0 \n"),
        ("proc/pressure/memory", "some avg10=0.00 total=77\nfull avg10=0.00 total=9\n"),
    ];

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in FILES {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn each_file_is_read_anew_each_time() {
        let root = root();
        let mut system = System::open(root.path()).unwrap();
        let all = |system: &mut System| {
            let (zones, counters) = (system.zones(), system.vmstat());
            let numbers = (system.meminfo().total, zones.free / parse::PAGE_BYTES, counters.kills);
            (numbers, system.stalled_us(), system.virtio_mem())
        };
        let device = 0x1_0000_0000..0x1_0800_0000;
        assert_eq!(all(&mut system), ((100 << 10, 3, 3), 77, vec![device]));
        // Longer and shorter than the previous content.
        for (path, text) in [
            ("proc/meminfo", "MemFree: 1 kB\nMemTotal: 1234567 kB\n"),
            ("proc/zoneinfo", "Node 0, zone DMA\n  pages free 4\n"),
            ("proc/vmstat", "oom_kill 4\n"),
            ("proc/pressure/memory", "some total=8\n"),
            ("proc/iomem", ""),
        ] {
            fs::write(root.path().join(path), text).unwrap();
        }
        assert_eq!(all(&mut system), ((1_234_567 << 10, 4, 4), 8, vec![]));
    }

    #[test]
    fn a_status_is_what_the_files_say_in_bytes() {
        let root = root();
        let expected = Status {
            total_bytes: 100 << 10,
            available_bytes: 40 << 10,
            kernel_free_bytes: 3 << 12,
            kernel_bytes: 5 << 12,
            cached_bytes: 30 << 10,
            swap_used_bytes: 0,
            offline_bytes: 0,
            stalled_us: 77,
            refaults: 2,
            swap_ins: 1,
            kills: 3,
        };
        assert_eq!(System::open(root.path()).unwrap().status(), expected);
    }

    #[test]
    fn a_file_of_many_pages_is_read_to_its_end_and_one_without_end_to_a_bound() {
        let root = root();
        let mut system = System::open(root.path()).unwrap();
        for filler in [65_000, 65_536, 200_000] {
            let text = format!("{}\nMemTotal: 5 kB\n", "x".repeat(filler));
            fs::write(root.path().join("proc/meminfo"), text).unwrap();
            assert_eq!(system.meminfo().total, 5 << 10, "{filler}");
        }
        let text = format!("MemTotal: 5 kB\n{}\nMemAvailable: 5 kB\n", "x".repeat(2 << 20));
        fs::write(root.path().join("proc/meminfo"), text).unwrap();
        let memory = system.meminfo();
        assert_eq!((memory.total, memory.available), (5 << 10, 0));
    }

    #[test]
    fn a_kernel_without_pressure_stalls_for_nothing_and_one_without_meminfo_is_none() {
        let root = root();
        fs::remove_file(root.path().join("proc/pressure/memory")).unwrap();
        assert_eq!(System::open(root.path()).unwrap().stalled_us(), 0);
        fs::remove_file(root.path().join("proc/meminfo")).unwrap();
        assert!(System::open(root.path()).is_err());
    }

    #[test]
    fn who_the_guest_is_fits_into_a_message() {
        let root = root();
        let system = System::open(root.path()).unwrap();
        assert_eq!(system.identity(), ("6.12.0".to_owned(), String::new()));
        let long = format!("a\u{1}b{}", "\u{e4}".repeat(200));
        fs::write(root.path().join("proc/sys/kernel/osrelease"), long).unwrap();
        let (kernel, _) = system.identity();
        assert_eq!((kernel.chars().count(), &kernel[..4]), (128, "ab\u{e4}"));
    }
}
