//! The kernel's files, below a root that tests choose.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use spillway_guests::agent::Status;

use crate::parse::{self, KernelZones, Meminfo, Vmstat};

/// Longest file that is read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// What is read again and again: files that stay open, and a buffer.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
    meminfo: File,
    zoneinfo: File,
    vmstat: File,
    /// None where the kernel was started with psi=0, or has none.
    pressure: Option<File>,
    /// Opened with all rights, which the program gives up then: the kernel goes by who has opened it.
    iomem: File,
    buffer: Vec<u8>,
}

impl System {
    /// Opens the files below `root`.
    ///
    /// # Errors
    /// One of them is not there.
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

    /// Total and available memory, page cache and swap: cheap.
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

    /// Microseconds that some task waited for memory.
    pub fn stalled_us(&mut self) -> u64 {
        // With psi=0 the file can be opened, and not read.
        let Some(file) = &self.pressure else { return 0 };
        parse::stalled_us(read(file, &mut self.buffer))
    }

    /// Where the memory of virtio-mem devices lies.
    pub fn virtio_mem(&mut self) -> Vec<std::ops::Range<u64>> {
        parse::virtio_mem(read(&self.iomem, &mut self.buffer))
    }

    /// All that the host is told, but for what memory blocks say.
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

/// A file from its beginning, as text; nothing where it can't be read.
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
