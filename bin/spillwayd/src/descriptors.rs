//! The limit on descriptors (RLIMIT_NOFILE), which all listeners share.
//!
//! Each front end bounds its connections. If the limit has room for all bounds together, a flood on one front end takes
//! no descriptor from another.

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

/// Raises the limit to the administrator's. Returns a line if that is too low for all connections together.
pub fn raise_limit(config: &Config) -> Option<String> {
    let limit = getrlimit(Resource::Nofile);
    // If it can't be raised, the present limit is compared.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let limit = getrlimit(Resource::Nofile).current?;
    let needed = needed(config) as u64;
    (limit < needed).then(|| {
        format!(
            "the limit on open files is {limit}, and all connections together can take {needed}: a flood on one \
             listener can keep the clients of others out; raise it with LimitNOFILE={needed} in the unit or ulimit -n"
        )
    })
}

/// Descriptors with all connections in use.
fn needed(config: &Config) -> usize {
    let listen = &config.listen;
    let api = ServerLimits::default().connections.slots.connections_max;
    let lend = spillway_lending_driver::peer_connections_max();
    let nbd = spillway_nbd::Config::default().connections_max;
    let nvme = spillway_nvme_tcp::Config::default().connections_max;
    let resp = spillway_resp::Config::default().connections_max;
    let has_resp = listen.resp.is_some() || listen.resp_tcp.is_some() || listen.resp_tls.is_some();
    let listeners = [
        (listen.ring.is_some(), spillway_ring::Config::default().connections_max * WITH_MEMORY),
        (
            listen.programs.is_some(),
            spillway_programs::Config::default().connections_max * WITH_MEMORY,
        ),
        (listen.nbd.is_some(), nbd * SOCKET),
        (listen.nbd_tcp.is_some(), nbd * SOCKET),
        (listen.nvme_tcp.is_some(), nvme * SOCKET),
        (listen.nvme_tls.is_some(), nvme * SOCKET),
        (has_resp, resp * SOCKET),
        (listen.api.is_some(), api * SOCKET),
        (listen.api_tcp.is_some(), api * SOCKET),
        (listen.api_tls.is_some(), api * SOCKET),
        (config.lend.is_on(), lend * SOCKET),
    ];
    let connections: usize = listeners.iter().filter(|it| it.0).map(|it| it.1).sum();
    OWN + connections + config.disks.len() * OF_DISK + config.vms.len() * OF_VM
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    #[test]
    fn each_listener_counts() {
        let by_default = needed(&read(None, &[]).unwrap());
        let mut config = read(None, &[]).unwrap();
        config.listen.nbd_tcp = Some("127.0.0.1:0".parse().unwrap());
        assert_eq!(needed(&config), by_default + 2 * 256);
        config.listen.ring = None;
        assert_eq!(needed(&config), by_default + 2 * 256 - 6 * 512);
    }
}
