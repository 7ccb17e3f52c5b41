//! Creates the page of settings and counters that all processes of a run share.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use nix::sys::signal::{SigHandler, Signal, signal};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use spillway_pager::tree::{MAGIC, Settings, TREE_BYTES, Tree, VERSION};

/// The shared page, mapped; unmapped when dropped. Dereferences to [`Tree`].
pub struct SharedTree {
    file: File,
    map: NonNull<Tree>,
}

impl SharedTree {
    /// Creates the memfd, writes the settings and maps it.
    ///
    /// # Errors
    /// The kernel refused memfd_create, its seals or the mapping.
    pub fn new(settings: &Settings) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("spillway-tree", flags)?);
        truncate(&file)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a fresh shared mapping of a file whose size is sealed, at an address that the
        // kernel chooses.
        let map = unsafe {
            mmap(
                std::ptr::null_mut(),
                TREE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let map = NonNull::new(map.cast::<Tree>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping holds a whole `Tree`, zeroed, and no other process has it yet. All
        // zeros is a value of every field: integers and atomics.
        unsafe {
            let tree = map.as_ptr();
            (&raw mut (*tree).settings).write(*settings);
            (&raw mut (*tree).budget_pages).write(settings.local_pages.into());
            (&raw mut (*tree).version).write(VERSION);
            (&raw mut (*tree).magic).write(MAGIC);
        }
        Ok(Self { file, map })
    }

    /// The path at which another process of the same user finds the page while this one lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// Gives the file its size. A limit on the size of files is an error, not the end of this process.
fn truncate(file: &File) -> io::Result<()> {
    // SAFETY: ignoring a signal runs no code; the former disposition is restored below.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn)? };
    let done = ftruncate(file, TREE_BYTES as u64);
    // SAFETY: as above.
    unsafe { signal(Signal::SIGXFSZ, before)? };
    done.map_err(|errno| match errno {
        Errno::FBIG => {
            io::Error::other(format!("it takes {} KiB: raise ulimit -f", TREE_BYTES >> 10))
        }
        errno => errno.into(),
    })
}

impl Deref for SharedTree {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        // SAFETY: the mapping lives as long as `self`. From here on the plain fields are only
        // read, by every process; the rest are atomics.
        unsafe { self.map.as_ref() }
    }
}

impl Drop for SharedTree {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it outlives `self`. A failure leaves
        // it mapped, which harms nobody.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), TREE_BYTES) };
    }
}
