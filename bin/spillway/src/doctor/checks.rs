//! The checks, one function each.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::userfaultfd::{DEVICE, FEATURES, reason};
use super::{Check, CheckState};
use spillway_platform::uffd::{Uffd, feature};

use crate::program::plain;
use crate::run::{library, writable_dir};
use crate::units::show_size;
use spillway_host::Limits;

/// Regions of managed memory that a large program may have, and as many protections within them.
const MAPS_WANTED: u64 = 65_530;
/// Descriptors that the supervisor and one pager need, plus some for the program's own.
const FILES_WANTED: u64 = 256;

/// Every check, in reading order; `disk` is a directory for pages.
pub fn all(disk: Option<&Path>) -> Vec<Check> {
    let limits = Limits::read();
    let mut checks = vec![
        kernel(),
        userfaultfd_access(),
        userfaultfd_features(),
        preload_library(),
        memory(&limits),
        cgroup(&limits),
        address_space(&limits),
        locked_memory(),
        open_files(),
        map_count(),
        overcommit(),
        huge_pages(),
        io_uring(),
        cores(),
    ];
    checks.extend(disk.map(disk_tier));
    checks
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn kernel() -> Check {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>());
    let version = (numbers.next(), numbers.next());
    match version {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 8) => {
            Check::ok("kernel", release)
        }
        _ => Check::missing("kernel", release, "use Linux 6.8 or later (UFFDIO_MOVE)"),
    }
}

fn userfaultfd_access() -> Check {
    const NAME: &str = "userfaultfd access";
    let sysctl = read("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    match Uffd::kernel_features() {
        Ok(_) => {
            let way = if Uffd::device().is_ok() { DEVICE } else { "the system call" };
            Check::ok(
                NAME,
                format!("by {way}, without capabilities; vm.unprivileged_userfaultfd={sysctl}"),
            )
        }
        Err(Errno::NOSYS) => {
            Check::missing(NAME, "not in this kernel", "use a kernel with CONFIG_USERFAULTFD")
        }
        Err(error) => Check::missing(
            NAME,
            format!("{DEVICE}: {}; vm.unprivileged_userfaultfd={sysctl}", reason(error)),
            "as root: setfacl -m u:USER:rw /dev/userfaultfd; for good, a file in \
             /etc/udev/rules.d with KERNEL==\"userfaultfd\", GROUP=\"kvm\", MODE=\"0660\" and \
             the user in that group; or sysctl vm.unprivileged_userfaultfd=1 for all users; in \
             a container: --device /dev/userfaultfd",
        ),
    }
}

fn userfaultfd_features() -> Check {
    const NAME: &str = "userfaultfd features";
    let Ok(features) = Uffd::kernel_features() else {
        return Check::missing(NAME, "unknown without access", "fix the access first");
    };
    let absent: Vec<String> = FEATURES
        .iter()
        .filter(|(bit, ..)| features & bit == 0)
        .map(|(_, name, purpose)| format!("{name} ({purpose})"))
        .collect();
    if absent.is_empty() {
        let names: Vec<&str> = FEATURES.iter().map(|(_, name, _)| *name).collect();
        return Check::ok(NAME, names.join(" "));
    }
    let text = format!("without {}", absent.join(", "));
    if features & feature::MOVE == 0 {
        Check::missing(NAME, text, "use Linux 6.8 or later")
    } else {
        Check::limited(NAME, text, "use a kernel that has them")
    }
}

fn preload_library() -> Check {
    match library() {
        Ok(path) => Check::ok("preload library", path.display().to_string()),
        Err(refusal) => Check::missing("preload library", "not found", refusal.to_string()),
    }
}

fn memory(limits: &Limits) -> Check {
    let show = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), show_size);
    Check::ok(
        "memory",
        format!(
            "{} free of {}; a run may have {} for --local and --store together",
            show(limits.available),
            show(limits.total),
            show_size(limits.default_store(0))
        ),
    )
}

fn cgroup(limits: &Limits) -> Check {
    match limits.cgroup {
        None => Check::ok("cgroup memory limit", "none"),
        Some(bytes) => Check::limited(
            "cgroup memory limit",
            show_size(bytes),
            "the store lies in the program's own cgroup: keep --local and --store together \
             under it, or raise it",
        ),
    }
}

fn address_space(limits: &Limits) -> Check {
    match limits.address_space {
        None => Check::ok("limit on address space", "none"),
        Some(bytes) => Check::limited(
            "limit on address space",
            show_size(bytes),
            "far memory and the store's arenas need address space too: ulimit -v unlimited",
        ),
    }
}

fn locked_memory() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let found = limit.map_or_else(|| "none".to_owned(), show_size);
    Check::ok("limit on locked memory", format!("{found}; only the program's own mlock counts"))
}

fn open_files() -> Check {
    match getrlimit(Resource::Nofile).current {
        Some(files) if files < FILES_WANTED => Check::limited(
            "limit on open files",
            files.to_string(),
            format!("ulimit -n {FILES_WANTED} or more"),
        ),
        limit => Check::ok(
            "limit on open files",
            limit.map_or_else(|| "none".to_owned(), |files| files.to_string()),
        ),
    }
}

fn map_count() -> Check {
    let count = read("/proc/sys/vm/max_map_count").and_then(|text| text.parse::<u64>().ok());
    match count {
        Some(count) if count < MAPS_WANTED => Check::limited(
            "vm.max_map_count",
            count.to_string(),
            format!("sysctl vm.max_map_count={MAPS_WANTED} or more, for programs with many maps"),
        ),
        Some(count) => Check::ok("vm.max_map_count", count.to_string()),
        None => Check::ok("vm.max_map_count", "unknown"),
    }
}

fn overcommit() -> Check {
    match read("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => Check::limited(
            "vm.overcommit_memory",
            "2: the kernel counts far memory as if it were local",
            "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio",
        ),
        found => Check::ok("vm.overcommit_memory", found.unwrap_or("unknown")),
    }
}

fn huge_pages() -> Check {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = text.as_deref().and_then(|text| text.split(['[', ']']).nth(1));
    Check::ok(
        "transparent huge pages",
        format!("{}; managed memory is exempt", chosen.unwrap_or("not in this kernel")),
    )
}

fn io_uring() -> Check {
    match read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("0") => Check::ok("io_uring", "allowed"),
        Some(found) => Check::ok(
            "io_uring",
            format!("restricted (kernel.io_uring_disabled={found}); the disk tier needs none"),
        ),
        None => Check::ok("io_uring", "not in this kernel; the disk tier needs none"),
    }
}

fn cores() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 {
        return Check::limited(
            "cores",
            "1",
            "eviction ahead of need shares the program's core: give it two",
        );
    }
    Check::ok("cores", cores.to_string())
}

fn disk_tier(dir: &Path) -> Check {
    const NAME: &str = "disk tier";
    let absolute = match writable_dir(dir) {
        Ok(absolute) => absolute,
        Err(refusal) => return Check::missing(NAME, "not usable", refusal.to_string()),
    };
    let free = rustix::fs::statvfs(&absolute)
        .map(|StatVfs { f_bavail, f_frsize, .. }| f_bavail * f_frsize)
        .unwrap_or(0);
    let found = format!("{}, {} free", absolute.display(), show_size(free));
    match opens_direct(&absolute) {
        Ok(()) => Check::ok(NAME, format!("{found}, O_DIRECT")),
        Err(error) => Check {
            name: NAME,
            state: CheckState::Limited,
            found: format!("{found}, no O_DIRECT ({})", plain(&error)),
            mend: "pages there also take page cache: name a directory on ext4, XFS or btrfs"
                .to_owned(),
        },
    }
}

/// Creates an unnamed file for direct I/O, as the disk tier does.
fn opens_direct(dir: &Path) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_that_is_not_ok_says_how_to_mend_it() {
        for check in all(Some(Path::new("/no/such/dir"))) {
            assert_eq!(check.state == CheckState::Ok, check.mend.is_empty(), "{check:?}");
            assert!(!check.found.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn a_directory_that_can_not_be_written_is_missing() {
        assert_eq!(disk_tier(Path::new("/proc")).state, CheckState::Missing);
        let dir = tempfile::tempdir().unwrap();
        assert_ne!(disk_tier(dir.path()).state, CheckState::Missing);
    }
}
