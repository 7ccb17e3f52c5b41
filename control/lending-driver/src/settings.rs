//! What the operator wants of lending.

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
    /// Where other hosts send messages for this one.
    pub address: SocketAddr,
    /// Hosts of one rack fail together.
    pub rack: String,
    /// Whether this host may lend.
    pub lends: bool,
    /// Whether this host may borrow.
    pub borrows: bool,
    /// Time between two looks at this host's memory.
    pub period: Duration,
    /// What memory in use is.
    pub used: UsedBy,
    /// The state machine's upper threshold as it was set: it is shown to operators.
    pub upper: Percent,
    /// The lower one.
    pub lower: Percent,
    /// What a borrowed device is for.
    pub device: DeviceUse,
    /// Directory of sockets of devices.
    pub socket_dir: PathBuf,
    /// Where local copies lie: a disk, or what the names of files begin with.
    pub backup_file: Option<PathBuf>,
    /// Longest that a request for pages may take.
    pub request_timeout: Duration,
    /// What the kernel must keep free while this host swaps onto borrowed memory. At most a twentieth of all memory is
    /// asked for.
    pub min_free_bytes: u64,
    /// Whether the kernel may be told so. Else it must be so already.
    pub raise_min_free: bool,
    /// What must stay available when a device is given back.
    pub margin_bytes: u64,
    /// Whether what would be done to this host is only logged.
    pub dry_run: bool,
    /// Where borrowers reach pools.
    pub pools_at: Option<SocketAddr>,
    /// Where kernels reach devices, and the subsystem there.
    pub blocks_at: Option<(SocketAddr, String)>,
    /// Most that is lent; `u64::MAX` is no limit.
    pub capacity_bytes: u64,
    /// Most that the store takes of this host's memory.
    pub store_bytes: u64,
}

/// What memory in use is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// All but MemAvailable.
    Available,
    /// The paper's: all but free memory, buffers, cache and slab.
    Paper,
}

/// What a borrowed device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// This host swaps onto it.
    Swap,
    /// Whoever connects to its socket uses it.
    Socket,
}

/// Where other hosts are found.
#[derive(Clone, Debug)]
pub enum Discovery {
    /// All of them, this host left out.
    List {
        /// Who.
        hosts: Vec<Host>,
        /// Time from one question to the next.
        interval: Duration,
    },
    /// Those that have written themselves into etcd.
    Etcd {
        /// Members of its cluster.
        endpoints: Vec<etcd::Endpoint>,
        /// What its keys begin with.
        prefix: String,
        /// How long a host that is gone is still shown, seconds.
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
