//! The descriptors that outlive the daemon: the service manager or Spillway's fd store holds them.
//!
//! Both use systemd's protocol: the daemon sends named descriptors to NOTIFY_SOCKET (FDSTORE=1),
//! and inherits them by LISTEN_FDS when it is started again.

use std::env;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use anyhow::Context;

use crate::fd_store;
use crate::manager;
use crate::sockets::Handed;

/// Prefix of the names of kept descriptors.
const PREFIX: &str = "spillway-";

/// The descriptors that the daemon inherited.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Kept by name, without the prefix.
    pub kept: Vec<(String, OwnedFd)>,
    /// Listening sockets.
    pub sockets: Handed,
}

impl Inherited {
    /// Takes all inherited descriptors. Call it once, before anything is opened.
    ///
    /// # Errors
    /// The environment variables are malformed.
    pub fn take() -> anyhow::Result<Self> {
        let mut inherited = Self::default();
        if env::var_os(fd_store::MARK).is_some() {
            // The fd store can't know the process id before the process exists.
            // SAFETY: this is the only thread yet.
            unsafe { env::set_var("LISTEN_PID", std::process::id().to_string()) };
        }
        let handed = sd_notify::listen_fds_with_names()
            .context("can't take descriptors from the service manager")?;
        for (fd, name) in handed {
            // SAFETY: the service manager left it open for this process, and nothing else here owns
            // it; the environment is read once.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            match name.strip_prefix(PREFIX) {
                Some(name) => inherited.kept.push((name.to_owned(), fd)),
                None => inherited.sockets.0.push(fd),
            }
        }
        Ok(inherited)
    }
}

/// The name of the fd store in the API: `systemd`, `keeper` or `nobody`.
pub fn fd_store_name() -> &'static str {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        "nobody"
    } else if env::var_os(fd_store::MARK).is_some() {
        "keeper"
    } else {
        "systemd"
    }
}

/// Sends descriptors to the fd store. Does nothing if there is none.
///
/// # Errors
/// The service manager's socket does not accept them.
pub fn keep<'a>(
    named: impl IntoIterator<Item = (&'static str, BorrowedFd<'a>)>,
) -> anyhow::Result<()> {
    for (name, fd) in named {
        manager::tell(&format!("FDSTORE=1\nFDNAME={PREFIX}{name}"), Some(fd))
            .context("can't send the store's memory to the fd store")?;
    }
    Ok(())
}

/// Removes the descriptors of a name from the fd store.
///
/// # Errors
/// The service manager's socket does not accept the message.
pub fn forget(name: &str) -> anyhow::Result<()> {
    Ok(manager::tell(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{name}"), None)?)
}
