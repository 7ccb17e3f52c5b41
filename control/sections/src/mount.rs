//! The file system below the pool: its kind, and its free memory.

use std::fs;
use std::path::Path;

use rustix::fd::AsFd;
use rustix::fs::{StatFs, fstatfs};
use spillway_host::field_kib;

use crate::error::Error;

/// The unit of reservations. Sections, and virtio-mem's blocks on x86, are multiples of it.
pub const UNIT_BYTES: u64 = 2 << 20;

/// statfs(2)
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Where the pool's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages. The host may swap them out, unless the mount says `noswap`.
    Tmpfs,
    /// Huge pages, which stay reserved and are never swapped out.
    Hugetlbfs {
        /// Bytes of a page.
        page_bytes: u64,
    },
}

impl Backing {
    /// The backing of the file system that contains a folder.
    ///
    /// # Errors
    /// [`Error::FileSystem`] if it is not a file system in memory.
    pub(crate) fn of(dir: impl AsFd, path: &Path) -> Result<Self, Error> {
        let found = fstatfs(dir).map_err(Error::io("look at", path))?;
        match found.f_type as u64 & u64::from(u32::MAX) {
            TMPFS_MAGIC => Ok(Self::Tmpfs),
            HUGETLBFS_MAGIC => Ok(Self::Hugetlbfs { page_bytes: found.f_bsize as u64 }),
            magic => Err(Error::FileSystem { dir: path.to_owned(), magic }),
        }
    }

    /// Reservations are multiples of this.
    pub(crate) fn unit_bytes(self) -> u64 {
        match self {
            Self::Tmpfs => UNIT_BYTES,
            Self::Hugetlbfs { page_bytes } => page_bytes.max(UNIT_BYTES),
        }
    }

    /// Memory that is available now without reclaiming any.
    ///
    /// # Errors
    /// [`Error::Io`] if the host does not report it.
    pub(crate) fn room(self, dir: impl AsFd, path: &Path) -> Result<u64, Error> {
        let mount = mount_room(&fstatfs(dir).map_err(Error::io("look at", path))?);
        let host = match self {
            Self::Tmpfs => available_bytes(),
            Self::Hugetlbfs { page_bytes } => HugePages::read(page_bytes)?.free() * page_bytes,
        };
        Ok(mount.min(host))
    }

    /// Refuses a pool that needs `wanted` more bytes than it holds, if the mount or the huge pages have no room for it.
    ///
    /// # Errors
    /// [`Error::MountTooSmall`], [`Error::HugePages`].
    pub(crate) fn check_room(self, dir: impl AsFd, path: &Path, wanted: u64) -> Result<(), Error> {
        let room = mount_room(&fstatfs(dir).map_err(Error::io("look at", path))?);
        if room < wanted {
            let (room_bytes, wanted_bytes) = (room, wanted);
            return Err(Error::MountTooSmall { dir: path.to_owned(), room_bytes, wanted_bytes });
        }
        let Self::Hugetlbfs { page_bytes } = self else { return Ok(()) };
        let (pages, wanted) = (HugePages::read(page_bytes)?, wanted.div_ceil(page_bytes));
        let free = pages.free();
        let missing = wanted.saturating_sub(free);
        if missing > 0 {
            let total = pages.total + missing;
            return Err(Error::HugePages { page_bytes, wanted, free, total });
        }
        Ok(())
    }
}

/// The space that the mount's `size=` leaves. A mount without one reports no blocks at all.
fn mount_room(mount: &StatFs) -> u64 {
    match mount.f_blocks {
        0 => u64::MAX,
        _ => mount.f_bavail.saturating_mul(mount.f_bsize as u64),
    }
}

/// Ordinary pages that the host can provide without swapping.
fn available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field_kib(&meminfo, "MemAvailable:").unwrap_or(u64::MAX)
}

/// The host's huge pages of one size.
struct HugePages {
    total: u64,
    unused: u64,
    /// Reserved for mappings, but not used yet.
    reserved: u64,
}

impl HugePages {
    fn read(page_bytes: u64) -> Result<Self, Error> {
        let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes >> 10);
        let number = |name: &str| {
            let path = Path::new(&folder).join(name);
            let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            Ok(text.trim().parse().unwrap_or(0))
        };
        Ok(Self {
            total: number("nr_hugepages")?,
            unused: number("free_hugepages")?,
            reserved: number("resv_hugepages")?,
        })
    }

    fn free(&self) -> u64 {
        self.unused.saturating_sub(self.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_whole_pages() {
        assert_eq!(Backing::Tmpfs.unit_bytes(), UNIT_BYTES);
        for (page_bytes, unit) in [(64 << 10, UNIT_BYTES), (2 << 20, 2 << 20), (1 << 30, 1 << 30)] {
            assert_eq!(Backing::Hugetlbfs { page_bytes }.unit_bytes(), unit);
        }
    }

    #[test]
    fn ordinary_pages_are_no_more_than_the_host_has() {
        let shm = fs::File::open("/dev/shm").unwrap();
        let before = available_bytes();
        let room = Backing::Tmpfs.room(&shm, Path::new("/dev/shm")).unwrap();
        assert!(room > 0 && room <= before.max(available_bytes()) + (256 << 20));
    }
}
