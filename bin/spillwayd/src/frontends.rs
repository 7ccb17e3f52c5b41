//! Starts the front ends, whose threads serve the clients.

use std::net::TcpListener;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use spillway_directory::ClientRegistry;
use spillway_nbd::{Listener, TlsMode};
use spillway_nvme_tcp::Target;
use spillway_serving::{ConnectionCounts, Latencies};
use spillway_tls::ServerSettings;
use spillway_types::Access;
use spillway_vhost_user_blk::Disk;

use crate::config::{Config, Error, Listen};
use crate::descriptors::ConnectionBounds;
use crate::keys::Keys;
use crate::listeners::Listeners;

/// The running servers. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Frontends {
    ring: Option<Arc<spillway_ring::Server>>,
    programs: Option<spillway_programs::Server>,
    nbd: Vec<spillway_nbd::Server>,
    nvme: Vec<spillway_nvme_tcp::Server>,
    resp: Option<spillway_resp::Server>,
    disks: Vec<spillway_vhost_user_blk::Server>,
}

/// The parts of the servers that the metrics read.
#[derive(Debug)]
pub struct Measured {
    /// The shared state of RESP connections, if RESP has a socket.
    pub resp: Option<Arc<spillway_resp::Shared>>,
    /// The target of NVMe/TCP, if it has a socket and as long as it serves.
    pub nvme: Option<Weak<Target>>,
    /// The latencies of commands, with the name of their front end. Several servers can have one name.
    pub latencies: Vec<(&'static str, Arc<Latencies>)>,
    /// Counts of connections, with the name of their front end. Several servers can have one name.
    pub connections: Vec<(&'static str, Arc<ConnectionCounts>)>,
}

/// The servers' parameters beside their sockets.
#[derive(Clone, Debug)]
pub struct Secrets {
    nbd_tcp: spillway_nbd::Config,
    nvme_tcp: spillway_nvme_tcp::Config,
    nvme_tls: Option<ServerSettings>,
    resp_tls: Option<ServerSettings>,
}

impl Secrets {
    /// Creates the parameters from keys and certificates.
    ///
    /// # Errors
    /// `listen.nvme_tcp_name` is not a valid name.
    pub fn new(listen: &Listen, keys: &Keys) -> Result<Self, Error> {
        let loopback = listen.nbd_tcp.is_none_or(|address| address.ip().is_loopback());
        let resp_tls = keys.tls.as_ref().map(|tls| tls.any_version.clone());
        let tls = match resp_tls.clone() {
            Some(settings) if loopback => TlsMode::Offered(settings),
            Some(settings) => TlsMode::Required(settings),
            None => TlsMode::Off,
        };
        let name = Some(listen.nbd_tcp_name.clone()).filter(|name| !name.is_empty());
        let nbd_tcp = spillway_nbd::Config { tls, loopback_name: name, ..Default::default() };
        let nvme_tls = keys.tls.as_ref().map(|tls| tls.tls13.clone());
        Ok(Self { nbd_tcp, nvme_tcp: nvme_tcp(listen, keys)?, nvme_tls, resp_tls })
    }
}

impl Secrets {
    /// The subsystem of block devices.
    pub fn blocks_nqn(&self) -> String {
        self.nvme_tcp.blocks_nqn()
    }
}

fn nvme_tcp(listen: &Listen, keys: &Keys) -> Result<spillway_nvme_tcp::Config, Error> {
    let config = spillway_nvme_tcp::Config {
        nqn_base: listen.nvme_tcp_name.clone(),
        controller_secret: Arc::clone(&keys.nvme_secret),
        data_timeout_ms: listen.nvme_data_timeout_s * 1000,
        ..Default::default()
    };
    let wrong = |why| Error::new(format!("listen.nvme_tcp_name '{}': {why}", config.nqn_base));
    config.check().map_err(wrong)?;
    Ok(config)
}

impl Frontends {
    /// The parts of the servers that the metrics read.
    pub fn measured(&self, disks: &[Arc<Disk>]) -> Measured {
        let resp = self.resp.as_ref().map(|server| Arc::clone(server.shared()));
        let ring = self.ring.iter().map(|server| ("ring", server.latencies()));
        // All servers for NVMe/TCP have one target.
        let nvme = self.nvme.iter().take(1).map(|it| ("nvme-tcp", it.target().latencies()));
        let nbd = self.nbd.iter().map(|server| ("nbd", server.latencies()));
        let its_resp = resp.iter().map(|shared| ("resp", &shared.latencies));
        let disks = disks.iter().map(|disk| ("vhost-user-blk", disk.latencies()));
        let all = ring.chain(nvme).chain(nbd).chain(its_resp).chain(disks);
        let latencies = all.map(|(name, latencies)| (name, Arc::clone(latencies))).collect();
        let target = self.nvme.first().map(|server| Arc::downgrade(server.target()));
        let connections = self.connections();
        Measured { resp, nvme: target, latencies, connections }
    }

    fn connections(&self) -> Vec<(&'static str, Arc<ConnectionCounts>)> {
        let ring = self.ring.iter().map(|server| ("ring", server.counts()));
        let programs = self.programs.iter().map(|server| ("programs", server.counts()));
        let nvme = self.nvme.iter().map(|server| ("nvme-tcp", server.counts()));
        let nbd = self.nbd.iter().map(|server| ("nbd", server.counts()));
        let resp = self.resp.iter().map(|server| ("resp", server.shared().places.counts()));
        let all = ring.chain(programs).chain(nvme).chain(nbd).chain(resp);
        all.map(|(name, counts)| (name, Arc::clone(counts))).collect()
    }

    /// The ring's server, which also serves windows of guests.
    pub fn ring(&self) -> Option<&Arc<spillway_ring::Server>> {
        self.ring.as_ref()
    }

    /// Starts a server for each socket.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub fn start(
        listeners: &mut Listeners,
        client_registry: &Arc<ClientRegistry>,
        secrets: Secrets,
        (config, bounds): (&Config, ConnectionBounds),
        disks: &[Arc<Disk>],
    ) -> anyhow::Result<Self> {
        let mut frontends = Self::default();
        let access: Arc<dyn Access> = client_registry.clone();
        if let Some(listener) = listeners.ring.take() {
            let store = Arc::clone(client_registry.store());
            let config = spillway_ring::Config::of(bounds.ring);
            let server = spillway_ring::Server::start(listener, store, access.clone(), config);
            frontends.ring = Some(Arc::new(server.context("can't serve the ring")?));
        }
        if let Some(listener) = listeners.programs.take() {
            let config = spillway_programs::Config {
                connections_max: bounds.programs,
                ..Default::default()
            };
            let server =
                spillway_programs::Server::start(listener, client_registry.clone(), config);
            frontends.programs = Some(server.context("can't serve programs")?);
        }
        let local = listeners.nbd.take().map(|it| (Listener::Unix(it), Default::default()));
        let tcp =
            listeners.nbd_tcp.take().map(|it: TcpListener| (Listener::Tcp(it), secrets.nbd_tcp));
        for (listener, mut config) in local.into_iter().chain(tcp) {
            config.connections_max = bounds.nbd;
            let exports = client_registry.clone();
            let server = spillway_nbd::Server::start(listener, access.clone(), exports, config);
            frontends.nbd.push(server.context("can't serve NBD")?);
        }
        let plain = listeners.nvme_tcp.take().map(|listener| (listener, None));
        let inside_tls = listeners.nvme_tls.take().map(|it| (it, secrets.nvme_tls));
        let nvme: Vec<_> = plain.into_iter().chain(inside_tls).collect();
        if !nvme.is_empty() {
            let store = Arc::clone(client_registry.store());
            let config =
                spillway_nvme_tcp::Config { connections_max: bounds.nvme, ..secrets.nvme_tcp };
            let target = Target::new(store, access, client_registry.clone(), config)?;
            let told = Arc::downgrade(&target);
            client_registry.watch(move |client| {
                if let Some(target) = told.upgrade() {
                    target.namespaces_changed(client);
                }
            });
            for (listener, tls) in nvme {
                let server = spillway_nvme_tcp::Server::start(listener, Arc::clone(&target), tls);
                frontends.nvme.push(server.context("can't serve NVMe/TCP")?);
            }
        }
        let settings = (config, bounds.resp);
        frontends.resp = resp(listeners, client_registry, secrets.resp_tls, settings)?;
        let listening = listeners.disks.drain(..).zip(disks).zip(&config.disks);
        for ((listener, disk), settings) in listening {
            let queues = settings.queues as u16;
            let server = spillway_vhost_user_blk::Server::start(listener, disk.clone(), queues);
            frontends.disks.push(server.context("can't serve disks")?);
        }
        Ok(frontends)
    }
}

/// Starts the RESP server, if it has a socket.
fn resp(
    listeners: &mut Listeners,
    client_registry: &Arc<ClientRegistry>,
    tls: Option<ServerSettings>,
    (config, connections_max): (&Config, usize),
) -> anyhow::Result<Option<spillway_resp::Server>> {
    use spillway_resp::Listener;
    let local = listeners.resp.take().map(Listener::Unix);
    let tcp = listeners.resp_tcp.take().map(|it| Listener::Tcp(it, None));
    let inside_tls = listeners.resp_tls.take().map(|it| Listener::Tcp(it, tls));
    let listeners: Vec<_> = local.into_iter().chain(tcp).chain(inside_tls).collect();
    if listeners.is_empty() {
        return Ok(None);
    }
    let name = config.listen.resp_tcp_name.clone();
    let settings = spillway_resp::Config {
        connections_max,
        lifetime: config.resp.lifetime,
        loopback_name: Some(name).filter(|name| !name.is_empty()),
        stall_timeout: Duration::from_secs(config.resp.stall_timeout_s),
        ..Default::default()
    };
    let store = Arc::clone(client_registry.store());
    let server = spillway_resp::Server::start(listeners, store, client_registry.clone(), settings);
    Ok(Some(server.context("can't serve RESP")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_proves_what_a_reload_has_read() {
        let config = crate::config::read(None, &[]).unwrap();
        let keys = Keys::read(&config, &[]).unwrap();
        let secrets = Secrets::new(&config.listen, &keys).unwrap();
        assert!(Arc::ptr_eq(&secrets.nvme_tcp.controller_secret, &keys.nvme_secret));
    }
}
