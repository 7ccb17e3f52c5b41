//! A directory as mirror. Values lie in unnamed files, which disappear with the last process that
//! has them open.
//!
//! Each object is a file. The first 4 KiB of value `i` lie in page `i` of the file. A sealed value can be
//! longer than a page by the seal's tag; its end then lies in a table after all pages.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use spillway_platform::lock::Lock;
use spillway_platform::page_file::{PageFile, TransferError, read_exact_at, write_all_at};
use spillway_tiers::blade::{Carried, Carrier, INDEXES_MAX, Parcel, SEALED_BYTES_MAX, Wanted};
use spillway_types::{Key, PAGE_BYTES};

const TAIL_BYTES: usize = SEALED_BYTES_MAX - PAGE_BYTES;
/// Offset of the table with the ends of long values.
const TAILS_AT: u64 = INDEXES_MAX as u64 * PAGE_BYTES as u64;

#[derive(Debug)]
struct Object {
    name: u64,
    file: Arc<OwnedFd>,
}

/// The mirror of one process.
#[derive(Debug)]
pub struct Directory {
    path: CString,
    objects: Lock<Vec<Object>>,
}

impl Directory {
    /// Opens a mirror in the directory `path`.
    ///
    /// # Errors
    /// No unnamed file can be created there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let this = Self {
            path: CString::new(path.as_os_str().as_bytes())?,
            objects: Lock::new(Vec::with_capacity(64)),
        };
        drop(this.nameless()?);
        Ok(this)
    }

    fn nameless(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        rustix::fs::open(&self.path, flags, Mode::RUSR | Mode::WUSR)
    }

    fn file(&self, object: u64) -> Option<Arc<OwnedFd>> {
        let objects = self.objects.lock();
        objects.iter().find(|known| known.name == object).map(|known| known.file.clone())
    }

    fn file_or_new(&self, object: u64) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(file) = self.file(object) {
            return Ok(file);
        }
        let file = Arc::new(self.nameless()?);
        self.objects.lock().push(Object { name: object, file: file.clone() });
        Ok(file)
    }

    fn write(&self, parcel: &Parcel<'_>) -> Result<(), TransferError> {
        let file = self.file_or_new(parcel.key.object).map_err(TransferError::Os)?;
        let (page, tail) = parcel.value.split_at(parcel.value.len().min(PAGE_BYTES));
        write_all_at(&*file, page, page_at(parcel.key))?;
        write_all_at(&*file, tail, tail_at(parcel.key))
    }

    fn read(&self, wanted: &mut Wanted<'_>) -> Result<bool, Errno> {
        let Some(file) = self.file(wanted.key.object) else { return Ok(false) };
        let (page, tail) = wanted.room.split_at_mut(wanted.room.len().min(PAGE_BYTES));
        let read = read_exact_at(&*file, page, page_at(wanted.key))
            .and_then(|()| read_exact_at(&*file, tail, tail_at(wanted.key)));
        match read {
            Ok(()) => Ok(true),
            Err(TransferError::Short) => Ok(false),
            Err(TransferError::Os(errno)) => Err(errno),
        }
    }
}

const fn page_at(key: Key) -> u64 {
    key.index as u64 * PAGE_BYTES as u64
}

const fn tail_at(key: Key) -> u64 {
    TAILS_AT + key.index as u64 * TAIL_BYTES as u64
}

impl Carrier for Directory {
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]) {
        for (parcel, outcome) in parcels.iter().zip(outcomes) {
            // A full or failing disk accepts no more.
            *outcome = self.write(parcel).map_or(Carried::Refused, |()| Carried::Done);
        }
    }

    fn get(&self, wanted: &mut [Wanted<'_>], _patient: bool) {
        for one in wanted {
            one.outcome = match self.read(one) {
                Ok(true) => Carried::Done,
                // A failing disk has answered.
                Ok(false) | Err(_) => Carried::Missing,
            };
        }
    }

    fn flush(&self, keys: &[Key]) -> Carried {
        for &key in keys {
            if let Some(file) = self.file(key.object) {
                // If holes can't be punched, the space is freed with the file.
                let _ = PageFile::new(&*file).punch(key.index.into(), 1);
            }
        }
        Carried::Done
    }

    fn flush_object(&self, object: u64) -> bool {
        // A file that another process has open is deleted with that process's descriptor.
        self.objects.lock().retain(|known| known.name != object);
        true
    }

    fn end_run(&self) -> bool {
        true
    }

    fn is_down(&self) -> bool {
        false
    }

    fn down_ns(&self) -> u64 {
        0
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn tend(&self) {}

    fn forget_connections(&self) {}

    fn descriptors(&self) -> Vec<u64> {
        self.objects.lock().iter().map(|object| object.file.as_raw_fd() as u64).collect()
    }

    fn reopen(&self, open: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        for object in self.objects.lock().iter_mut() {
            let file = open(object.file.as_raw_fd() as u64)?;
            // It may have been opened for direct I/O, which requires aligned buffers.
            rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
            // The old number belongs to another process's descriptor table.
            std::mem::forget(std::mem::replace(&mut object.file, Arc::new(file)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(mirror: &Directory, key: Key, bytes: usize) -> (Carried, Vec<u8>) {
        let mut room = vec![0; bytes];
        let mut wanted = [Wanted { key, room: &mut room, outcome: Carried::Lost }];
        mirror.get(&mut wanted, true);
        (wanted[0].outcome, room)
    }

    #[test]
    fn values_of_any_length_come_back_and_nothing_has_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = Directory::open(dir.path()).unwrap();
        let value = |length: usize| vec![length as u8; length];
        let lengths = [1, 700, PAGE_BYTES, SEALED_BYTES_MAX];
        for (index, length) in (0..).zip(lengths) {
            let value = value(length);
            let mut outcome = [Carried::Lost];
            mirror.put(&[Parcel { key: Key::new(9, index), value: &value }], &mut outcome);
            assert_eq!(outcome, [Carried::Done]);
        }
        for (index, length) in (0..).zip(lengths) {
            assert_eq!(get(&mirror, Key::new(9, index), length), (Carried::Done, value(length)));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(get(&mirror, Key::new(8, 0), 10).0, Carried::Missing);
        assert!(mirror.flush_object(9));
        assert_eq!(get(&mirror, Key::new(9, 1), 700).0, Carried::Missing);
    }

    #[test]
    fn what_is_flushed_gives_its_room_back() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = Directory::open(dir.path()).unwrap();
        let page = vec![7; PAGE_BYTES];
        let keys: Vec<Key> = (0..256).map(|index| Key::new(1, index)).collect();
        for &key in &keys {
            mirror.put(&[Parcel { key, value: &page }], &mut [Carried::Lost]);
        }
        let blocks = || {
            let file = mirror.file(1).unwrap();
            rustix::fs::fsync(&*file).unwrap();
            rustix::fs::fstat(&*file).unwrap().st_blocks
        };
        let full = blocks();
        assert_eq!(mirror.flush(&keys[..200]), Carried::Done);
        assert!(blocks() < full / 2, "{} of {full} blocks", blocks());
        assert_eq!(get(&mirror, keys[200], PAGE_BYTES), (Carried::Done, page));
    }
}
