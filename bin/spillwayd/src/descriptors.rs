//! The limit on descriptors (RLIMIT_NOFILE), which all listeners share.
//!
//! Each listener bounds its connections. The limit has room for all bounds together, so a flood on one listener takes
//! no descriptor from another. If the usual bounds do not fit, each listener gets the same share of its own.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spillway_api::ServerLimits;

use crate::config::Config;

/// Most descriptors beside those of connections: files, sockets, timers, the store's memory.
const OWN: usize = 256;
/// Most descriptors of a connection with memory of its own: its socket and the server's handle of it, two files of
/// memory, two event counters.
const WITH_MEMORY: usize = 6;
/// Most descriptors of another connection: its socket and the server's handle of it.
const SOCKET: usize = 2;
/// Most descriptors of a disk's guest: those of a connection, two for each of four queues, its regions of memory.
const OF_DISK: usize = 32;
/// Most descriptors of a guest that the daemon resizes.
const OF_VM: usize = 16;
/// The fewest connections of a listener, however low the limit is.
const LEAST: usize = 8;

/// The most connections of each listener of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    pub ring: usize,
    pub programs: usize,
    pub nbd: usize,
    pub nvme: usize,
    pub resp: usize,
    /// The HTTP interface.
    pub api: usize,
    /// Messages of lending.
    pub lend: usize,
}

impl Default for ConnectionBounds {
    fn default() -> Self {
        Self {
            ring: spillway_ring::Config::default().connections_max,
            programs: spillway_programs::Config::default().connections_max,
            nbd: spillway_nbd::Config::default().connections_max,
            nvme: spillway_nvme_tcp::Config::default().connections_max,
            resp: spillway_resp::Config::default().connections_max,
            api: ServerLimits::default().connections.slots.connections_max,
            lend: spillway_lending_driver::peer_connections_max(),
        }
    }
}

impl ConnectionBounds {
    /// Descriptors with all connections in use.
    fn descriptors(&self, config: &Config) -> usize {
        let listen = &config.listen;
        let has_resp =
            listen.resp.is_some() || listen.resp_tcp.is_some() || listen.resp_tls.is_some();
        let listeners = [
            (listen.ring.is_some(), self.ring * WITH_MEMORY),
            (listen.programs.is_some(), self.programs * SOCKET),
            (listen.nbd.is_some(), self.nbd * SOCKET),
            (listen.nbd_tcp.is_some(), self.nbd * SOCKET),
            (listen.nvme_tcp.is_some(), self.nvme * SOCKET),
            (listen.nvme_tls.is_some(), self.nvme * SOCKET),
            (has_resp, self.resp * SOCKET),
            (listen.api.is_some(), self.api * SOCKET),
            (listen.api_tcp.is_some(), self.api * SOCKET),
            (listen.api_tls.is_some(), self.api * SOCKET),
            (config.lend.is_on(), self.lend * SOCKET),
        ];
        listeners.iter().filter(|it| it.0).map(|it| it.1).sum()
    }

    /// The bounds for a limit: the usual ones, or a share of them.
    fn fit(config: &Config, limit: usize) -> Self {
        let usual = Self::default();
        let wanted = usual.descriptors(config);
        let room = limit.saturating_sub(others(config)).min(wanted);
        let share = |connections: usize| (connections * room / wanted.max(1)).max(LEAST);
        Self {
            ring: share(usual.ring),
            programs: share(usual.programs),
            nbd: share(usual.nbd),
            nvme: share(usual.nvme),
            resp: share(usual.resp),
            api: share(usual.api),
            lend: share(usual.lend),
        }
    }
}

/// Most descriptors that are not a listener's.
const fn others(config: &Config) -> usize {
    OWN + config.disks.len() * OF_DISK + config.vms.len() * OF_VM
}

/// Raises the limit to the administrator's. Returns the bounds of the listeners, and a line if the limit is too low for
/// the usual ones.
pub fn raise_limit(config: &Config) -> (ConnectionBounds, Option<String>) {
    let limit = getrlimit(Resource::Nofile);
    // If it can't be raised, the present limit is compared.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return (ConnectionBounds::default(), None);
    };
    let needed = (others(config) + ConnectionBounds::default().descriptors(config)) as u64;
    if limit >= needed {
        return (ConnectionBounds::default(), None);
    }
    let line = format!(
        "the limit on open files is {limit}, and all connections together could take {needed}: each listener keeps \
         fewer connections than usual, so that a flood on one leaves descriptors for the others; raise the limit with \
         LimitNOFILE={needed} in the unit or ulimit -n"
    );
    (ConnectionBounds::fit(config, usize::try_from(limit).unwrap_or(usize::MAX)), Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    #[test]
    fn each_listener_counts() {
        let usual = ConnectionBounds::default();
        let mut config = read(None, &[]).unwrap();
        let by_default = usual.descriptors(&config);
        config.listen.nbd_tcp = Some("127.0.0.1:0".parse().unwrap());
        assert_eq!(usual.descriptors(&config), by_default + 2 * 256);
        config.listen.ring = None;
        assert_eq!(usual.descriptors(&config), by_default + 2 * 256 - 6 * 512);
    }

    #[test]
    fn disks_and_guests_have_room_beside_the_connections() {
        let mut config = read(None, &[]).unwrap();
        config.disks = vec![Default::default(); 20];
        config.vms = vec![Default::default(); 10];
        // Files of the daemon, 32 descriptors of each disk, 16 of each guest.
        let others = 256 + 20 * 32 + 10 * 16;
        let all = others + ConnectionBounds::default().descriptors(&config);
        assert_eq!(ConnectionBounds::fit(&config, all), ConnectionBounds::default());
        assert_ne!(ConnectionBounds::fit(&config, all - 100), ConnectionBounds::default());
        let bounds = ConnectionBounds::fit(&config, 4096);
        let used = others + bounds.descriptors(&config);
        assert!((4096 * 9 / 10..=4096).contains(&used), "{used}, {bounds:?}");
    }

    #[test]
    fn bounds_fit_the_limit() {
        let mut config = read(None, &[]).unwrap();
        assert_eq!(ConnectionBounds::fit(&config, 1 << 20), ConnectionBounds::default());
        config.listen.resp = Some("resp.sock".into());
        config.listen.nvme_tcp = Some("127.0.0.1:0".parse().unwrap());
        for limit in [1024, 2000, 4096, 10_000] {
            let bounds = ConnectionBounds::fit(&config, limit);
            let used = OWN + bounds.descriptors(&config);
            assert!(used <= limit && used >= limit * 9 / 10, "{limit}: {used}, {bounds:?}");
        }
        assert_eq!(
            ConnectionBounds::fit(&config, 64).api,
            LEAST,
            "too low a limit leaves a few of each"
        );
    }
}
