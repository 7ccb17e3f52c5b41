//! Binds sockets, or takes those that a service manager bound.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getsockname, listen, socket_with,
};
use rustix::process::{geteuid, umask};

use crate::config::Error;

/// The backlog of a Unix socket: connections that wait to be accepted. When it is full, clients that connect without
/// blocking get EAGAIN. The kernel takes net.core.somaxconn (4096) if that is less. TCP keeps the 128 of the standard
/// library: a flood that fills the queue waits itself, and a newcomer waits for all that are in the queue.
const BACKLOG: i32 = 4096;

/// The bit of a directory's mode that lets every user create and remove files in it.
const OTHERS_WRITE: u32 = 0o002;

/// Inherited sockets that are not in use yet.
#[derive(Debug, Default)]
pub struct Handed(pub Vec<OwnedFd>);

/// Paths of sockets that this process bound. Dropping this removes them, also if the start fails.
#[derive(Debug, Default)]
pub struct Bound(Vec<OwnPath>);

/// The path of a socket, and which file that was.
#[derive(Debug)]
struct OwnPath {
    path: PathBuf,
    file: (u64, u64),
}

impl OwnPath {
    /// What is at the path now.
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), file: (found.dev(), found.ino()) })
    }
}

impl Bound {
    /// Removes them, once: afterwards, another daemon may listen there. Somebody may have removed one before; what is
    /// there then is another daemon's.
    pub fn remove(&mut self) {
        for own in self.0.drain(..) {
            if OwnPath::of(&own.path).is_ok_and(|now| now.file == own.file) {
                // It may be gone already.
                let _ = fs::remove_file(own.path);
            }
        }
    }

    /// Listens on a Unix socket, which has `mode` from the moment it exists.
    ///
    /// # Errors
    /// The path is in use or can't be created, or other users can change its directory.
    pub fn unix(
        &mut self,
        handed: &mut Handed,
        path: &Path,
        kind: SocketType,
        mode: u32,
    ) -> Result<OwnedFd, Error> {
        if let Some(listener) = handed.take(|address| unix_path(address).as_deref() == Some(path)) {
            return Ok(listener);
        }
        let refuse = |error: io::Error| cant_listen(path, &error);
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(refuse)?;
            let found = fs::metadata(dir).map_err(refuse)?;
            check_owner(dir, (found.uid(), found.mode()), geteuid().as_raw())?;
        }
        let address = SocketAddrUnix::new(path).map_err(|error| refuse(error.into()))?;
        let socket = || socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let listener = socket().map_err(|error| refuse(error.into()))?;
        if let Ok(found) = fs::symlink_metadata(path) {
            check_kind(path, &found)?;
            let asked = socket().and_then(|asking| connect(&asking, &address));
            if asked != Err(Errno::CONNREFUSED) {
                return Err(Error::new(format!(
                    "{} is in use, probably by another daemon: stop it, or set listen.dir",
                    path.display()
                )));
            }
            // A killed daemon left it.
            fs::remove_file(path).map_err(refuse)?;
        }
        let before = umask(Mode::from_raw_mode(!mode & 0o777));
        let bound = bind(&listener, &address);
        umask(before);
        bound.map_err(|error| refuse(error.into()))?;
        self.0.push(OwnPath::of(path).map_err(refuse)?);
        listen(&listener, BACKLOG).map_err(|error| refuse(error.into()))?;
        Ok(listener)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Checks that a daemon of user `own` could listen at a path, as far as its directory is there. If that user is not
/// known, the directory may be anybody's.
///
/// # Errors
/// The path is too long, or is one of something else than a socket. Its directory is none, or others can change it.
pub fn check(path: &Path, own: Option<u32>) -> Result<(), Error> {
    SocketAddrUnix::new(path).map_err(|error| cant_listen(path, &error.into()))?;
    if let Ok(found) = fs::symlink_metadata(path) {
        check_kind(path, &found)?;
    }
    let Some(dir) = path.parent() else { return Ok(()) };
    let Ok(found) = fs::metadata(dir) else { return Ok(()) };
    if !found.is_dir() {
        return Err(cant_listen(path, &Errno::NOTDIR.into()));
    }
    check_owner(dir, (found.uid(), found.mode()), own.unwrap_or(found.uid()))
}

fn cant_listen(path: &Path, error: &io::Error) -> Error {
    Error::new(format!("can't listen on {}: {error}", path.display()))
}

/// Checks that what is at a socket's path is a socket, which a daemon may replace.
fn check_kind(path: &Path, found: &Metadata) -> Result<(), Error> {
    if found.file_type().is_socket() {
        return Ok(());
    }
    Err(Error::new(format!(
        "can't listen on {}: it is no socket, and is not replaced; remove it, or give another path",
        path.display()
    )))
}

/// Checks that no other user can replace the daemon's socket.
fn check_owner(dir: &Path, (owner, mode): (u32, u32), own: u32) -> Result<(), Error> {
    let shown = dir.display();
    if owner != own && owner != 0 {
        return Err(Error::new(format!(
            "the sockets' directory {shown} belongs to user {owner}: give one of user {own}, which the daemon runs as, \
             by listen.dir or spillway serve --dir"
        )));
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(Error::new(format!(
            "every user may write to the sockets' directory {shown}: give one of your own by listen.dir or \
             spillway serve --dir, or run chmod o-w {shown}"
        )));
    }
    Ok(())
}

/// Listens on a TCP address.
///
/// # Errors
/// The address is in use or not this host's.
pub fn tcp(handed: &mut Handed, address: SocketAddr) -> Result<TcpListener, Error> {
    if let Some(listener) = handed.take(|bound| SocketAddr::try_from(bound).ok() == Some(address)) {
        return Ok(listener.into());
    }
    TcpListener::bind(address)
        .map_err(|error| Error::new(format!("can't listen on {address}: {error}")))
}

impl Handed {
    fn take(&mut self, is_it: impl Fn(SocketAddrAny) -> bool) -> Option<OwnedFd> {
        let at = self.0.iter().position(|fd| getsockname(fd).is_ok_and(&is_it))?;
        Some(self.0.swap_remove(at))
    }
}

fn unix_path(address: SocketAddrAny) -> Option<PathBuf> {
    if address.address_family() != AddressFamily::UNIX {
        return None;
    }
    let address = SocketAddrUnix::try_from(address).ok()?;
    let path = address.path()?.into_owned();
    Some(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_socket_is_where_others_may_put_theirs() {
        let dir = Path::new("/run/there");
        for good in [(1000, 0o755), (0, 0o755), (1000, 0o700), (1000, 0o775)] {
            assert!(check_owner(dir, good, 1000).is_ok(), "{good:?}");
        }
        for (bad, word) in
            [((1001, 0o755), "user 1001"), ((1000, 0o757), "o-w"), ((0, 0o1777), "o-w")]
        {
            let line = check_owner(dir, bad, 1000).unwrap_err().to_string();
            assert!(line.contains(word) && line.contains("/run/there"), "{line}");
            assert!(line.contains("--dir") && line.contains("listen.dir"), "{line}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listen = || {
            Bound::default()
                .unix(&mut Handed::default(), &path, SocketType::STREAM, 0o600)
                .map(drop)
        };
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(listen().is_err() && !path.exists());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        listen().unwrap();
    }

    fn listens(path: &Path) -> (Bound, OwnedFd) {
        let mut bound = Bound::default();
        let listener = bound.unix(&mut Handed::default(), path, SocketType::STREAM, 0o600).unwrap();
        (bound, listener)
    }

    #[test]
    fn a_socket_is_removed_once_and_another_s_never() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (mut first, listener) = listens(&path);
        first.remove();
        assert!(!path.exists());
        let (second, _) = listens(&path);
        first.remove();
        drop((first, listener));
        assert!(path.exists(), "it was removed before");
        // An operator may do this while the second runs.
        fs::remove_file(&path).unwrap();
        let (third, _) = listens(&path);
        drop(second);
        assert!(path.exists(), "it is the third's");
        drop(third);
        assert!(!path.exists());
    }
}
