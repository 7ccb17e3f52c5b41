//! The daemon's listening sockets.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::SocketType;

use crate::config::{Config, Disk, Error};
use crate::sockets::{self, Bound, Handed, tcp};
use crate::user::DaemonUser;

/// Every user may connect; the daemon identifies the peer afterwards.
const EVERYONE: u32 = 0o666;
/// The daemon's user and root only.
const OWNER: u32 = 0o600;
/// Also a group.
const OWNER_AND_GROUP: u32 = 0o660;

/// The configured listening sockets.
#[derive(Debug, Default)]
pub struct Listeners {
    pub ring: Option<OwnedFd>,
    pub programs: Option<OwnedFd>,
    pub nbd: Option<UnixListener>,
    pub nbd_tcp: Option<TcpListener>,
    pub nvme_tcp: Option<TcpListener>,
    pub nvme_tls: Option<TcpListener>,
    pub resp: Option<UnixListener>,
    pub resp_tcp: Option<TcpListener>,
    pub resp_tls: Option<TcpListener>,
    pub api: Option<UnixListener>,
    pub api_tcp: Option<TcpListener>,
    pub api_tls: Option<TcpListener>,
    /// Messages of other hosts.
    pub lend: Option<TcpListener>,
    /// Those of disks, in their order.
    pub disks: Vec<UnixListener>,
    /// All of them by setting and address, for the log.
    pub places: Vec<String>,
    pub bound: Bound,
}

/// Checks that no two listeners have one path or address, and that the sockets' paths can be used. Returns a line for
/// each directory that belongs to another user, where a service manager may start the daemon as that one. If root
/// checks, it gets none: a unit that root starts often names a user.
///
/// # Errors
/// Two have, or a path can't be used: other users can change its directory, or it is no path of a socket.
pub fn check(config: &Config, user: &DaemonUser) -> Result<Vec<String>, Error> {
    check_distinct(config)?;
    let all: Vec<_> = socket_paths(config).into_iter().map(|(_, path)| path).collect();
    let known = user.is_named.then_some(user.uid);
    all.iter().try_for_each(|path| sockets::check(path, known))?;
    let checks =
        all.iter().filter(|_| user.uid != 0).map(|path| sockets::check(path, Some(user.uid)));
    let mut lines: Vec<_> = checks.filter_map(Result::err).map(|line| line.to_string()).collect();
    lines.dedup();
    Ok(lines)
}

/// Checks that no two listeners have one path or address.
fn check_distinct(config: &Config) -> Result<(), Error> {
    distinct(&socket_paths(config), |path| path.display().to_string())?;
    distinct(&addresses(config), SocketAddr::to_string)
}

/// The Unix sockets, each with the setting that names it.
fn socket_paths(config: &Config) -> Vec<(String, PathBuf)> {
    let listen = &config.listen;
    let own = [
        ("listen.ring", &listen.ring),
        ("listen.programs", &listen.programs),
        ("listen.nbd", &listen.nbd),
        ("listen.resp", &listen.resp),
        ("listen.api", &listen.api),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, path)| Some((name.to_owned(), listen.path(path.as_ref()?))));
    let disks = config.disks.iter();
    own.chain(disks.map(|disk| (format!("disk '{}'", disk.name), disk.socket(listen)))).collect()
}

/// The TCP addresses with a port, each with the setting that names it.
fn addresses(config: &Config) -> Vec<(String, SocketAddr)> {
    let listen = &config.listen;
    let all = [
        ("listen.nbd_tcp", listen.nbd_tcp),
        ("listen.nvme_tcp", listen.nvme_tcp),
        ("listen.nvme_tls", listen.nvme_tls),
        ("listen.resp_tcp", listen.resp_tcp),
        ("listen.resp_tls", listen.resp_tls),
        ("listen.api_tcp", listen.api_tcp),
        ("listen.api_tls", listen.api_tls),
        ("lend.listen", config.lend.listen.filter(|_| config.lend.is_on())),
    ];
    // The kernel chooses another port for each port 0.
    let named = all.into_iter().filter_map(|(name, at)| Some((name.to_owned(), at?)));
    named.filter(|(_, at)| at.port() != 0).collect()
}

/// Checks that all places differ.
fn distinct<T: PartialEq>(
    places: &[(String, T)],
    shown: impl Fn(&T) -> String,
) -> Result<(), Error> {
    for (at, (name, place)) in places.iter().enumerate() {
        if let Some((other, _)) = places[..at].iter().find(|(_, earlier)| earlier == place) {
            let place = shown(place);
            return Err(Error::new(format!(
                "{other} and {name} are both {place}: give each its own"
            )));
        }
    }
    Ok(())
}

/// A line for each disk whose socket this process can't give to the disk's group, with these groups.
pub fn foreign_groups(config: &Config, groups: &[u32]) -> Vec<String> {
    let foreign = config.disks.iter().filter_map(|disk| {
        let gid = disk.gid.filter(|&gid| !groups.contains(&(gid as u32)))?;
        let path = disk.socket(&config.listen);
        Some(cant_open(disk, &path, gid, &Errno::PERM.to_string()).to_string())
    });
    foreign.collect()
}

impl Listeners {
    /// Binds the configured sockets, or takes them from the service manager.
    ///
    /// # Errors
    /// A path or address is in use or can't be bound.
    pub fn bind(config: &Config, mut handed: Handed) -> Result<Self, Error> {
        check_distinct(config)?;
        let listen = &config.listen;
        let mut bound = Bound::default();
        let mut unix = |path: &Option<PathBuf>, kind, mode| {
            let path = path.as_ref().map(|path| listen.path(path));
            path.map(|path| bound.unix(&mut handed, &path, kind, mode)).transpose()
        };
        let ring = unix(&listen.ring, SocketType::SEQPACKET, EVERYONE)?;
        let programs = unix(&listen.programs, SocketType::SEQPACKET, EVERYONE)?;
        let nbd = unix(&listen.nbd, SocketType::STREAM, EVERYONE)?.map(UnixListener::from);
        let resp = unix(&listen.resp, SocketType::STREAM, EVERYONE)?.map(UnixListener::from);
        let api = unix(&listen.api, SocketType::STREAM, OWNER)?.map(UnixListener::from);
        let mut on_tcp = |at: Option<SocketAddr>| at.map(|at| tcp(&mut handed, at)).transpose();
        let nbd_tcp = on_tcp(listen.nbd_tcp)?;
        let nvme_tcp = on_tcp(listen.nvme_tcp)?;
        let nvme_tls = on_tcp(listen.nvme_tls)?;
        let resp_tcp = on_tcp(listen.resp_tcp)?;
        let resp_tls = on_tcp(listen.resp_tls)?;
        let api_tcp = on_tcp(listen.api_tcp)?;
        let api_tls = on_tcp(listen.api_tls)?;
        let lend = on_tcp(config.lend.listen.filter(|_| config.lend.is_on()))?;
        let disks = config.disks.iter().map(|disk| {
            let path = disk.socket(listen);
            let listener = bound.unix(&mut handed, &path, SocketType::STREAM, OWNER)?;
            open_to_group(disk, &path)?;
            Ok(UnixListener::from(listener))
        });
        let disks = disks.collect::<Result<_, Error>>()?;
        if !handed.0.is_empty() {
            tracing::warn!(
                "{} sockets of the service manager match no setting of [listen]",
                handed.0.len()
            );
        }
        let mut listeners = Self {
            ring,
            programs,
            nbd,
            nbd_tcp,
            nvme_tcp,
            nvme_tls,
            resp,
            resp_tcp,
            resp_tls,
            api,
            api_tcp,
            api_tls,
            lend,
            disks,
            places: Vec::new(),
            bound,
        };
        listeners.places = listeners.named(config);
        Ok(listeners)
    }

    fn named(&self, config: &Config) -> Vec<String> {
        let listen = &config.listen;
        let sockets = [
            ("ring", &listen.ring),
            ("programs", &listen.programs),
            ("nbd", &listen.nbd),
            ("resp", &listen.resp),
            ("api", &listen.api),
        ];
        let socket = |(name, path): (&str, &Option<PathBuf>)| {
            Some(format!("{name} {}", listen.path(path.as_ref()?).display()))
        };
        let disks = config
            .disks
            .iter()
            .map(|disk| format!("disk {} {}", disk.name, disk.socket(listen).display()));
        let on_tcp = [
            ("nbd_tcp", &self.nbd_tcp),
            ("nvme_tcp", &self.nvme_tcp),
            ("nvme_tls", &self.nvme_tls),
            ("resp_tcp", &self.resp_tcp),
            ("resp_tls", &self.resp_tls),
            ("api_tcp", &self.api_tcp),
            ("api_tls", &self.api_tls),
            ("lend", &self.lend),
        ];
        // By now, port 0 of the configuration is a real port.
        let address = |(name, listener): (&str, &Option<TcpListener>)| {
            Some(format!("{name} {}", listener.as_ref()?.local_addr().ok()?))
        };
        let sockets = sockets.into_iter().filter_map(socket);
        sockets.chain(disks).chain(on_tcp.into_iter().filter_map(address)).collect()
    }
}

/// Lets a disk's group connect, if it has one.
fn open_to_group(disk: &Disk, path: &Path) -> Result<(), Error> {
    let Some(gid) = disk.gid else { return Ok(()) };
    let open = || -> io::Result<()> {
        chown(path, None, Some(gid as u32))?;
        fs::set_permissions(path, Permissions::from_mode(OWNER_AND_GROUP))
    };
    open().map_err(|error| cant_open(disk, path, gid, &error.to_string()))
}

fn cant_open(disk: &Disk, path: &Path, gid: u64, why: &str) -> Error {
    let (name, path) = (&disk.name, path.display());
    Error::new(format!(
        "disk '{name}': can't give {path} to group {gid}: {why}; the daemon's user must be in it"
    ))
}
