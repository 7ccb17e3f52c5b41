//! What outlives the daemon: descriptors that a service manager or our keeper holds.
//!
//! Both speak systemd's protocol: the daemon sends descriptors with names to NOTIFY_SOCKET
//! (FDSTORE=1), and finds them after LISTEN_FDS when it is started again.

use std::env;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use anyhow::Context;

use crate::keeper;
use crate::manager;
use crate::sockets::Handed;

/// What the names of kept descriptors begin with.
const PREFIX: &str = "spillway-";

/// What was handed over at the start.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Kept by name, without the prefix.
    pub kept: Vec<(String, OwnedFd)>,
    /// Listening sockets.
    pub sockets: Handed,
}

impl Inherited {
    /// Takes all descriptors that were handed over. To be called once, before anything is opened.
    ///
    /// # Errors
    /// What stands in the environment can't be understood.
    pub fn take() -> anyhow::Result<Self> {
        let mut inherited = Self::default();
        if env::var_os(keeper::MARK).is_some() {
            // The keeper can't know the number before the process is there.
            // SAFETY: this is the only thread yet.
            unsafe { env::set_var("LISTEN_PID", std::process::id().to_string()) };
        }
        let handed = sd_notify::listen_fds_with_names()
            .context("can't take descriptors from the service manager")?;
        for (fd, name) in handed {
            // SAFETY: the service manager left it open for this process, and nobody else here
            // knows of it; the environment is read once.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            match name.strip_prefix(PREFIX) {
                Some(name) => inherited.kept.push((name.to_owned(), fd)),
                None => inherited.sockets.0.push(fd),
            }
        }
        Ok(inherited)
    }
}

/// Who keeps descriptors.
pub fn keeper_name() -> &'static str {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        "nobody"
    } else if env::var_os(keeper::MARK).is_some() {
        "keeper"
    } else {
        "systemd"
    }
}

/// Hands descriptors over to be kept. Does nothing where nobody keeps any.
///
/// # Errors
/// The socket of the service manager does not take them.
pub fn keep<'a>(
    named: impl IntoIterator<Item = (&'static str, BorrowedFd<'a>)>,
) -> anyhow::Result<()> {
    for (name, fd) in named {
        manager::tell(&format!("FDSTORE=1\nFDNAME={PREFIX}{name}"), Some(fd))
            .context("can't hand the store's memory over to be kept")?;
    }
    Ok(())
}

/// Has what is kept under a name forgotten.
///
/// # Errors
/// The socket of the service manager does not take the message.
pub fn forget(name: &str) -> anyhow::Result<()> {
    Ok(manager::tell(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{name}"), None)?)
}
