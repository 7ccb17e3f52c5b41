//! Reads a file with a secret.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Longest file with a secret.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// The text of a regular file. A pipe or a device could block a reload forever.
///
/// # Errors
/// It can't be read, is not a regular file, is longer than 64 KiB or is not text.
pub fn read_secret(path: &Path) -> io::Result<String> {
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SECRET_BYTES_MAX {
        return Err(io::Error::other("it is longer than 64 KiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "word\n").unwrap();
        assert_eq!(read_secret(&path).unwrap(), "word\n");
        std::fs::write(&path, vec![b'x'; SECRET_BYTES_MAX as usize]).unwrap();
        assert!(read_secret(&path).is_ok());
        std::fs::write(&path, vec![b'x'; SECRET_BYTES_MAX as usize + 1]).unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("longer"));
        // Nobody ever writes to this one.
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        assert!(read_secret(&pipe).unwrap_err().to_string().contains("regular"));
        assert!(read_secret(dir.path()).unwrap_err().to_string().contains("regular"));
        assert!(read_secret(&dir.path().join("none")).is_err());
    }
}
