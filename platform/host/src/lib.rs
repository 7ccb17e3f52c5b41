//! The memory available on this machine, in this cgroup and to this user.

#![forbid(unsafe_code)]

mod monitor;

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

pub use monitor::{MIN_FREE_FILE, Memory, Monitor, Pressure, Swap, min_free_bytes};

/// The limits of a program started here, bytes. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// All memory of the machine.
    pub total: Option<u64>,
    /// The memory that the kernel can provide without swapping (MemAvailable).
    pub available: Option<u64>,
    /// The least memory limit of this process's cgroups, either version.
    pub cgroup: Option<u64>,
    /// Limit on address space, RLIMIT_AS.
    pub address_space: Option<u64>,
    /// Limit on private memory that can be written, used or not, RLIMIT_DATA.
    pub data: Option<u64>,
}

impl Limits {
    /// Reads them from /proc and the cgroup file systems.
    pub fn read() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            total: field_kib(&meminfo, "MemTotal:"),
            available: field_kib(&meminfo, "MemAvailable:"),
            cgroup: cgroup_limit(),
            address_space: getrlimit(Resource::As).current,
            data: getrlimit(Resource::Data).current,
        }
    }

    /// The least limit on what a program may map, used or not, and the shell's command for it.
    pub fn mapped(&self) -> Option<(u64, &'static str)> {
        let space = self.address_space.map(|bytes| (bytes, "ulimit -v"));
        let data = self.data.map(|bytes| (bytes, "ulimit -d"));
        [space, data].into_iter().flatten().min()
    }

    /// The largest `--local`, bytes: all memory within the limits, also memory that is in use.
    pub fn most_local(&self) -> u64 {
        least([self.total, self.cgroup, self.address_space, self.data])
    }

    /// The default size of the store, bytes: the available memory minus `local`.
    pub fn default_store(&self, local: u64) -> u64 {
        least([self.available, self.cgroup, self.address_space, self.data]).saturating_sub(local)
    }
}

fn least<const N: usize>(limits: [Option<u64>; N]) -> u64 {
    limits.into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// Value of a `Name:   123 kB` line, in bytes. Used for /proc/meminfo, status and smaps_rollup.
pub fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The least limit among this process's memory cgroup and its ancestors.
fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    memory_cgroups(&own, &mounts)
        .iter()
        .flat_map(|(root, leaf, file)| leaf.ancestors().map(move |dir| (root, dir, *file)))
        .filter(|(root, dir, _)| dir.starts_with(root))
        .filter_map(|(_, dir, file)| fs::read_to_string(dir.join(file)).ok())
        .filter_map(|text| text.trim().parse().ok())
        // Version 1 writes "no limit" as the largest page-aligned number.
        .filter(|&bytes: &u64| bytes < i64::MAX as u64 / 2)
        .min()
}

/// The paths of the process's memory cgroups: mount point, own directory, and the limit's file.
fn memory_cgroups(own: &str, mounts: &str) -> Vec<(PathBuf, PathBuf, &'static str)> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (kind, file) = if controllers.is_empty() {
            ("cgroup2", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("cgroup", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let Some((root, point)) = mount_of(mounts, kind) else { continue };
        // Inside a container the mount shows a part of the tree, named by its root.
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        let leaf = point.join(below);
        found.push((point, leaf, file));
    }
    found
}

/// Root and mount point of the cgroup file system that holds the memory controller.
fn mount_of(mounts: &str, kind: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let matches = right.next()? == kind
            && (kind == "cgroup2" || right.nth(1)?.split(',').any(|option| option == "memory"));
        let mut left = left.split(' ').skip(3);
        matches.then(|| Some((left.next()?.into(), left.next()?.into())))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let limits =
            Limits { total: Some(100), available: Some(80), cgroup: Some(60), ..Limits::default() };
        assert_eq!(limits.most_local(), 60);
        assert_eq!(limits.default_store(20), 40);
        assert_eq!(limits.default_store(70), 0);
    }

    #[test]
    fn both_versions_of_cgroups_are_found() {
        let own = "4:memory:/jobs/one\n3:cpuset:/\n0::/unified\n";
        let mounts = "25 20 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      26 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            memory_cgroups(own, mounts),
            [
                (
                    "/sys/fs/cgroup/memory".into(),
                    "/sys/fs/cgroup/memory/jobs/one".into(),
                    "memory.limit_in_bytes"
                ),
                (
                    "/sys/fs/cgroup/unified".into(),
                    "/sys/fs/cgroup/unified/unified".into(),
                    "memory.max"
                ),
            ]
        );
    }

    #[test]
    fn a_containers_own_root_is_cut_off() {
        let mounts = "26 20 0:23 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = memory_cgroups("0::/box/inner\n", mounts);
        assert_eq!(found[0].1, Path::new("/sys/fs/cgroup/inner"));
    }

    #[test]
    fn fields_are_read_in_bytes() {
        assert_eq!(field_kib("A: 1 kB\nRssAnon:\t  12 kB\n", "RssAnon:"), Some(12 << 10));
        assert_eq!(field_kib("A: 1 kB\n", "B:"), None);
    }
}
