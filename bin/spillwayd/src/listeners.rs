//! Everything that the daemon listens on.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::net::SocketType;

use crate::config::{Error, Listen};
use crate::sockets::{Bound, Handed, tcp};

/// Anyone may connect: who it is, is asked then.
const EVERYONE: u32 = 0o666;
/// The daemon's user and root only.
const OWNER: u32 = 0o600;

/// Listening sockets, where they are configured.
#[derive(Debug, Default)]
pub struct Listeners {
    pub ring: Option<OwnedFd>,
    pub nbd: Option<UnixListener>,
    pub nbd_tcp: Option<TcpListener>,
    pub nvme_tcp: Option<TcpListener>,
    pub nvme_tls: Option<TcpListener>,
    pub api: Option<UnixListener>,
    pub api_tcp: Option<TcpListener>,
    pub bound: Bound,
}

impl Listeners {
    /// Binds what is configured, or takes it from the service manager.
    ///
    /// # Errors
    /// A path or address is taken or can't be had.
    pub fn bind(listen: &Listen, mut handed: Handed) -> Result<Self, Error> {
        let mut bound = Bound::default();
        let mut unix = |path: &Option<PathBuf>, kind, mode| {
            let path = path.as_ref().map(|path| listen.path(path));
            path.map(|path| bound.unix(&mut handed, &path, kind, mode)).transpose()
        };
        let ring = unix(&listen.ring, SocketType::SEQPACKET, EVERYONE)?;
        let nbd = unix(&listen.nbd, SocketType::STREAM, EVERYONE)?.map(UnixListener::from);
        let api = unix(&listen.api, SocketType::STREAM, OWNER)?.map(UnixListener::from);
        let mut on_tcp = |at: Option<SocketAddr>| at.map(|at| tcp(&mut handed, at)).transpose();
        let nbd_tcp = on_tcp(listen.nbd_tcp)?;
        let nvme_tcp = on_tcp(listen.nvme_tcp)?;
        let nvme_tls = on_tcp(listen.nvme_tls)?;
        let api_tcp = on_tcp(listen.api_tcp)?;
        if !handed.0.is_empty() {
            tracing::warn!(
                "{} sockets of the service manager are in no setting of [listen]",
                handed.0.len()
            );
        }
        Ok(Self { ring, nbd, nbd_tcp, nvme_tcp, nvme_tls, api, api_tcp, bound })
    }
}
