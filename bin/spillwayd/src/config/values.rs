//! The settings as the daemon uses them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use spillway_directory::Users;
use spillway_guests::agent::Profile;
use spillway_lending::{Backup, Mode};
use spillway_manager::{Percent, Policy, SmartAlloc, Utility};
use spillway_types::{Lifetime, PAGE_BYTES};
use spillway_vhost_user_blk::Kind;

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub store: Store,
    pub listen: Listen,
    pub resp: Resp,
    pub process: Process,
    pub memory: Memory,
    pub unnamed: Unnamed,
    pub clients: Vec<NamedClient>,
    pub blocks: Vec<Block>,
    pub disks: Vec<Disk>,
    pub lend: Lend,
    pub peers: Vec<Peer>,
    pub sections: Sections,
    pub vms: Vec<Vm>,
}

/// The store.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub capacity: Capacity,
    pub compress: bool,
    pub dedup: bool,
    pub disk: Option<PathBuf>,
    pub disk_capacity_bytes: u64,
    pub disk_timeout_ms: u64,
}

/// How much memory the store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the memory of the machine or the cgroup.
    Percent(u8),
}

impl Default for Capacity {
    fn default() -> Self {
        Self::Percent(25)
    }
}

/// The daemon's listeners; none if it does not listen.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    pub dir: Option<PathBuf>,
    pub ring: Option<PathBuf>,
    pub programs: Option<PathBuf>,
    pub nbd: Option<PathBuf>,
    pub nbd_tcp: Option<SocketAddr>,
    pub nbd_tcp_name: String,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_clients: Option<PathBuf>,
    pub nvme_tcp: Option<SocketAddr>,
    pub nvme_tcp_name: String,
    pub nvme_tcp_secret_file: Option<PathBuf>,
    pub nvme_tls: Option<SocketAddr>,
    pub nvme_data_timeout_s: u64,
    pub resp: Option<PathBuf>,
    pub resp_tcp: Option<SocketAddr>,
    pub resp_tcp_name: String,
    pub resp_tls: Option<SocketAddr>,
    pub api: Option<PathBuf>,
    pub api_tcp: Option<SocketAddr>,
    pub api_tcp_guarded: bool,
    pub api_tls: Option<SocketAddr>,
    pub api_token_file: Option<PathBuf>,
    pub api_read_token_file: Option<PathBuf>,
}

impl Listen {
    /// A socket's path. A relative one lies in [`Self::dir`].
    pub fn path(&self, path: &Path) -> PathBuf {
        self.dir.as_deref().unwrap_or(Path::new("/")).join(path)
    }
}

/// The kind of RESP's databases.
#[derive(Clone, Debug)]
pub struct Resp {
    pub lifetime: Lifetime,
    pub stall_timeout_s: u64,
}

impl Default for Resp {
    fn default() -> Self {
        Self { lifetime: Lifetime::Persistent, stall_timeout_s: 0 }
    }
}

/// Settings of the process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub lock_memory: MemoryLock,
    pub sandbox: bool,
    pub keeper: bool,
    /// Name or number of the user to which root changes; empty: none.
    pub user: String,
}

/// Whether memory is locked against paging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLock {
    /// If the limits allow it.
    #[default]
    Auto,
    /// Always: otherwise the daemon does not start.
    On,
    /// Never.
    Off,
}

/// The memory manager.
#[derive(Clone, Debug)]
pub struct Memory {
    pub policy: String,
    pub p: Percent,
    pub threshold_bytes: Option<u64>,
    pub miss_us: u64,
    pub fairness_percent: u64,
    pub programs: Option<Capacity>,
    pub interval_ms: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            policy: String::new(),
            p: SmartAlloc::default().p,
            threshold_bytes: None,
            miss_us: Utility::default().miss_us.into(),
            fairness_percent: Utility::default().fairness_percent.into(),
            programs: None,
            interval_ms: 1000,
        }
    }
}

impl Memory {
    /// The policy that these settings name.
    pub fn policy(&self) -> Policy {
        let threshold_pages = self.threshold_bytes.map(|bytes| bytes / PAGE_BYTES as u64);
        let smart = Policy::SmartAlloc(SmartAlloc { p: self.p, threshold_pages });
        let (miss_us, fairness_percent) = (self.miss_us as u32, self.fairness_percent as u32);
        let utility = Utility { miss_us, fairness_percent, ..Utility::default() };
        let utility = Policy::Utility(utility);
        [Policy::Greedy, Policy::StaticAlloc, Policy::ReconfStatic, smart, utility]
            .into_iter()
            .find(|policy| policy.name() == self.policy)
            .unwrap_or_default()
    }
}

/// Unnamed clients, and the defaults of named ones.
#[derive(Clone, Debug)]
pub struct Unnamed {
    pub users: Users,
    pub hosts: bool,
    pub target_bytes: Option<u64>,
    pub connections_max: u64,
    pub operations_max: u64,
    pub bytes_max: u64,
    pub grace_s: u64,
}

impl Default for Unnamed {
    fn default() -> Self {
        Self {
            users: Users::Same,
            hosts: false,
            target_bytes: None,
            connections_max: 0,
            operations_max: 0,
            bytes_max: 0,
            grace_s: 0,
        }
    }
}

/// A client by name.
#[derive(Clone, Debug, Default)]
pub struct NamedClient {
    pub name: String,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub nqn: String,
    pub certificate: String,
    pub secret_file: Option<PathBuf>,
    pub password_file: Option<PathBuf>,
    pub target_bytes: Option<u64>,
    pub floor_bytes: u64,
    pub weight: u64,
    pub connections_max: Option<u64>,
    pub operations_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub domain: Option<u64>,
    pub shared: Vec<String>,
}

/// A block device by name.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub name: String,
    pub client: String,
    pub size_bytes: u64,
    pub block_bytes: u64,
    pub reserve: bool,
}

/// A tmem disk by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub name: String,
    pub client: String,
    pub kind: Kind,
    pub size_bytes: u64,
    pub backing: Option<PathBuf>,
    pub socket: Option<PathBuf>,
    pub gid: Option<u64>,
    pub queues: u64,
    pub disk_latency_us: u64,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            name: String::new(),
            client: String::new(),
            kind: Kind::Swap,
            size_bytes: 0,
            backing: None,
            socket: None,
            gid: None,
            queues: 0,
            disk_latency_us: 0,
        }
    }
}

impl Disk {
    /// The path of its socket.
    pub fn socket(&self, listen: &Listen) -> PathBuf {
        let usual = || PathBuf::from(format!("{}.vhost.sock", self.name));
        listen.path(&self.socket.clone().unwrap_or_else(usual))
    }
}

/// Lending memory to other hosts, and borrowing theirs.
#[derive(Clone, Debug)]
pub struct Lend {
    pub roles: LendRoles,
    pub listen: Option<SocketAddr>,
    pub address: Option<SocketAddr>,
    pub data_address: Option<SocketAddr>,
    pub rack: String,
    pub registry: RegistryKind,
    pub etcd: Vec<String>,
    pub etcd_prefix: String,
    pub etcd_lease_s: u64,
    pub registry_ms: u64,
    pub period_ms: u64,
    pub used: UsedBy,
    pub upper: Percent,
    pub lower: Percent,
    pub dwell_ms: u64,
    pub reserve_bytes: Option<u64>,
    pub capacity_bytes: Option<u64>,
    pub mode: Mode,
    pub slab_bytes: u64,
    pub device_min_bytes: u64,
    pub device_max_bytes: u64,
    pub devices_max: u64,
    pub device: DeviceUse,
    pub backup: Backup,
    pub backup_file: Option<PathBuf>,
    pub backup_bytes: u64,
    pub answer_ms: u64,
    pub request_ms: u64,
    pub retry_s: u64,
    pub lease_s: u64,
    pub lease_margin_s: u64,
    pub recall_s: u64,
    pub secret_file: Option<PathBuf>,
    pub min_free_bytes: u64,
    pub raise_min_free: bool,
    pub margin_bytes: u64,
    pub dry_run: bool,
}

impl Default for Lend {
    fn default() -> Self {
        Self {
            roles: LendRoles::Off,
            listen: None,
            address: None,
            data_address: None,
            rack: String::new(),
            registry: RegistryKind::Static,
            etcd: Vec::new(),
            etcd_prefix: String::new(),
            etcd_lease_s: 0,
            registry_ms: 0,
            period_ms: 0,
            used: UsedBy::Available,
            upper: Percent::hundredths(8000),
            lower: Percent::hundredths(6000),
            dwell_ms: 0,
            reserve_bytes: None,
            capacity_bytes: None,
            mode: Mode::FanOut,
            slab_bytes: 0,
            device_min_bytes: 0,
            device_max_bytes: 0,
            devices_max: 0,
            device: DeviceUse::Swap,
            backup: Backup::Mirror,
            backup_file: None,
            backup_bytes: 0,
            answer_ms: 0,
            request_ms: 0,
            retry_s: 0,
            lease_s: 0,
            lease_margin_s: 0,
            recall_s: 0,
            secret_file: None,
            min_free_bytes: 0,
            raise_min_free: false,
            margin_bytes: 0,
            dry_run: false,
        }
    }
}

impl Lend {
    /// Whether this host may borrow.
    pub fn borrows(&self) -> bool {
        !matches!(self.roles, LendRoles::Off | LendRoles::Lend)
    }

    /// Whether this host may lend.
    pub fn lends(&self) -> bool {
        !matches!(self.roles, LendRoles::Off | LendRoles::Borrow)
    }

    /// Whether this host lends or borrows at all.
    pub fn is_on(&self) -> bool {
        self.roles != LendRoles::Off
    }
}

/// The roles that a host may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LendRoles {
    /// Nothing.
    Off,
    /// Lend.
    Lend,
    /// Borrow.
    Borrow,
    /// One of both at a time.
    Single,
    /// Both at a time.
    Both,
}

/// Where other hosts are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryKind {
    /// In the configuration.
    Static,
    /// In etcd.
    Etcd,
}

/// How memory in use is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// Everything except MemAvailable.
    Available,
    /// The paper's definition: everything except free memory, buffers, cache and slab.
    Paper,
}

/// The use of a borrowed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// This host swaps onto it.
    Swap,
    /// A program uses it through its socket.
    Socket,
}

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub address: Option<SocketAddr>,
    pub rack: String,
}

/// Host memory reserved for guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    pub capacity_bytes: u64,
    pub dir: Option<PathBuf>,
    pub section_bytes: u64,
    pub lend_bytes: u64,
    pub gid: Option<u64>,
}

/// A guest by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    pub name: String,
    pub qmp: Option<PathBuf>,
    pub libvirt: String,
    pub libvirt_socket: Option<PathBuf>,
    pub agent: Option<PathBuf>,
    pub client: String,
    pub windows: Option<PathBuf>,
    pub ivshmem: Option<PathBuf>,
    pub boot_bytes: u64,
    pub least_bytes: Option<u64>,
    pub most_bytes: u64,
    pub reserve_bytes: u64,
    pub ready_bytes: u64,
    pub profile: Profile,
    pub auto: bool,
    pub weight: u64,
    pub resize_timeout_s: u64,
    pub offline_timeout_ms: u64,
    pub interval_ms: u64,
}

/// How a VM's size is read and changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// By QEMU's monitor, at this socket.
    Monitor(PathBuf),
    /// Through libvirt, at this socket or the usual one.
    Libvirt { domain: String, socket: Option<PathBuf> },
}

impl Vm {
    /// The path of its monitor's socket.
    pub fn qmp(&self, listen: &Listen) -> PathBuf {
        let usual = || PathBuf::from(format!("{}.qmp.sock", self.name));
        listen.path(&self.qmp.clone().unwrap_or_else(usual))
    }

    /// The interface by which its size is read and changed.
    pub fn way(&self, listen: &Listen) -> Way {
        match self.libvirt.as_str() {
            "" => Way::Monitor(self.qmp(listen)),
            domain => {
                Way::Libvirt { domain: domain.to_owned(), socket: self.libvirt_socket.clone() }
            }
        }
    }

    /// The path of its agent's channel.
    pub fn agent(&self, listen: &Listen) -> PathBuf {
        let usual = || PathBuf::from(format!("{}.agent.sock", self.name));
        listen.path(&self.agent.clone().unwrap_or_else(usual))
    }

    /// The client of its programs, and the path of their windows' channel.
    pub fn windows(&self, listen: &Listen) -> Option<(String, PathBuf)> {
        let usual = || PathBuf::from(format!("{}.windows.sock", self.name));
        let path = listen.path(&self.windows.clone().unwrap_or_else(usual));
        (!self.client.is_empty()).then(|| (self.client.clone(), path))
    }

    /// The file of its ivshmem device.
    pub fn device(&self, listen: &Listen) -> Option<PathBuf> {
        self.ivshmem.as_deref().map(|path| listen.path(path))
    }

    /// The settings of its state machine.
    pub fn settings(&self, section_bytes: u64) -> spillway_guests::Settings {
        spillway_guests::Settings {
            section_bytes,
            least_bytes: self.least_bytes.unwrap_or(self.boot_bytes),
            most_bytes: self.most_bytes,
            reserve_bytes: self.reserve_bytes,
            profile: self.profile,
            auto: self.auto,
            resize_timeout_us: self.resize_timeout_s * 1_000_000,
            offline_timeout_us: self.offline_timeout_ms * 1000,
            interval_ms: self.interval_ms as u32,
        }
    }
}
