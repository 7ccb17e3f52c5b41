//! Resource use of this process, for the metrics.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::process::{Resource, getrlimit};
use spillway_metrics::ProcessSample;

/// Buffer size, larger than a line of /proc/self/stat.
const STAT_BYTES: usize = 2048;
const ENTRIES_BYTES: usize = 16 << 10;

/// Files under /proc/self, opened before the sandbox forbids it.
#[derive(Debug)]
pub struct ProcessFiles {
    stat: File,
    descriptors: OwnedFd,
}

impl ProcessFiles {
    /// Opens them.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        Ok(Self { stat: File::open("/proc/self/stat")?, descriptors })
    }

    /// The present resource use; the process started at `started_ms` since 1970.
    ///
    /// # Errors
    /// The files can't be read.
    pub fn sample(&self, started_ms: u64) -> io::Result<ProcessSample> {
        let mut text = [0; STAT_BYTES];
        let length = self.stat.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        let stat = Stat::parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Ok(ProcessSample {
            cpu_us: stat.cpu_ticks * tick_us,
            resident_bytes: stat.resident_pages * rustix::param::page_size() as u64,
            virtual_bytes: stat.virtual_bytes,
            threads: stat.threads,
            open_descriptors: self.count_descriptors()?,
            descriptors_max: getrlimit(Resource::Nofile).current,
            started_us: started_ms * 1000,
        })
    }

    fn count_descriptors(&self) -> io::Result<u64> {
        rustix::fs::seek(&self.descriptors, SeekFrom::Start(0))?;
        let mut room = [MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut entries = RawDir::new(self.descriptors.as_fd(), &mut room);
        let mut count = 0;
        while let Some(entry) = entries.next() {
            count += u64::from(!entry?.file_name().to_bytes().starts_with(b"."));
        }
        Ok(count)
    }
}

/// Fields of /proc/self/stat, see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name of the program may have spaces and brackets. Field 3 follows it.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_brackets() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 9 0 100 8192 33 18446744073709551615 1 1\n";
        let stat = Stat { cpu_ticks: 110, threads: 9, virtual_bytes: 8192, resident_pages: 33 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    #[test]
    fn a_descriptor_that_is_opened_is_counted() {
        let files = ProcessFiles::open().unwrap();
        let before = files.sample(0).unwrap();
        // Other tests open and close descriptors meanwhile, but not so many.
        let more: Vec<_> = (0..500).map(|_| File::open("/dev/null").unwrap()).collect();
        let during = files.sample(0).unwrap();
        assert!(during.open_descriptors >= before.open_descriptors + 400, "{before:?} {during:?}");
        drop(more);
        let after = files.sample(0).unwrap();
        assert!(after.open_descriptors + 400 <= during.open_descriptors, "{during:?} {after:?}");
        assert!(during.resident_bytes > 0 && during.resident_bytes <= during.virtual_bytes);
        assert!(during.threads > 0 && during.cpu_us <= 3_600_000_000);
    }
}
