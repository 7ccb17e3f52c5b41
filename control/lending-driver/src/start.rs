//! Lending as a part of the daemon: what it needs before the sandbox, its threads, its end.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};
use spillway_api::types::LendStatus;
use spillway_api::{LendOrder, Lending as Ordered};
use spillway_directory::ClientRegistry;
use spillway_host::{Memory, Monitor};
use spillway_lending::{Epoch, HostId, Machine};
use spillway_peers::outbox::Outbox;
use spillway_peers::server::{ServerLimits, serve};
use spillway_registry::{Host, Registry, etcd, listed};
use spillway_tls::{ClientSettings, ServerSettings};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Config, Error, RegistryKind, machine_settings};
use crate::keys::{Keys, LendingTls, Tls};
use crate::lend::asks;
use crate::lend::borrower::{self, Borrower};
use crate::lend::driver::{self, Asked, Inputs, Outputs, Shared};
use crate::lend::health::PeerHealth;
use crate::lend::helper::Helper;
use crate::lend::lender::Lender;
use crate::lend::peers::Peers;
use crate::lend::status;
use crate::memory::Room;

/// Orders that wait.
const ORDERS_MAX: usize = 16;
/// Time between two looks whether all has been given back.
const LOOK: Duration = Duration::from_millis(50);

/// What is ready to start: files that are out of reach later have been read.
#[derive(Debug)]
pub struct Prepared {
    shared: Arc<Shared>,
    listener: TcpListener,
    server: ServerSettings,
    client: ClientSettings,
    registry: Registry,
    own: Host,
    messages: mpsc::Receiver<spillway_lending::Event>,
    orders: mpsc::Receiver<Asked>,
    asked: mpsc::Sender<Asked>,
}

/// Lending, running. Its threads end when this is dropped.
#[derive(Debug)]
pub struct Lending {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    handle: Arc<Handle>,
}

/// Lending for the HTTP interface.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    asked: mpsc::Sender<Asked>,
}

impl Prepared {
    /// Gets ready. Loans that the store kept are taken up.
    ///
    /// # Errors
    /// There are no keys, or a setting can't be used.
    pub fn new(
        config: &Config,
        keys: &Keys,
        (client_registry, room): (&Arc<ClientRegistry>, Room),
        listener: TcpListener,
        blocks_nqn: String,
        helper: Option<Helper>,
    ) -> anyhow::Result<Self> {
        let (tls, lending) = lending_tls(keys)?;
        let (host, client) = (lending.host.clone(), lending.client.clone());
        let lender = Lender::new(config, client_registry.clone(), room, blocks_nqn);
        if !config.lend.lends() {
            super::free_kept(client_registry);
        }
        let settings = borrower_settings(config, lending, keys)?;
        let (peers, messages) = Peers::new(host.clone());
        let machine = machine_settings(config)?;
        let (epoch, seed) = (Epoch(random()?), random()?);
        let machine =
            Machine::new(host.clone(), epoch, seed, machine, lender.kept(), Duration::ZERO);
        let (asked, orders) = mpsc::channel(ORDERS_MAX);
        let own = own_host(config, &host);
        let peers = Arc::new(peers);
        let answer = Duration::from_millis(config.lend.answer_ms);
        let health = Arc::new(PeerHealth::new(peers.clone(), answer));
        let registry = registry(config, &host, &client, health.clone())?;
        let borrower = Borrower::new(settings, helper.map(Arc::new), health.clone());
        let shared = Arc::new(Shared {
            machine: Mutex::new(machine),
            started: Instant::now(),
            settings: config.lend.clone(),
            peers,
            health,
            lender: Arc::new(lender),
            borrower: Arc::new(borrower),
            monitor: Monitor::open().context("can't read this host's memory")?,
            memory: Mutex::new(Memory::default()),
        });
        let server = tls.tls13.clone();
        Ok(Self { shared, listener, server, client, registry, own, messages, orders, asked })
    }

    /// What the HTTP interface asks.
    pub fn handle(&self) -> Arc<Handle> {
        Arc::new(Handle { shared: self.shared.clone(), asked: self.asked.clone() })
    }

    /// Starts.
    ///
    /// # Errors
    /// The kernel has no threads or descriptors left.
    pub fn start(self) -> anyhow::Result<Lending> {
        let (stop, stopped) = oneshot::channel();
        let handle = self.handle();
        let swaps = self.shared.settings.borrows();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lend-io")
            // Threads of devices are started by these, and are as they are.
            .on_thread_start(move || {
                if swaps {
                    open_reserve()
                }
            })
            .enable_io()
            .enable_time()
            .build()
            .context("can't start lending")?;
        self.listener.set_nonblocking(true)?;
        let thread = thread::Builder::new().name("lend".into()).spawn(move || {
            if swaps {
                open_reserve();
            }
            runtime.block_on(self.run(stopped));
            // A swapoff that does not end is left to itself.
            runtime.shutdown_background();
        })?;
        Ok(Lending { stop: Some(stop), thread: Some(thread), handle })
    }

    async fn run(self, stopped: oneshot::Receiver<()>) {
        let (results, waiting) = mpsc::unbounded_channel();
        let (own, said) = watch::channel(self.own);
        let (told, hosts) = watch::channel(Vec::new());
        let time = Duration::from_millis(self.shared.settings.answer_ms);
        let host = self.shared.peers.clone();
        let server = self.server;
        match tokio::net::TcpListener::from_std(self.listener) {
            Ok(listener) => {
                let limits = ServerLimits::default();
                tokio::spawn(async move { serve(listener, &server, host, limits).await });
            }
            Err(error) => tracing::error!("messages of other hosts can't be heard: {error}"),
        }
        tokio::spawn(self.registry.run(said, told));
        let orders = self.orders;
        let inputs = Inputs { messages: self.messages, results: waiting, orders, hosts };
        let places = driver::watch_places(self.shared.clone(), results.clone());
        let asks = asks::ask_hosts(self.shared.clone(), self.client.clone());
        let contacts = self.shared.health.clone();
        let outputs = Outputs { outbox: Outbox::new(self.client, time, contacts), results, own };
        tokio::select! {
            () = driver::run(self.shared, inputs, outputs) => {}
            () = places => {}
            () = asks => {}
            _ = stopped => {}
        }
    }
}

impl Lending {
    /// Gives back all that is borrowed, and has all that is lent given back within `limit`.
    pub async fn drain(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let shared = &self.handle.shared;
        if shared.is_at_rest() {
            return;
        }
        tracing::info!("giving back what is borrowed, and recalling what is lent");
        // Whether it was begun is seen below.
        let _ = self.handle.order(LendOrder::Drain).await;
        while !shared.is_at_rest() {
            // Borrowers have their time. What this host borrowed it needs until the last page is back: without this daemon
            // the device is gone, and programs with it.
            if Instant::now() > end && !shared.has_devices() {
                tracing::error!("not all that was lent came back in time");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        // The last words are on their way.
        tokio::time::sleep(LOOK).await;
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // It ends without a panic, which would end the process.
            let _ = thread.join();
        }
    }
}

impl Ordered for Handle {
    fn status(&self) -> LendStatus {
        status::status(&self.shared)
    }

    fn order(&self, order: LendOrder) -> oneshot::Receiver<Result<(), String>> {
        let (told, answer) = oneshot::channel();
        if let Err(error) = self.asked.try_send((order, told)) {
            let (_, told) = match error {
                mpsc::error::TrySendError::Full(asked) => asked,
                mpsc::error::TrySendError::Closed(asked) => asked,
            };
            // Whoever asked may have gone.
            let _ = told.send(Err("too many orders wait; try again".to_owned()));
        }
        answer
    }
}

/// Has the calling thread get at the memory that the kernel keeps back, so that pages can be written out when there is no
/// other.
fn open_reserve() {
    static TOLD: Once = Once::new();
    if let Err(error) = spillway_platform::swap::open_reserve() {
        TOLD.call_once(|| {
            tracing::warn!(
                "can't have a real-time priority ({error}), by which page-out gets at the kernel's reserve of memory: \
                 allow LimitRTPRIO=1, or this host may stand still when its memory is full"
            );
        });
    }
}

fn lending_tls(keys: &Keys) -> Result<(&Tls, &LendingTls), Error> {
    let tls = keys.tls.as_ref();
    tls.and_then(|tls| Some((tls, tls.lending.as_ref()?))).ok_or_else(|| {
        Error::new("lend.listen needs listen.tls_certificate, tls_key and tls_clients")
    })
}

fn borrower_settings(
    config: &Config,
    tls: &LendingTls,
    keys: &Keys,
) -> anyhow::Result<borrower::Settings> {
    let id = spillway_block::fresh_uuid()?;
    let hex = format!("{id:032x}");
    let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    Ok(borrower::Settings {
        own: tls.host.clone(),
        lend: config.lend.clone(),
        tls: tls.client.clone(),
        host_nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"),
        dir: config.listen.dir.clone().unwrap_or_else(|| PathBuf::from("/run/spillway")),
        secret: Arc::clone(&keys.lend_secret),
    })
}

/// This host as others find it.
fn own_host(config: &Config, host: &HostId) -> Host {
    let lend = &config.lend;
    let nowhere = || ([0, 0, 0, 0], 0).into();
    Host {
        name: host.as_str().to_owned(),
        address: lend.address.or(lend.listen).unwrap_or_else(nowhere),
        rack: lend.rack.clone(),
        spare_bytes: 0,
    }
}

fn registry(
    config: &Config,
    own: &HostId,
    tls: &ClientSettings,
    contacts: Arc<PeerHealth>,
) -> Result<Registry, Error> {
    let lend = &config.lend;
    let time = Duration::from_millis(lend.answer_ms);
    if lend.registry == RegistryKind::Etcd {
        let endpoints = lend.etcd.iter().map(|endpoint| endpoint.parse());
        return Ok(Registry::Etcd(etcd::Settings {
            endpoints: endpoints
                .collect::<Result<_, spillway_registry::Error>>()
                .map_err(|error| Error::new(format!("lend.etcd: {error}")))?,
            prefix: lend.etcd_prefix.clone(),
            lease_s: lend.etcd_lease_s,
            tls: tls.clone(),
            time,
        }));
    }
    let others = config.peers.iter().filter(|peer| !peer.name.eq_ignore_ascii_case(own.as_str()));
    let host = |peer: &crate::config::Peer| {
        Some(Host {
            name: peer.name.to_ascii_lowercase(),
            address: peer.address?,
            rack: peer.rack.clone(),
            spare_bytes: 0,
        })
    };
    Ok(Registry::Static(listed::List {
        hosts: others.filter_map(host).collect(),
        tls: tls.clone(),
        interval: Duration::from_millis(lend.registry_ms),
        time,
        contacts,
    }))
}

fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
