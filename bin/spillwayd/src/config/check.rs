//! Checks settings against each other, and turns them into clients, devices and a policy for the
//! client registry.

use std::net::SocketAddr;

use spillway_directory::{BlockSettings, ClientSettings, Policy, Secret, Who};
use spillway_types::{Limits, PAGE_BYTES};

use super::file::Error;
use super::values::{Config, Listen, NamedClient};
use crate::read_secret::read_secret;

/// Input of the client registry.
#[derive(Debug)]
pub struct Clients {
    pub clients: Vec<ClientSettings>,
    pub blocks: Vec<BlockSettings>,
    pub policy: Policy,
}

impl Clients {
    /// Checks settings against each other, and reads secrets.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(config: &Config) -> Result<Self, Error> {
        check_listeners(config)?;
        check_disks(config)?;
        super::lending::check(config)?;
        super::vms::check(config)?;
        let usual = Limits {
            connections_max: config.unnamed.connections_max as u32,
            operations_max: config.unnamed.operations_max as u32,
            bytes_max: config.unnamed.bytes_max,
        };
        let is_guest = |client: &NamedClient| {
            config.disks.iter().any(|disk| disk.client == client.name)
                || config.vms.iter().any(|vm| vm.client == client.name)
        };
        let clients = config.clients.iter().map(|client| settings(client, usual, is_guest(client)));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let reached = reached(config.listen.nvme_tcp);
        let open = clients
            .iter()
            .find(|client| matches!(client.who, Who::Host(_)) && client.secret.is_none());
        if let (Some(address), Some(client)) = (reached, open) {
            return Err(Error::new(format!(
                "client '{}' needs a secret_file, because other hosts reach listen.nvme_tcp {address}; \
                 make one with nvme gen-dhchap-key",
                client.name
            )));
        }
        let blocks = config.blocks.iter().map(|block| {
            if block.size_bytes == 0 || block.size_bytes % PAGE_BYTES as u64 != 0 {
                let line = "size must be a multiple of 4096 bytes and not 0";
                return Err(Error::new(format!("block '{}': {line}", block.name)));
            }
            if ![512, 4096].contains(&block.block_bytes) {
                let line = "block_bytes must be 512 or 4096";
                return Err(Error::new(format!("block '{}': {line}", block.name)));
            }
            Ok(BlockSettings {
                name: block.name.clone(),
                client: block.client.clone(),
                bytes: block.size_bytes,
                block_bytes: block.block_bytes as u32,
                reserve: block.reserve,
            })
        });
        let policy = Policy {
            users: config.unnamed.users,
            hosts: config.unnamed.hosts,
            exposed: reached.is_some(),
            target_pages: pages(config.unnamed.target_bytes),
            limits: usual,
            grace_s: config.unnamed.grace_s,
        };
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        let checked = spillway_directory::check(&clients, &blocks);
        checked.map_err(|error| Error::new(error.to_string()))?;
        Ok(Self { clients, blocks, policy })
    }
}

/// Every listener that other hosts can reach must be able to identify its clients.
fn check_listeners(config: &Config) -> Result<(), Error> {
    let listen = &config.listen;
    check_api(listen)?;
    if let Some(address) = reached(listen.nvme_tcp)
        && config.unnamed.hosts
    {
        return Err(Error::new(format!(
            "unnamed.hosts admits every host that reaches listen.nvme_tcp {address}: name the hosts as clients"
        )));
    }
    if let Some(address) = reached(listen.resp_tcp) {
        return Err(Error::new(format!(
            "listen.resp_tcp {address} is reachable from other hosts, and passwords would be sent in the clear: use listen.resp_tls"
        )));
    }
    if let Some(address) = listen.resp_tls
        && listen.tls_certificate.is_none()
    {
        return Err(Error::new(format!(
            "listen.resp_tls {address} needs tls_certificate and tls_key"
        )));
    }
    let has_tls = listen.tls_certificate.is_some() && listen.tls_clients.is_some();
    if let Some(address) = listen.nvme_tls
        && !has_tls
    {
        return Err(Error::new(format!(
            "listen.nvme_tls {address} needs tls_certificate, tls_key and tls_clients"
        )));
    }
    if let Some(address) = reached(listen.nbd_tcp)
        && !has_tls
    {
        return Err(Error::new(format!(
            "listen.nbd_tcp {address} is reachable from other hosts: it needs tls_certificate, tls_key and tls_clients"
        )));
    }
    Ok(())
}

/// The HTTP interface over TCP needs a token, which must not cross a network in the clear.
fn check_api(listen: &Listen) -> Result<(), Error> {
    let (tcp, tls) = (listen.api_tcp.map(|_| "api_tcp"), listen.api_tls.map(|_| "api_tls"));
    if let Some(setting) = tcp.or(tls)
        && listen.api_token_file.is_none()
    {
        return Err(Error::new(format!("listen.{setting} needs listen.api_token_file")));
    }
    if listen.api_read_token_file.is_some() && tcp.or(tls).is_none() {
        return Err(Error::new(
            "listen.api_read_token_file is for listen.api_tcp and listen.api_tls, and neither is set",
        ));
    }
    if let Some(address) = reached(listen.api_tcp)
        && !listen.api_tcp_guarded
    {
        return Err(Error::new(format!(
            "listen.api_tcp {address} is reachable from other hosts, and tokens would be sent in the clear: use \
             listen.api_tls, or set listen.api_tcp_guarded if a tunnel or a proxy with TLS guards it"
        )));
    }
    if let Some(address) = listen.api_tls
        && listen.tls_certificate.is_none()
    {
        return Err(Error::new(format!(
            "listen.api_tls {address} needs tls_certificate and tls_key"
        )));
    }
    Ok(())
}

/// An address that other hosts reach.
fn reached(address: Option<SocketAddr>) -> Option<SocketAddr> {
    address.filter(|it| !it.ip().is_loopback())
}

/// Each disk has a unique name, from which the names of its socket, client and files derive.
fn check_disks(config: &Config) -> Result<(), Error> {
    for (at, disk) in config.disks.iter().enumerate() {
        let error = |line: &str| Err(Error::new(format!("disk '{}': {line}", disk.name)));
        let good = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
        if !(1..=64).contains(&disk.name.len()) || !disk.name.chars().all(good) {
            return error("a name is 1 to 64 of a-z, A-Z, 0-9, and . _ @ + -");
        }
        if !config.clients.iter().any(|client| client.name == disk.client) {
            return error(&format!(
                "there is no client '{}': add a [[client]] with this name",
                disk.client
            ));
        }
        if disk.backing.is_none() {
            return error("it needs a backing file");
        }
        if disk.size_bytes % PAGE_BYTES as u64 != 0 {
            return error("size must be a multiple of 4096 bytes");
        }
        for other in &config.disks[..at] {
            if other.name == disk.name {
                return error("the name is used twice");
            }
            if other.backing == disk.backing {
                return error(&format!("disk '{}' has the same backing file", other.name));
            }
            if other.socket(&config.listen) == disk.socket(&config.listen) {
                return error(&format!("disk '{}' has the same socket", other.name));
            }
        }
    }
    Ok(())
}

/// A target in whole pages; none means no limit.
fn pages(bytes: Option<u64>) -> u64 {
    bytes.map_or(u64::MAX, |bytes| bytes / PAGE_BYTES as u64)
}

/// Reads a client's password: the first line of its file.
fn password(client: &NamedClient, error: &dyn Fn(&str) -> Error) -> Result<Secret, Error> {
    let path = client.password_file.clone().unwrap_or_default();
    let file = path.display();
    let text =
        read_secret(&path).map_err(|e| error(&format!("can't read password_file {file}: {e}")))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::of_password(line.as_bytes())),
        _ => Err(error(&format!(
            "password_file {file} is empty: create a password with openssl rand -hex 32"
        ))),
    }
}

fn settings(client: &NamedClient, usual: Limits, is_guest: bool) -> Result<ClientSettings, Error> {
    let name = &client.name;
    let error = |line: &str| Error::new(format!("client '{name}': {line}"));
    let mut known = Vec::new();
    known.extend(client.uid.map(|uid| Who::User(uid as u32)));
    known.extend(client.gid.map(|gid| Who::Group(gid as u32)));
    known.extend((!client.nqn.is_empty()).then(|| Who::Host(client.nqn.clone())));
    known.extend(client.password_file.as_ref().map(|_| Who::Password(name.clone())));
    known.extend((!client.certificate.is_empty()).then(|| Who::Name(client.certificate.clone())));
    if known.is_empty() && is_guest {
        known.push(Who::Disk(name.clone()));
    }
    let [who] = known.as_slice() else {
        return Err(error(
            "give exactly one of uid, gid, nqn, certificate and password_file, or a [[disk]] or [[vm]]",
        ));
    };
    let secret = match (&client.secret_file, who) {
        (None, Who::Password(_)) => Some(password(client, &error)?),
        (None, _) => None,
        (Some(path), Who::Host(nqn)) => {
            let file = path.display();
            let text = read_secret(path)
                .map_err(|e| error(&format!("can't read secret_file {file}: {e}")))?;
            let secret = Secret::parse(&text, nqn);
            Some(secret.map_err(|e| error(&format!("secret_file {file}: {e}")))?)
        }
        (Some(_), _) => return Err(error("secret_file is for hosts: give nqn")),
    };
    let shared = client.shared.iter().map(|text| {
        let digits: String = text.chars().filter(|&c| c != '-').collect();
        let uuid = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
        uuid.ok_or_else(|| {
            error(&format!("'{text}' in shared is not a UUID; create one with uuidgen"))
        })
    });
    Ok(ClientSettings {
        name: name.clone(),
        who: who.clone(),
        secret,
        target_pages: pages(client.target_bytes),
        floor_pages: client.floor_bytes / PAGE_BYTES as u64,
        weight: client.weight as u32,
        limits: Limits {
            connections_max: client.connections_max.map_or(usual.connections_max, |it| it as u32),
            operations_max: client.operations_max.map_or(usual.operations_max, |it| it as u32),
            bytes_max: client.bytes_max.unwrap_or(usual.bytes_max),
        },
        domain: client.domain.map(|domain| domain as u32),
        shared: shared.collect::<Result<_, _>>()?,
    })
}
