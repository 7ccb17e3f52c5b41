//! Checks the settings of lending against each other.

use std::time::Duration;

use spillway_fanout::BackupFile;
use spillway_lending::{Backup, HostId, Mode, Roles, Settings, Shareable};

use super::file::Error;
use super::values::{Config, Lend, LendRoles, Listen, MemoryLock, RegistryKind};

/// The state machine's settings.
///
/// # Errors
/// The settings contradict each other.
pub fn machine_settings(config: &Config) -> Result<Settings, Error> {
    let lend = &config.lend;
    let slabs = |bytes: u64| bytes / lend.slab_bytes.max(1);
    let few = |slabs: u64| u32::try_from(slabs).unwrap_or(u32::MAX);
    // A host that may only borrow keeps all of its memory.
    let all = (lend.roles == LendRoles::Borrow).then_some(u64::MAX);
    let shareable = all.or(lend.reserve_bytes).map_or(Shareable::Dynamic, Shareable::Reserve);
    let permille = |percent: spillway_manager::Percent| percent.of(1000) as u32;
    let settings = Settings {
        upper_permille: permille(lend.upper),
        lower_permille: permille(lend.lower),
        dwell: Duration::from_millis(lend.dwell_ms),
        shareable,
        roles: if lend.roles == LendRoles::Both { Roles::Both } else { Roles::Single },
        backup: lend.backup,
        mode: lend.mode,
        slab_bytes: lend.slab_bytes,
        file_slabs: lend.backup_file.as_ref().map_or(0, |_| slabs(lend.backup_bytes)),
        device_slabs_min: few(slabs(lend.device_min_bytes).max(1)),
        device_slabs_max: few(slabs(lend.device_max_bytes)),
        devices_max: lend.devices_max as u32,
        answer_timeout: Duration::from_millis(lend.answer_ms),
        retry: Duration::from_secs(lend.retry_s),
        lease: Duration::from_secs(lend.lease_s),
        lease_margin: Duration::from_secs(lend.lease_margin_s),
        recall_deadline: Duration::from_secs(lend.recall_s),
        ..Settings::default()
    };
    settings.check().map_err(|error| Error::new(format!("lend.{error}")))?;
    Ok(settings)
}

/// Checks `[lend]`, and the other settings that it needs.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(config: &Config) -> Result<(), Error> {
    let Config { lend, listen, .. } = config;
    check_peers(config)?;
    if !lend.is_on() {
        return Ok(());
    }
    machine_settings(config)?;
    let wrong = |line: &str| Err(Error::new(line));
    if lend.listen.is_none() {
        return wrong("lend.roles needs lend.listen, the address for messages of other hosts");
    }
    if !has_tls(listen) {
        return wrong("lend.listen needs listen.tls_certificate, tls_key and tls_clients");
    }
    let has_data = listen.nvme_tls.is_some() || listen.nvme_tcp.is_some();
    if lend.lends() && !has_data {
        return wrong(
            "lend.roles: a lender needs listen.nvme_tls (or listen.nvme_tcp for direct mode)",
        );
    }
    let data = listen.nvme_tls.or(listen.nvme_tcp);
    if lend.lends()
        && lend.data_address.is_none()
        && data.is_some_and(|it| it.ip().is_unspecified())
    {
        return wrong(
            "lend.data_address: set the address at which borrowers reach this host, because listen.nvme_tls is any address",
        );
    }
    check_registry(lend, config.peers.is_empty())?;
    if lend.borrows() && config.process.lock_memory == MemoryLock::Off {
        return wrong(
            "lend.roles: a borrower must not wait for its own pages; process.lock_memory can't be \"off\"",
        );
    }
    if lend.backup == Backup::File && lend.backup_file.is_none() {
        return wrong("lend.backup = \"file\" needs lend.backup_file and lend.backup_size");
    }
    let is_disk = |path: &std::path::Path| BackupFile::is_disk(path);
    if lend.backup_file.as_deref().is_some_and(|path| path.starts_with("/dev") && !is_disk(path)) {
        return wrong(
            "lend.backup_file: there is no such disk; a file belongs on a disk's file system",
        );
    }
    if lend.devices_max > 1 && lend.backup_file.as_deref().is_some_and(is_disk) {
        return wrong(
            "lend.backup_file is a disk, which serves one device: set lend.devices_max = 1",
        );
    }
    if lend.mode == Mode::Direct && lend.borrows() && lend.backup != Backup::None {
        return wrong(
            "lend.mode = \"direct\" has no backup: set lend.backup = \"none\", or use \"fan-out\"",
        );
    }
    Ok(())
}

fn has_tls(listen: &Listen) -> bool {
    listen.tls_certificate.is_some() && listen.tls_key.is_some() && listen.tls_clients.is_some()
}

fn check_registry(lend: &Lend, without_peers: bool) -> Result<(), Error> {
    match lend.registry {
        RegistryKind::Static if without_peers => {
            Err(Error::new("lend.registry = \"static\" needs a [[peer]]"))
        }
        RegistryKind::Static => Ok(()),
        RegistryKind::Etcd => {
            let unspecified = lend.listen.is_some_and(|address| address.ip().is_unspecified());
            if unspecified && lend.address.is_none() {
                return Err(Error::new(
                    "lend.address: set the address at which other hosts reach this host, because lend.listen is any address",
                ));
            }
            if lend.etcd.is_empty() || lend.etcd_prefix.is_empty() {
                return Err(Error::new(
                    "lend.registry = \"etcd\" needs lend.etcd and lend.etcd_prefix",
                ));
            }
            for endpoint in &lend.etcd {
                let parsed = endpoint.parse::<spillway_registry::etcd::Endpoint>();
                parsed.map_err(|error| Error::new(format!("lend.etcd: {error}")))?;
            }
            Ok(())
        }
    }
}

fn check_peers(config: &Config) -> Result<(), Error> {
    for (at, peer) in config.peers.iter().enumerate() {
        let name = HostId::new(&peer.name).map_err(|error| Error::new(format!("peer: {error}")))?;
        let error = |line: &str| Err(Error::new(format!("peer '{name}': {line}")));
        if peer.address.is_none_or(|address| address.ip().is_unspecified() || address.port() == 0) {
            return error("it needs an address, such as \"192.0.2.7:4422\"");
        }
        if config.peers[..at].iter().any(|other| other.name.eq_ignore_ascii_case(&peer.name)) {
            return error("the name is used twice");
        }
    }
    Ok(())
}
