//! The pool's folder and the guests' folders in it.

use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, flock, fstat, mkdirat, open, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::Error;
use crate::file::{name_of, share};
use crate::mount::Backing;

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Refuses a path that needs quoting in QEMU's options.
pub fn check_path(path: &Path) -> Result<(), Error> {
    let text = path.to_str().unwrap_or_default();
    let bad = |letter: char| letter == ',' || letter.is_control();
    if !path.is_absolute() || text.contains(bad) || path.file_name().is_none() || text.is_empty() {
        return Err(Error::Dir { dir: PathBuf::from(path) });
    }
    Ok(())
}

impl Backing {
    /// The backing of a pool's folder, or of the folder that [`crate::Pool::open`] would create. Creates nothing.
    ///
    /// # Errors
    /// The folder can't be used: [`Error::Dir`], [`Error::FileSystem`], [`Error::Io`].
    pub fn at(path: &Path) -> Result<Self, Error> {
        check_path(path)?;
        match open(path, FOLDER, Mode::empty()) {
            Err(Errno::NOENT) => Self::of(open_above(path)?, path),
            folder => Self::of(folder.map_err(Error::io("open", path))?, path),
        }
    }
}

/// Opens the folder that contains a pool's.
pub fn open_above(path: &Path) -> Result<OwnedFd, Error> {
    let parent = path.parent().unwrap_or(path);
    open(parent, FOLDER - OFlags::NOFOLLOW, Mode::empty()).map_err(Error::io("open", parent))
}

/// Opens the pool's folder; none if it does not exist.
pub fn open_existing(path: &Path) -> Result<Option<OwnedFd>, Error> {
    let folder = match open(path, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let why = "it is not a folder, or a symbolic link to one";
            return Err(Error::Foreign { path: path.to_owned(), why });
        }
        folder => folder.map_err(Error::io("open", path))?,
    };
    Backing::of(&folder, path)?;
    check_owner(&folder, path)?;
    Ok(Some(folder))
}

/// Opens and locks the pool's folder. Creates it if it does not exist.
pub fn open_pool(path: &Path, group: Option<u32>) -> Result<(OwnedFd, Backing), Error> {
    let folder = match open_existing(path)? {
        Some(folder) => folder,
        None => make_pool(path, group)?,
    };
    let backing = Backing::of(&folder, path)?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((folder, backing)),
        Err(Errno::WOULDBLOCK) => Err(Error::Locked { dir: path.to_owned() }),
        Err(errno) => Err(Error::io("lock", path)(errno)),
    }
}

fn make_pool(path: &Path, group: Option<u32>) -> Result<OwnedFd, Error> {
    let above = open_above(path)?;
    Backing::of(&above, path)?;
    make(above, path, group)
}

/// Creates a guest's folder, or opens an existing one.
pub fn make_guest(dir: impl AsFd, path: &Path, group: Option<u32>) -> Result<OwnedFd, Error> {
    make(dir, path, group)
}

fn make(above: impl AsFd, path: &Path, group: Option<u32>) -> Result<OwnedFd, Error> {
    match mkdirat(above.as_fd(), name_of(path), Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) => return open_guest(above, path),
        Err(errno) => return Err(Error::io("create", path)(errno)),
    }
    let folder =
        openat(above, name_of(path), FOLDER, Mode::empty()).map_err(Error::io("open", path))?;
    share(&folder, Mode::RWXU, Mode::RGRP | Mode::XGRP, group)
        .map_err(Error::io("set up", path))?;
    Ok(folder)
}

/// Opens a guest's folder.
pub fn open_guest(dir: impl AsFd, path: &Path) -> Result<OwnedFd, Error> {
    let folder = match openat(dir, name_of(path), FOLDER, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(Error::Foreign { path: path.to_owned(), why: "it is no guest's folder" });
        }
        folder => folder.map_err(Error::io("open", path))?,
    };
    check_owner(&folder, path)?;
    Ok(folder)
}

/// Removes an empty folder of a guest.
pub fn remove_guest(dir: impl AsFd, path: &Path) -> Result<(), Error> {
    unlinkat(dir, name_of(path), AtFlags::REMOVEDIR).map_err(Error::io("remove", path))
}

/// The names in a folder.
pub fn names(folder: impl AsFd, path: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(Error::io("read", path))? {
        let entry = entry.map_err(Error::io("read", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Refuses a folder to which other users can write.
fn check_owner(folder: impl AsFd, path: &Path) -> Result<(), Error> {
    let foreign = |why| Error::Foreign { path: path.to_owned(), why };
    let Stat { st_uid, st_mode, .. } = fstat(folder).map_err(Error::io("look at", path))?;
    if st_uid != geteuid().as_raw() {
        return Err(foreign("it belongs to another user"));
    }
    if Mode::from_raw_mode(st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(foreign("others than its owner can write to it"));
    }
    Ok(())
}
