//! Builds the parts of lending from the configuration.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use spillway_directory::ClientRegistry;
use spillway_lending::HostId;
use spillway_lending_driver::{DeviceUse, Discovery, LendingParts, Settings, UsedBy};
use spillway_registry::Host;

use super::helper::Helper;
use super::kernel::HostKernel;
use super::transport::NvmeTransport;
use crate::config::{self, Config, Error, RegistryKind, machine_settings};
use crate::keys::{Keys, LendingTls, Tls};
use crate::memory::Room;

/// Builds them before the sandbox hides files.
///
/// # Errors
/// Keys are missing, or a setting can't be used.
pub fn lending_parts(
    config: &Config,
    keys: &Keys,
    (client_registry, room): (&Arc<ClientRegistry>, Room),
    (listener, connections_max): (TcpListener, usize),
    blocks_nqn: String,
    helper: Option<Helper>,
) -> anyhow::Result<LendingParts> {
    let (tls, lending) = lending_tls(keys)?;
    let kernel = HostKernel::open(helper, Arc::clone(&keys.lend_secret));
    let settings = settings(config, room, blocks_nqn)?;
    let transport = NvmeTransport {
        tls: lending.client.clone(),
        host_nqn: host_nqn()?,
        request_timeout: settings.request_timeout,
    };
    Ok(LendingParts {
        host: lending.host.clone(),
        settings,
        discovery: discovery(config, &lending.host)?,
        client_registry: Arc::clone(client_registry),
        kernel: Arc::new(kernel.context("can't read this host's memory")?),
        transport: Arc::new(transport),
        listener,
        connections_max,
        server: tls.tls13.clone(),
        client: lending.client.clone(),
    })
}

fn lending_tls(keys: &Keys) -> Result<(&Tls, &LendingTls), Error> {
    let tls = keys.tls.as_ref();
    tls.and_then(|tls| Some((tls, tls.lending.as_ref()?))).ok_or_else(|| {
        Error::new("lend.listen needs listen.tls_certificate, tls_key and tls_clients")
    })
}

/// The driver's settings.
fn settings(config: &Config, room: Room, blocks_nqn: String) -> Result<Settings, Error> {
    let (listen, lend) = (&config.listen, &config.lend);
    let nowhere = || ([0, 0, 0, 0], 0).into();
    let at = |listening: Option<SocketAddr>| listening.map(|its| lend.data_address.unwrap_or(its));
    // One public address can't stand for two listeners: it is that of the pools' listener, if there
    // is one.
    let blocks = if listen.nvme_tls.is_some() { listen.nvme_tcp } else { at(listen.nvme_tcp) };
    Ok(Settings {
        machine: machine_settings(config)?,
        address: lend.address.or(lend.listen).unwrap_or_else(nowhere),
        rack: lend.rack.clone(),
        lends: lend.lends(),
        borrows: lend.borrows(),
        period: Duration::from_millis(lend.period_ms),
        used: match lend.used {
            config::UsedBy::Available => UsedBy::Available,
            config::UsedBy::Paper => UsedBy::Paper,
        },
        upper: lend.upper,
        lower: lend.lower,
        device: match lend.device {
            config::DeviceUse::Swap => DeviceUse::Swap,
            config::DeviceUse::Socket => DeviceUse::Socket,
        },
        socket_dir: listen.dir.clone().unwrap_or_else(|| PathBuf::from("/run/spillway")),
        backup_file: lend.backup_file.clone(),
        request_timeout: Duration::from_millis(lend.request_ms),
        min_free_bytes: lend.min_free_bytes,
        raise_min_free: lend.raise_min_free,
        margin_bytes: lend.margin_bytes,
        dry_run: lend.dry_run,
        pools_at: at(listen.nvme_tls),
        blocks_at: blocks.map(|address| (address, blocks_nqn)),
        capacity_bytes: lend.capacity_bytes.unwrap_or(u64::MAX),
        store_bytes: room.own_bytes,
    })
}

/// NVMe Qualified Name of this host, a new one at each start.
fn host_nqn() -> anyhow::Result<String> {
    let id = spillway_block::fresh_uuid()?;
    let hex = format!("{id:032x}");
    let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    Ok(format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"))
}

/// The host registry.
fn discovery(config: &Config, own: &HostId) -> Result<Discovery, Error> {
    let lend = &config.lend;
    if lend.registry == RegistryKind::Etcd {
        let endpoints = lend.etcd.iter().map(|endpoint| endpoint.parse());
        return Ok(Discovery::Etcd {
            endpoints: endpoints
                .collect::<Result<_, spillway_registry::Error>>()
                .map_err(|error| Error::new(format!("lend.etcd: {error}")))?,
            prefix: lend.etcd_prefix.clone(),
            lease_s: lend.etcd_lease_s,
        });
    }
    let others = config.peers.iter().filter(|peer| !peer.name.eq_ignore_ascii_case(own.as_str()));
    let host = |peer: &config::Peer| {
        Some(Host {
            name: peer.name.to_ascii_lowercase(),
            address: peer.address?,
            rack: peer.rack.clone(),
            spare_bytes: 0,
        })
    };
    Ok(Discovery::List {
        hosts: others.filter_map(host).collect(),
        interval: Duration::from_millis(lend.registry_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    #[test]
    fn what_the_section_pool_lends_is_not_offered_to_other_hosts() {
        let room = Room { own_bytes: 32 << 20, lent_bytes: 32 << 20 };
        let config = read(None, &[]).unwrap();
        let settings = settings(&config, room, "nqn".into()).unwrap();
        assert_eq!(settings.store_bytes, room.own_bytes);
    }
}
