//! Checks the directory of `store.disk`, and logs the disk's problems.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fstatfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use spillway_store::{DiskConfig, DiskTrouble, Store};
use spillway_types::{PAGE_BYTES, Size};

use crate::config::{self, Error};

/// `statfs` types of file systems in memory.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
/// How long a disk must work before it counts as recovered.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// Checks that the directory can be used as configured.
///
/// # Errors
/// It can't be used.
pub fn check(settings: &config::Store) -> Result<(), Error> {
    let Some(dir) = &settings.disk else { return Ok(()) };
    let shown = dir.display();
    let wrong = |why: String| Error::new(format!("store.disk {shown}: {why}"));
    let at = open_dir(dir).map_err(|errno| wrong(text(errno)))?;
    let config = DiskConfig::new(dir.clone(), settings.disk_capacity_bytes);
    config.try_out().map_err(|error| wrong(format!("no file can be created there: {error}")))?;
    let system = fstatfs(&at).map_err(|errno| wrong(text(errno)))?;
    if [TMPFS, RAMFS].contains(&system.f_type) {
        return Err(wrong("it is memory (tmpfs): give a directory on a disk".into()));
    }
    let bytes = |blocks: u64| blocks.saturating_mul(system.f_bsize as u64);
    let wanted = settings.disk_capacity_bytes;
    if bytes(system.f_blocks) < wanted {
        return Err(wrong(format!(
            "its file system has {} in all, less than store.disk_capacity {}",
            Size(bytes(system.f_blocks)),
            Size(wanted)
        )));
    }
    // A signal would kill the daemon on a write beyond the limit.
    if let Some(most) = getrlimit(Resource::Fsize).current
        && most < wanted / 8 * 9
    {
        return Err(wrong(format!("a file may be no larger than {} (RLIMIT_FSIZE)", Size(most))));
    }
    Ok(())
}

/// Logs one line at the start if the disk has less space than configured.
pub fn warn_of_room(settings: &config::Store, store: &Store) {
    let Some(dir) = &settings.disk else { return };
    let Ok(system) = open_dir(dir).and_then(fstatfs) else { return };
    let free = system.f_bavail.saturating_mul(system.f_bsize as u64);
    let wanted = settings.disk_capacity_bytes.saturating_sub(store.disk_bytes());
    if free < wanted {
        tracing::warn!(
            "store.disk {} has {} free for the {} that it may still take: pages that do not fit stay in memory",
            dir.display(),
            Size(free),
            Size(wanted)
        );
    }
}

fn open_dir(dir: &Path) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty())
}

fn text(errno: Errno) -> String {
    errno.to_string()
}

/// Logs each problem of the disk once, and its recovery.
#[derive(Debug, Default)]
pub struct Watch {
    /// The last report, and when the problem was last seen.
    said: Option<(DiskTrouble, Instant)>,
    failed_reads: u64,
    corrupt_pages: u64,
}

impl Watch {
    /// Checks the disk, and retries it if it has failed. Call it each second.
    pub fn look(&mut self, store: &Store) {
        let Some(disk) = store.disk_counters() else { return };
        store.try_disk_again();
        let now = Instant::now();
        match (disk.trouble, &mut self.said) {
            (Some(trouble), Some((said, since))) if trouble == *said => *since = now,
            (Some(DiskTrouble::Full), _) => {
                let bytes = Size(disk.capacity_pages * PAGE_BYTES as u64);
                tracing::warn!("store.disk is full: it holds the {bytes} of store.disk_capacity");
                self.said = Some((DiskTrouble::Full, now));
            }
            (Some(trouble), _) => {
                tracing::error!("store.disk takes no pages, which stay in memory: {trouble}");
                self.said = Some((trouble, now));
            }
            (None, Some((_, since))) if now - *since >= WELL_AFTER => {
                tracing::info!("store.disk takes pages again");
                self.said = None;
            }
            (None, _) => {}
        }
        if disk.failed_reads > self.failed_reads {
            let reads = disk.failed_reads - self.failed_reads;
            tracing::error!(reads, "store.disk failed to read pages: the requests got an error");
            self.failed_reads = disk.failed_reads;
        }
        if disk.corrupt_pages > self.corrupt_pages {
            let reads = disk.corrupt_pages - self.corrupt_pages;
            tracing::error!(
                reads,
                "store.disk returned other bytes than were written: the requests got an error"
            );
            self.corrupt_pages = disk.corrupt_pages;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Capacity;
    use std::path::PathBuf;

    fn settings(disk: &str, disk_capacity_bytes: u64) -> config::Store {
        config::Store {
            capacity: Capacity::Bytes(64 << 20),
            compress: true,
            dedup: false,
            disk: Some(PathBuf::from(disk)),
            disk_capacity_bytes,
            disk_timeout_ms: 5000,
        }
    }

    #[test]
    fn a_directory_that_can_not_be_used_gives_one_line() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        check(&settings(here, 1 << 20)).unwrap();
        for (dir, bytes, why) in [
            ("/nowhere/at/all", 1 << 20, "No such file"),
            ("/etc/passwd", 1 << 20, "Not a directory"),
            ("/proc", 1 << 20, "no file can be created there"),
            ("/dev/shm", 1 << 20, "tmpfs"),
            (here, 1 << 60, "less than store.disk_capacity"),
        ] {
            let line = check(&settings(dir, bytes)).unwrap_err().to_string();
            assert!(line.contains(why) && !line.contains('\n'), "{line}");
        }
    }
}
