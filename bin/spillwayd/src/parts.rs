//! Assembles the daemon's parts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::mm::MlockAllFlags;
use spillway_api::types::Dashboard;
use spillway_api::{Daemon, ReloadOutcome, configure_policy, described_policy};
use spillway_directory::ClientRegistry;
use spillway_history::{Bounds, History};
use spillway_host::Limits;
use spillway_manager::Manager;
use spillway_vhost_user_blk::Disk;
use tokio::sync::{mpsc, watch};

use crate::arguments::COMMIT;
use crate::config::{self, Clients, Config, Listen};
use crate::descriptors::ConnectionBounds;
use crate::frontends::{Measured, Secrets};
use crate::kept::{self, Inherited};
use crate::keys::{Keys, Tls};
use crate::lend::helper::{Helper, Verb};
use crate::listeners::Listeners;
use crate::memory::{self, Memory};
use crate::metrics::{self, Facts};
use crate::process::ProcessFiles;
use crate::{capacity, disks, hardening, lend, store_disk, vm, warnings};

/// All running parts.
pub struct Parts {
    pub config: Config,
    /// The machine's memory at the start: the sandbox hides its files later.
    pub limits: Limits,
    pub client_registry: Arc<ClientRegistry>,
    pub listeners: Listeners,
    /// Most connections of each listener.
    pub bounds: ConnectionBounds,
    pub daemon: Arc<Daemon>,
    /// Requests of the HTTP interface to reload the configuration.
    pub reloads: mpsc::Receiver<ReloadOutcome>,
    pub secrets: Secrets,
    /// The parts of the front ends that the metrics read, once they have started.
    pub measured: Arc<OnceLock<Measured>>,
    /// In the order of the configuration.
    pub disks: Vec<Arc<Disk>>,
    /// Lending, until it is started.
    pub lending: Option<spillway_lending_driver::Prepared>,
    /// Guests that are resized, until their threads are started.
    pub vms: Option<vm::Prepared>,
    /// Keys and certificates, which a reload reads again on another thread.
    pub keys: Arc<Mutex<Keys>>,
}

impl Parts {
    /// Opens everything, and takes over what an earlier daemon left.
    ///
    /// # Errors
    /// A part can't be opened.
    pub fn open(
        config: Config,
        inherited: Inherited,
        helper: Option<Helper>,
        bounds: ConnectionBounds,
    ) -> anyhow::Result<Self> {
        let (started, started_ms) = (Instant::now(), unix_ms());
        let clients = Clients::new(&config)?;
        let keys = Keys::read(&config, &clients.clients)?;
        let limits = Limits::read();
        for line in warnings::of(&config, &limits) {
            tracing::warn!("{line}");
        }
        let secrets = Secrets::new(&config.listen, &keys)?;
        let own_bytes = capacity::bytes(config.store.capacity, &limits)?;
        let lent_bytes = config.sections.lend_bytes;
        capacity::check_lent(lent_bytes, own_bytes)?;
        let program_pages = capacity::program_pages(config.memory.programs, &limits)?;
        match store_disk::check(&config.store) {
            // Its file is open: a disk that fails now is no reason to lose the values in memory.
            Err(error) if memory::has_disk(&inherited) => {
                tracing::error!("{error}; the store continues with its present file");
            }
            other => other?,
        }
        // A kept store has its devices already.
        if inherited.kept.is_empty() {
            capacity::check_reserved(&clients.blocks, own_bytes)?;
        }
        let mut listeners = Listeners::bind(&config, inherited.sockets)?;
        let room = memory::Room { own_bytes, lent_bytes };
        let memory = Memory::take_up(&config.store, room, inherited.kept)?;
        let room = memory.room;
        store_disk::warn_of_room(&config.store, &memory.store);
        let client_registry =
            ClientRegistry::open(Arc::new(memory.store), memory.journal, clients.policy)?;
        let changes =
            client_registry.configure(&clients.clients, &clients.blocks, clients.policy)?;
        // Of a new store each client is new.
        for line in changes.iter().filter(|_| client_registry.restarts() > 0) {
            tracing::info!("{line}");
        }
        let client_registry = Arc::new(client_registry);
        let memory = &config.memory;
        let (policy, interval_ms) =
            configure_policy(&client_registry, memory.policy(), memory.interval_ms)?;
        if policy != memory.policy() || interval_ms != memory.interval_ms {
            let policy = described_policy((policy, interval_ms));
            tracing::info!("the policy that was set before the restart applies: {policy}");
        }
        let programs = Manager::of_frames(policy);
        // Before the first interval ends, programs may return that have targets from the previous daemon.
        let first_pages = (program_pages > 0).then(|| programs.first_target_pages(program_pages));
        let interval = Duration::from_millis(interval_ms);
        client_registry.set_programs_first_target(interval, first_pages);
        let disks = disks::open(&config, &client_registry)?;
        let memory_locked = lock_memory(&config, helper.as_ref())?;
        let lending = match listeners.lend.take() {
            Some(listener) => {
                let nqn = secrets.blocks_nqn();
                let own = (&client_registry, room);
                let listener = (listener, bounds.lend);
                let parts = lend::lending_parts(&config, &keys, own, listener, nqn, helper)?;
                Some(spillway_lending_driver::Prepared::new(parts)?)
            }
            None => {
                spillway_lending_driver::free_kept(&client_registry);
                None
            }
        };
        let vms = vm::Prepared::new(&config, client_registry.store(), room)?;
        let guests = vms.as_ref().map(vm::Prepared::handle);
        let process = ProcessFiles::open().ok();
        let facts =
            Facts { memory_locked, compress: config.store.compress, started, started_ms, process };
        let handle = lending.as_ref().map(spillway_lending_driver::Prepared::handle);
        let frontends = Arc::<OnceLock<Measured>>::default();
        let its_frontends = Arc::clone(&frontends);
        let measured =
            (Arc::clone(&client_registry), disks.clone(), handle.clone(), guests.clone());
        let manager = Arc::new(Mutex::new(Manager::new(policy)));
        let interval_ms = watch::Sender::new(interval_ms);
        let its_policy = (Arc::clone(&manager), interval_ms.subscribe());
        let (reload_sender, reloads) = mpsc::channel(1);
        let daemon = Arc::new(Daemon {
            client_registry: Arc::clone(&client_registry),
            manager,
            programs: Mutex::new(programs),
            program_pages: program_pages.into(),
            interval_ms,
            reloads: reload_sender,
            history: Mutex::new(History::new(Bounds::default())),
            limits: clients.policy.limits,
            commit: Some(COMMIT).filter(|commit| !commit.is_empty()),
            started,
            started_ms,
            memory_locked,
            kept_by: kept::fd_store_name(),
            dashboard: dashboard(&config.listen, &keys),
            lending: handle.map(|handle| handle as Arc<dyn spillway_api::Lending>),
            disks: Box::new(disks::Listed::new(&config, &disks)),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            guests: guests.map(|guests| guests as Arc<dyn spillway_api::Guests>),
            metrics: (
                Box::new(move || {
                    let lending = measured.2.as_deref().map(spillway_api::Lending::status);
                    let guests = measured.3.as_deref().map(spillway_api::Guests::list);
                    let policy =
                        its_policy.0.lock().unwrap_or_else(PoisonError::into_inner).policy();
                    metrics::text(
                        &measured.0,
                        &measured.1,
                        lending.as_ref(),
                        guests.as_ref(),
                        its_frontends.get(),
                        (policy, *its_policy.1.borrow()),
                        &facts,
                    )
                }),
                spillway_metrics::CONTENT_TYPE,
            ),
        });
        Ok(Self {
            config,
            limits,
            client_registry,
            listeners,
            bounds,
            daemon,
            reloads,
            secrets,
            measured: frontends,
            disks,
            keys: Arc::new(Mutex::new(keys)),
            lending,
            vms,
        })
    }
}

/// Locks memory as the configuration says. Returns whether that of the daemon is locked. A host that swaps onto borrowed
/// memory, which has a helper, must not wait for pages of its own: it needs locked memory, that of its helper too.
///
/// # Errors
/// The host needs locked memory, and locking failed.
fn lock_memory(config: &Config, helper: Option<&Helper>) -> anyhow::Result<bool> {
    let Some(helper) = helper else { return hardening::lock_memory(config.process.lock_memory) };
    let locked = hardening::try_lock(MlockAllFlags::ONFAULT)
        .and_then(|()| helper.ask(&Verb::Lock, Vec::new()));
    match locked {
        Ok(_) => Ok(true),
        Err(line) => Err(config::Error::new(format!(
            "lend.roles: a borrower must not wait for its own pages: {line}, or only lend (lend.roles = \"lend\")"
        ))
        .into()),
    }
}

/// The dashboard's address, as seen from this host. Inside TLS it is the name that the certificate has, if it has one.
fn dashboard(listen: &Listen, keys: &Keys) -> Dashboard {
    let path = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let inside_tls = || {
        let name = keys.tls.as_ref().and_then(Tls::name);
        listen.api_tls.map(|address| match name {
            Some(name) => format!("{name}:{}", address.port()),
            None => from_here(address),
        })
    };
    let plain = listen.api_tcp.map(from_here);
    Dashboard {
        tls: plain.is_none() && listen.api_tls.is_some(),
        address: plain.or_else(inside_tls),
        token_file: listen.api_token_file.as_ref().map(|file| path(file).display().to_string()),
    }
}

/// An address of this host as it reaches it itself.
fn from_here(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address.to_string()
}

/// The system clock, milliseconds since 1970.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}
