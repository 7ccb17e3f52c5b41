//! Waits for a monitor that hands over its guest's memory. Refuses one that can't be served, with one
//! line.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spillway_guest_memory::{Error, Layout, Map, Received, check_registered, inspect, receive};
use spillway_platform::sys::peer_credentials;

use super::plan::{Plan, inherited};
use super::supervisor::Supervisor;
use super::tiers::Tiers;
use super::{Checked, say};
use crate::program::plain;
use crate::refusal::Refusal;
use crate::units::show_size;

/// How long a monitor may take to send its handover message.
const WITHIN: Duration = Duration::from_secs(5);

/// A socket in the file system, removed when this is dropped.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Moves it to another path, which must not exist.
    fn rename(mut self, path: &Path) -> io::Result<Self> {
        renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE)?;
        self.path = path.to_owned();
        Ok(self)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens at `path`. Only this user can connect, from the moment the path exists. Replaces a socket on which no
/// process listens.
///
/// # Errors
/// Why it can't.
pub fn listen(path: &Path) -> Result<Listener, Refusal> {
    let refuse =
        |why: &str| Refusal::usage(format!("--listen {}: {why}; name another", path.display()));
    if UnixStream::connect(path).is_ok() {
        return Err(refuse("another process listens there"));
    }
    let is_socket = fs::symlink_metadata(path)
        .is_ok_and(|it| std::os::unix::fs::FileTypeExt::is_socket(&it.file_type()));
    if is_socket {
        let _ = fs::remove_file(path);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let hidden = folder.join(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&hidden);
    let socket = UnixListener::bind(&hidden).map_err(|error| refuse(&plain(&error)))?;
    let hidden = Listener { socket, path: hidden };
    let only_ours = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&hidden.path, only_ours).map_err(|error| refuse(&plain(&error)))?;
    hidden.rename(path).map_err(|error| refuse(&plain(&error)))
}

/// Waits for a guest that can be served; `None` when a signal came first.
///
/// # Errors
/// What this process can't do.
pub fn guest(
    listener: &Listener,
    checked: &Checked,
    tiers: Option<&Tiers>,
    signals: &SignalFd,
) -> anyhow::Result<Option<(Supervisor, UnixStream)>> {
    say(&format!("waiting for {} at {}", checked.handshake.monitor(), listener.path.display()));
    loop {
        let mut polled = [
            PollFd::new(&listener.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.context("can't wait for a monitor")?,
        };
        if !polled[1].revents().is_empty() {
            return Ok(None);
        }
        let Ok((mut socket, _)) = listener.socket.accept() else { continue };
        match take(&socket, checked) {
            Ok((plan, held)) => {
                let plan = Plan { tiers: tiers.map(Tiers::plan), ..plan };
                return Ok(Some((Supervisor::new(plan, held)?, socket)));
            }
            Err(error) => {
                say(&format!("handover refused: {error}"));
                let _ = socket.write_all(checked.handshake.answer(Err(&error)).as_bytes());
            }
        }
    }
}

/// Takes one handover. Closes the descriptors of one that is refused.
fn take(socket: &UnixStream, checked: &Checked) -> Result<(Plan, Vec<OwnedFd>), Error> {
    let handshake = checked.handshake;
    let Received { regions, descriptors } = receive(socket, handshake, WITHIN)?;
    let inspected = inspect(handshake, descriptors)?;
    let lengths = match &checked.source {
        Some((_, bytes)) => vec![*bytes],
        None => inspected.lengths,
    };
    let layout = Layout::check(&regions, &lengths, handshake.pages_out())?;
    if handshake.pages_out() {
        check_registered(inspected.uffd.as_fd(), &layout)?;
    }
    let (monitor_pid, monitor) = monitor_of(socket)?;
    let map =
        Map::new(layout.units()).map_err(Error::system("make the map of the guest's memory"))?;
    let keep = |file: &OwnedFd| {
        inherited(file).map_err(|_| Error::system("keep a descriptor")(rustix::io::Errno::MFILE))
    };
    let mut held = vec![keep(&inspected.uffd)?, keep(map.file())?, keep(&monitor)?];
    let source = checked.source.as_ref().map(|(file, _)| keep(file)).transpose()?;
    let files = inspected.files.iter().map(keep).collect::<Result<Vec<_>, _>>()?;
    let number = |at: usize| held[at].as_raw_fd();
    let plan = Plan {
        firecracker: !handshake.pages_out(),
        local_bytes: checked.local,
        monitor_pid,
        monitor: number(2),
        uffd: number(0),
        files: files.iter().map(AsRawFd::as_raw_fd).collect(),
        source: source.as_ref().map(AsRawFd::as_raw_fd),
        map: number(1),
        tiers: None,
        layout,
    };
    held.extend(files.into_iter().chain(source));
    say(&came(&plan));
    Ok((plan, held))
}

/// The process at the other end.
fn monitor_of(socket: &UnixStream) -> Result<(u32, OwnedFd), Error> {
    const WHAT: &str = "see the monitor's process";
    let peer = peer_credentials(socket).map_err(Error::system(WHAT))?;
    let pid =
        Pid::from_raw(peer.pid).ok_or_else(|| Error::system(WHAT)(rustix::io::Errno::SRCH))?;
    let monitor = pidfd_open(pid, PidfdFlags::empty()).map_err(Error::system(WHAT))?;
    Ok((peer.pid as u32, monitor))
}

fn came(plan: &Plan) -> String {
    let regions = plan.layout.regions().len();
    let what = format!(
        "guest memory of process {}: {} in {regions} region{}",
        plan.monitor_pid,
        show_size(plan.layout.bytes()),
        if regions == 1 { "" } else { "s" }
    );
    if plan.firecracker {
        return format!(
            "{what}; pages come in and are removed, none can leave private memory: there is no target"
        );
    }
    format!("{what}, of which {} stay", show_size(plan.local_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_there_can_be_connected_to_and_is_this_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        for at in 0..200 {
            let path = folder.path().join(at.to_string());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !path.exists() {
                        std::thread::yield_now();
                    }
                    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                    UnixStream::connect(&path).unwrap();
                });
                let listener = listen(&path).unwrap();
                listener.socket.accept().unwrap();
            });
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "gone with their listeners");
    }

    #[test]
    fn only_a_socket_that_nobody_listens_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let _listener = listen(&path).unwrap();
        assert!(listen(&path).is_err(), "another process listens");
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(listen(&file).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
