//! Windows in a guest's ivshmem device. The device's memory is a file of the host, which QEMU maps too.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};
use spillway_wire::ring::{WINDOW_PAGE_BYTES, control};

const PAGE_BYTES: u64 = WINDOW_PAGE_BYTES as u64;

/// Opens the device's file, and returns the offsets of these pages, which have memory. The first page must contain `proof`,
/// so that a guest whose device has other memory gets no window in which nobody answers.
///
/// # Errors
/// The file is not as configured, or the guest claims what is not there. The text goes to the guest.
pub fn find(path: &Path, pages: &[u64], proof: u64) -> Result<(File, Vec<u64>), String> {
    let (file, bytes) = open(path)?;
    let offset = |page: &u64| {
        let at = page.checked_mul(PAGE_BYTES)?;
        (at.checked_add(PAGE_BYTES)? <= bytes).then_some(at)
    };
    let offsets: Option<Vec<u64>> = pages.iter().map(offset).collect();
    let offsets = offsets.ok_or("a page lies beyond the end of the host's ivshmem file")?;
    let mut found = [0; 8];
    let first = offsets.first().ok_or("a window has a page")?;
    file.read_exact_at(&mut found, first + control::PROOF as u64).map_err(failed)?;
    // What nobody has written is zeros.
    if proof == 0 || u64::from_le_bytes(found) != proof {
        return Err("the host's ivshmem file is not the memory of the guest's device".into());
    }
    for &at in &offsets {
        // A write to a page of a mapped file that the file system has no memory for would end this process.
        let allotted = rustix::fs::fallocate(&file, FallocateFlags::empty(), at, PAGE_BYTES);
        allotted.map_err(|errno| failed(errno.into()))?;
    }
    Ok((file, offsets))
}

/// Writes a number by chance to the device's file, and returns it: the agent recognizes the device by it. Call it while no
/// window is open.
///
/// # Errors
/// The file is not as configured.
pub fn mark(path: &Path) -> Result<u64, String> {
    let (file, bytes) = open(path)?;
    if bytes < PAGE_BYTES {
        return Err("the file is shorter than a window, 2 MiB".into());
    }
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| failed(errno.into()))?;
    // 0 is nobody's number.
    number[0] |= 1;
    file.write_all_at(&number, control::PROOF as u64).map_err(failed)?;
    Ok(u64::from_le_bytes(number))
}

/// The device's file and its length. Symbolic links are not followed: who may write the file's directory could have another
/// guest's memory served.
fn open(path: &Path) -> Result<(File, u64), String> {
    // A pipe would wait for its other end.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path);
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err("the host's ivshmem file is no regular file".into());
    }
    Ok((file, metadata.len()))
}

fn failed(error: io::Error) -> String {
    format!("the host can't use its ivshmem file: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of four pages, whose pages contain their numbers plus 10 as proofs.
    fn file(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("ivshmem");
        let file = File::create(&path).unwrap();
        file.set_len(4 * PAGE_BYTES).unwrap();
        for page in 0..4_u64 {
            let proof = (page + 10).to_le_bytes();
            file.write_all_at(&proof, page * PAGE_BYTES + control::PROOF as u64).unwrap();
        }
        path
    }

    #[test]
    fn pages_are_found_within_the_file_and_by_their_proof() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let (_, offsets) = find(&path, &[3, 0], 13).unwrap();
        assert_eq!(offsets, [3 * PAGE_BYTES, 0]);
        let why = |pages: &[u64], proof| find(&path, pages, proof).unwrap_err();
        for beyond in [&[4][..], &[0, 4], &[u64::MAX], &[u64::MAX / PAGE_BYTES]] {
            assert!(why(beyond, 10).contains("beyond the end"), "{beyond:?}");
        }
        assert!(why(&[0], 11).contains("not the memory of the guest's device"));
        assert!(why(&[0], 10 | 1 << 40).contains("not the memory of the guest's device"));
        let opened = File::options().write(true).open(&path).unwrap();
        opened.write_all_at(&[0; 8], control::PROOF as u64).unwrap();
        assert!(why(&[0], 0).contains("not the memory of the guest's device"), "nobody wrote it");
        File::options().write(true).open(&path).unwrap().set_len(2 * PAGE_BYTES - 1).unwrap();
        assert!(why(&[1], 11).contains("beyond the end"));
    }

    #[test]
    fn what_is_found_has_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
        assert!(blocks() < PAGE_BYTES, "the file has no holes");
        find(&path, &[1, 3], 11).unwrap();
        assert!(blocks() >= 2 * PAGE_BYTES);
    }

    #[test]
    fn the_file_gets_a_number_that_differs_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let word = || {
            let mut found = [0; 8];
            let opened = File::open(&path).unwrap();
            opened.read_exact_at(&mut found, control::PROOF as u64).unwrap();
            u64::from_le_bytes(found)
        };
        let first = mark(&path).unwrap();
        assert_eq!(word(), first);
        let second = mark(&path).unwrap();
        assert!(second == word() && second != first && second != 0);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(mark(&link).unwrap_err().contains("symbolic link"));
        File::options().write(true).open(&path).unwrap().set_len(PAGE_BYTES - 1).unwrap();
        assert!(mark(&path).unwrap_err().contains("shorter than a window"));
    }

    #[test]
    fn a_file_that_is_missing_or_none_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let why = |path: &Path| find(path, &[0], 10).unwrap_err();
        assert!(why(&folder.path().join("none")).contains("No such file"));
        let device = why(Path::new("/dev/null"));
        assert!(device.contains("no regular file"), "{device}");
        assert!(why(folder.path()).contains("can't use"));
    }
}
