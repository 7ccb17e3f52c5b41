//! The operator's settings of lending.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use spillway_policy::Percent;
use spillway_registry::{Host, etcd};

/// The driver's settings. They do not change while it runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The state machine's, which the driver follows too: mode, backup, length of slabs, lease.
    pub machine: spillway_lending::Settings,
    /// The address for other hosts' messages.
    pub address: SocketAddr,
    /// Hosts of one rack fail together.
    pub rack: String,
    /// Whether this host may lend.
    pub lends: bool,
    /// Whether this host may borrow.
    pub borrows: bool,
    /// Time between two samples of this host's memory.
    pub period: Duration,
    /// How memory in use is computed.
    pub used: UsedBy,
    /// The upper threshold as configured, for operators.
    pub upper: Percent,
    /// The lower one.
    pub lower: Percent,
    /// The use of a borrowed device.
    pub device: DeviceUse,
    /// Directory of sockets of devices.
    pub socket_dir: PathBuf,
    /// The place of local copies: a disk, or the prefix of files' names.
    pub backup_file: Option<PathBuf>,
    /// Time limit of a request for pages.
    pub request_timeout: Duration,
    /// Memory that the kernel must keep free while this host swaps onto borrowed memory; at most a twentieth of all
    /// memory.
    pub min_free_bytes: u64,
    /// Whether the kernel's value may be changed. Otherwise it must be high enough already.
    pub raise_min_free: bool,
    /// Memory that must stay available when a device is returned.
    pub margin_bytes: u64,
    /// Whether actions that change this host are only logged.
    pub dry_run: bool,
    /// The address of pools for borrowers.
    pub pools_at: Option<SocketAddr>,
    /// The address and subsystem of devices for kernels.
    pub blocks_at: Option<(SocketAddr, String)>,
    /// Most lent memory; `u64::MAX` means no limit.
    pub capacity_bytes: u64,
    /// Most memory of this host that the store takes.
    pub store_bytes: u64,
}

/// What memory in use is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// Everything except MemAvailable.
    Available,
    /// The paper's definition: everything except free memory, buffers, cache and slab.
    Paper,
}

/// What a borrowed device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// This host swaps onto it.
    Swap,
    /// A program uses it through its socket.
    Socket,
}

/// The host registry.
#[derive(Clone, Debug)]
pub enum Discovery {
    /// All of them, without this host.
    List {
        /// Who.
        hosts: Vec<Host>,
        /// Time between two queries.
        interval: Duration,
    },
    /// Hosts register themselves in etcd.
    Etcd {
        /// Members of its cluster.
        endpoints: Vec<etcd::Endpoint>,
        /// Prefix of its keys.
        prefix: String,
        /// How long a host that is gone stays listed, seconds.
        lease_s: u64,
    },
}

#[cfg(test)]
pub mod tests {
    use spillway_lending::Backup;

    use super::*;

    pub const SLAB_BYTES: u64 = 1 << 20;

    /// Borrows and lends, one at a time, without backup.
    pub fn settings() -> Settings {
        Settings {
            machine: spillway_lending::Settings {
                backup: Backup::None,
                slab_bytes: SLAB_BYTES,
                device_slabs_min: 1,
                ..spillway_lending::Settings::default()
            },
            address: ([192, 0, 2, 9], 7000).into(),
            rack: String::new(),
            lends: true,
            borrows: true,
            period: Duration::from_secs(1),
            used: UsedBy::Available,
            upper: Percent::hundredths(8000),
            lower: Percent::hundredths(6000),
            device: DeviceUse::Swap,
            socket_dir: "/run/spillway".into(),
            backup_file: None,
            request_timeout: Duration::from_secs(2),
            min_free_bytes: 1 << 20,
            raise_min_free: true,
            margin_bytes: 16 << 20,
            dry_run: false,
            pools_at: Some(([192, 0, 2, 9], 4420).into()),
            blocks_at: Some((([192, 0, 2, 9], 4421).into(), "nqn.2014-08.test:own".to_owned())),
            capacity_bytes: u64::MAX,
            store_bytes: 64 << 20,
        }
    }
}
