//! Moving values to lower tiers.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::scratch::Scratch;
use crate::store::Store;

impl Store {
    /// Moves up to `pages_max` of the oldest raw pages to the compressed tier; when memory is at
    /// its capacity, the coldest to the file tier. Pages that were moved.
    pub fn demote(&self, _pages_max: usize, _scratch: &mut Scratch) -> usize {
        0
    }

    /// Makes the files of the disk tier read-only, before a fork: neither this process nor the
    /// child frees or reuses anything in them; later page-outs go to new files.
    pub fn seal_files(&self) {}

    /// Replaces the descriptors of all files, for a task with another descriptor table. `open` is
    /// given the old number. The old descriptors are not closed.
    ///
    /// # Errors
    /// What `open` says.
    pub fn reopen_files(&self, _open: impl FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        Ok(())
    }

    /// Numbers of the descriptors in use.
    pub fn file_descriptors(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Why the file tier refused a page, once: the error is forgotten by the call.
    pub fn take_disk_error(&self) -> Option<Errno> {
        None
    }
}
