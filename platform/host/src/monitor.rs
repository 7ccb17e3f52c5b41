//! Samples this machine's memory from files of /proc that it opens once.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::field_kib;

/// Most bytes read from a file.
const FILE_BYTES_MAX: usize = 64 << 10;
/// The file with the memory that the kernel keeps free, KiB: see proc_sys_vm(5).
pub const MIN_FREE_FILE: &str = "/proc/sys/vm/min_free_kbytes";

/// The memory at a moment, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// The memory that the kernel can provide without swapping (MemAvailable).
    pub available: u64,
    /// Free memory.
    pub free: u64,
    /// Buffers, page cache and slab that the kernel can reclaim. Without shared memory, which it can't reclaim.
    pub cache: u64,
    /// All swap space.
    pub swap_total: u64,
    /// Swap space that is free.
    pub swap_free: u64,
}

/// Swap space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The device or file, as the kernel names it.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its used part.
    pub used_bytes: u64,
    /// Higher ones are used first.
    pub priority: i32,
}

/// The share of time in which tasks waited for memory (PSI), per cent over the last 10 s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some_percent: f64,
    /// All tasks that were not idle waited.
    pub full_percent: f64,
}

/// The files of /proc.
#[derive(Debug)]
pub struct Monitor {
    meminfo: File,
    swaps: Option<File>,
    pressure: Option<File>,
}

impl Monitor {
    /// Opens the files. Those that a kernel without swap or PSI lacks are left out.
    ///
    /// # Errors
    /// /proc/meminfo can't be opened.
    pub fn open() -> io::Result<Self> {
        // A kernel can have the file but refuse to read it.
        let readable = |file: &File| read(file).is_ok();
        let optional = |path| File::open(path).ok().filter(readable);
        Ok(Self {
            meminfo: File::open("/proc/meminfo")?,
            swaps: optional("/proc/swaps"),
            pressure: optional("/proc/pressure/memory"),
        })
    }

    /// The memory now.
    ///
    /// # Errors
    /// It can't be read.
    pub fn memory(&self) -> io::Result<Memory> {
        let memory = parse_memory(&read(&self.meminfo)?);
        memory.ok_or_else(|| io::Error::other("/proc/meminfo has no MemTotal and MemAvailable"))
    }

    /// The swap spaces now.
    ///
    /// # Errors
    /// They can't be read.
    pub fn swaps(&self) -> io::Result<Vec<Swap>> {
        self.swaps.as_ref().map_or(Ok(Vec::new()), |file| Ok(parse_swaps(&read(file)?)))
    }

    /// The present memory pressure; none on a kernel without PSI.
    pub fn pressure(&self) -> Option<Pressure> {
        parse_pressure(&read(self.pressure.as_ref()?).ok()?)
    }
}

/// The memory that the kernel keeps free, bytes.
///
/// # Errors
/// It can't be read.
pub fn min_free_bytes() -> io::Result<u64> {
    let text = fs::read_to_string(MIN_FREE_FILE)?;
    let kib: u64 = text.trim().parse().map_err(io::Error::other)?;
    Ok(kib * 1024)
}

fn read(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; FILE_BYTES_MAX];
    let mut length = 0;
    // A read from offset 0 makes the kernel generate the text anew. It may return the text in pieces.
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn parse_memory(text: &str) -> Option<Memory> {
    let field = |name| field_kib(text, name);
    let all_cache = ["Buffers:", "Cached:", "SReclaimable:"].map(|name| field(name).unwrap_or(0));
    Some(Memory {
        total: field("MemTotal:")?,
        available: field("MemAvailable:")?,
        free: field("MemFree:").unwrap_or(0),
        cache: all_cache.iter().sum::<u64>().saturating_sub(field("Shmem:").unwrap_or(0)),
        swap_total: field("SwapTotal:").unwrap_or(0),
        swap_free: field("SwapFree:").unwrap_or(0),
    })
}

fn parse_swaps(text: &str) -> Vec<Swap> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The kernel writes a space in the name as \040.
        let [path, _, size, used, priority] = fields[..] else { return None };
        Some(Swap {
            path: path.to_owned(),
            bytes: size.parse::<u64>().ok()? * 1024,
            used_bytes: used.parse::<u64>().ok()? * 1024,
            priority: priority.parse().ok()?,
        })
    };
    text.lines().skip(1).filter_map(line).collect()
}

fn parse_pressure(text: &str) -> Option<Pressure> {
    let average = |name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
    };
    Some(Pressure {
        some_percent: average("some ")?,
        full_percent: average("full ").unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_no_cache() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 300 kB\nBuffers: 10 kB\n\
                    Cached: 400 kB\nShmem: 250 kB\nSReclaimable: 40 kB\nSwapTotal: 7 kB\nSwapFree: 3 kB\n";
        let memory = parse_memory(text).unwrap();
        assert_eq!(memory.cache, 200 << 10);
        assert_eq!((memory.total, memory.available), (1000 << 10, 300 << 10));
        assert_eq!((memory.swap_total, memory.swap_free), (7 << 10, 3 << 10));
        assert_eq!(parse_memory("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn swaps_are_the_lines_below_the_heads() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/nbd0 partition\t1048572\t\t2048\t\t100\n/swap\\040file file 4 0 -2\n";
        let swaps = parse_swaps(text);
        assert_eq!(swaps[0].path, "/dev/nbd0");
        assert_eq!((swaps[0].bytes, swaps[0].used_bytes), (1_048_572 << 10, 2 << 20));
        assert_eq!((swaps.len(), swaps[1].priority), (2, -2));
    }

    #[test]
    fn pressure_is_that_of_the_last_ten_seconds() {
        let text = "some avg10=1.25 avg60=0.00 avg300=0.03 total=2\n\
                    full avg10=0.50 avg60=0.00 avg300=0.00 total=1\n";
        let pressure = parse_pressure(text).unwrap();
        assert_eq!((pressure.some_percent, pressure.full_percent), (1.25, 0.5));
    }

    #[test]
    fn this_machine_can_be_read_again_and_again() {
        let monitor = Monitor::open().unwrap();
        for _ in 0..2 {
            let memory = monitor.memory().unwrap();
            assert!(memory.total >= memory.available && memory.available > 0);
            monitor.swaps().unwrap();
        }
    }
}
