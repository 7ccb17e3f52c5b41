//! Checks the descriptors of a handover, independently of its message.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;
use spillway_platform::uffd::Uffd;

use crate::{Error, Handshake, Layout};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGE: &str = "/sys/kernel/mm/transparent_hugepage";
const UFFD_NAME: &str = "anon_inode:[userfaultfd]";
/// UFFD_FEATURE_WP_ASYNC
const WP_ASYNC: u64 = 1 << 15;

/// The checked descriptors of a handover.
#[derive(Debug)]
pub struct Inspected {
    /// The userfaultfd.
    pub uffd: OwnedFd,
    /// The memory files.
    pub files: Vec<OwnedFd>,
    /// Their lengths.
    pub lengths: Vec<u64>,
}

/// Checks the descriptors of a handover, of which the first must be the userfaultfd.
///
/// # Errors
/// Says which of them is invalid.
pub fn inspect(handshake: Handshake, mut came: Vec<OwnedFd>) -> Result<Inspected, Error> {
    if came.is_empty() {
        return Err(Error::NoDescriptor);
    }
    let files = came.split_off(1);
    let uffd = came.remove(0);
    check_userfaultfd(uffd.as_fd(), handshake.pages_out())?;
    // Firecracker's memory is private, so all other descriptors are closed.
    let files = if handshake.pages_out() { files } else { Vec::new() };
    let lengths = files.iter().enumerate();
    let lengths = lengths
        .map(|(at, file)| check_file(file.as_fd()).map_err(|why| Error::File { file: at, why }))
        .collect::<Result<_, _>>()?;
    Ok(Inspected { uffd, files, lengths })
}

fn check_userfaultfd(file: BorrowedFd<'_>, pages_out: bool) -> Result<(), Error> {
    let number = file.as_raw_fd();
    let name = std::fs::read_link(format!("/proc/self/fd/{number}"))
        .map_or_else(|_| "unknown".to_owned(), |name| name.display().to_string());
    if name != UFFD_NAME {
        return Err(Error::NoUserfaultfd(name));
    }
    let features = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))
        .ok()
        .and_then(|text| features_of(&text));
    if pages_out && features.is_some_and(|features| features & WP_ASYNC != 0) {
        return Err(Error::Mode("WP_ASYNC".to_owned()));
    }
    Ok(())
}

/// Checks that each region is registered for write-protection. As a side effect, this makes protected pages writable.
///
/// # Errors
/// [`Error::Unregistered`] with the first region that is not.
pub fn check_registered(uffd: BorrowedFd<'_>, layout: &Layout) -> Result<(), Error> {
    let uffd = Uffd::from_number(uffd.as_raw_fd());
    for (at, region) in layout.regions().iter().enumerate() {
        match uffd.unprotect(region.address as usize, region.bytes as usize) {
            // An event waits to be read.
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(errno) => return Err(Error::Unregistered { region: at, errno }),
        }
    }
    Ok(())
}

/// The features with which a userfaultfd was opened, from the `API:` line of its fdinfo.
fn features_of(fdinfo: &str) -> Option<u64> {
    let line = fdinfo.lines().find_map(|line| line.strip_prefix("API:"))?;
    u64::from_str_radix(line.trim().split(':').nth(1)?, 16).ok()
}

/// The length of a memory file whose pages can be read and punched.
fn check_file(file: BorrowedFd<'_>) -> Result<u64, String> {
    let system = |errno: Errno| errno.to_string();
    let kind = rustix::fs::fstatfs(file).map_err(system)?.f_type;
    if kind != TMPFS_MAGIC {
        return Err("it lies neither in a memfd nor on tmpfs (small pages)".to_owned());
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(system)?;
    if flags & OFlags::RWMODE != OFlags::RDWR {
        return Err("it is not open for reading and writing".to_owned());
    }
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err("it is sealed against writing, so nothing can be punched out of it".to_owned());
    }
    if may_be_huge(Path::new(HUGE)) {
        return Err(format!(
            "it may lie in huge pages, of which no small page can leave: write 'never' to {HUGE}/shmem_enabled \
             and hugepages-*/shmem_enabled"
        ));
    }
    let stat = rustix::fs::fstat(file).map_err(system)?;
    u64::try_from(stat.st_size).map_err(|_| "it has no length".to_owned())
}

/// Whether the kernel may put memory files into huge pages.
fn may_be_huge(settings: &Path) -> bool {
    let chosen = |path: &Path| -> Option<String> {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    };
    let global = chosen(&settings.join("shmem_enabled"));
    if global.is_some_and(|it| it != "never" && it != "deny") {
        return true;
    }
    let Ok(sizes) = std::fs::read_dir(settings) else { return false };
    sizes.flatten().any(|size| {
        chosen(&size.path().join("shmem_enabled"))
            .is_some_and(|it| it != "never" && it != "inherit")
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    fn memfd() -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("guest", flags).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        file
    }

    #[test]
    fn a_userfaultfd_comes_first() {
        assert_eq!(
            inspect(Handshake::CloudHypervisor, Vec::new()).unwrap_err(),
            Error::NoDescriptor
        );
        let error = inspect(Handshake::Firecracker, vec![memfd()]).unwrap_err();
        assert!(matches!(&error, Error::NoUserfaultfd(name) if name.contains("memfd")), "{error}");
    }

    #[test]
    fn features_are_read_of_the_kernels_line() {
        let text = "pos:\t0\npending:\t0\nAPI:\taa:80008029:80000000000001ff\n";
        assert_eq!(features_of(text), Some(0x8000_8029));
        assert_eq!(features_of("pos:\t0\n"), None);
    }

    #[test]
    fn a_memory_file_can_be_read_and_punched() {
        assert_eq!(check_file(memfd().as_fd()), Ok(8192));
        let sealed = memfd();
        rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
        assert!(check_file(sealed.as_fd()).unwrap_err().contains("sealed"));
        let number = memfd();
        let path = format!("/proc/self/fd/{}", number.as_raw_fd());
        let reading = std::fs::File::open(path).unwrap();
        assert!(check_file(reading.as_fd()).unwrap_err().contains("not open"));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(check_file(null.as_fd()).is_err());
    }

    #[test]
    fn huge_pages_are_seen_in_the_kernels_settings() {
        let dir = tempfile::tempdir().unwrap();
        let size = dir.path().join("hugepages-64kB");
        std::fs::create_dir(&size).unwrap();
        for (global, of_size, huge) in [
            ("always within_size advise [never] deny force", "always [never]", false),
            ("always within_size advise [never] deny force", "always [inherit] never", false),
            ("always within_size [advise] never deny force", "always [never]", true),
            ("always within_size advise [never] deny force", "[always] never", true),
        ] {
            std::fs::write(dir.path().join("shmem_enabled"), global).unwrap();
            std::fs::write(size.join("shmem_enabled"), of_size).unwrap();
            assert_eq!(may_be_huge(dir.path()), huge, "{global}, {of_size}");
        }
        assert!(!may_be_huge(Path::new("/no/such/settings")));
    }
}
