//! Lending as a part of the daemon: preparation before the sandbox, threads, shutdown.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use spillway_api::types::LendStatus;
use spillway_api::{LendOrder, Lending as Ordered};
use spillway_directory::ClientRegistry;
use spillway_host::Memory;
use spillway_lending::{Epoch, Event, HostId, Machine};
use spillway_peers::outbox::Outbox;
use spillway_peers::server::{ServerLimits, serve};
use spillway_registry::{Host, Registry, etcd, listed};
use spillway_serving::ConnectionCounts;
use spillway_tls::{ClientSettings, ServerSettings};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::asks;
use crate::borrower::Borrower;
use crate::driver::{self, Asked, Inputs, Outputs};
use crate::error::Error;
use crate::health::PeerHealth;
use crate::kernel::Kernel;
use crate::lender::{Lender, free_kept};
use crate::peers::Peers;
use crate::settings::{Discovery, Settings};
use crate::shared::Shared;
use crate::status;
use crate::transport::Transport;

/// Most waiting orders.
const ORDERS_MAX: usize = 16;
/// Interval of the check whether everything was returned.
const LOOK: Duration = Duration::from_millis(50);

/// The parts of lending.
#[derive(Debug)]
pub struct LendingParts {
    /// This host's name in its certificate.
    pub host: HostId,
    /// The operator's settings.
    pub settings: Settings,
    /// The host registry.
    pub discovery: Discovery,
    /// The client registry of the store that lends.
    pub client_registry: Arc<ClientRegistry>,
    /// This host's kernel.
    pub kernel: Arc<dyn Kernel>,
    /// The transport to lenders.
    pub transport: Arc<dyn Transport>,
    /// The listener for other hosts' messages.
    pub listener: TcpListener,
    /// Most connections of that listener.
    pub connections_max: usize,
    /// The listener's keys.
    pub server: ServerSettings,
    /// Keys for messages to other hosts.
    pub client: ClientSettings,
}

/// Most connections of other hosts at a time, unless descriptors are short.
pub fn peer_connections_max() -> usize {
    ServerLimits::default().connections.slots.connections_max
}

/// Lending, ready to start: files that the sandbox hides have been read.
#[derive(Debug)]
pub struct Prepared {
    shared: Arc<Shared>,
    listener: TcpListener,
    connections_max: usize,
    connections: Arc<ConnectionCounts>,
    server: ServerSettings,
    client: ClientSettings,
    registry: Registry,
    own: Host,
    messages: mpsc::Receiver<Event>,
    orders: mpsc::Receiver<Asked>,
    asked: mpsc::Sender<Asked>,
}

/// Lending, running. Its threads end when this is dropped.
#[derive(Debug)]
pub struct Lending {
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) handle: Arc<Handle>,
}

/// Lending for the HTTP interface.
#[derive(Debug)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) asked: mpsc::Sender<Asked>,
}

impl Prepared {
    /// Prepares lending. Adopts loans that the store kept, or frees them if this host no longer
    /// lends.
    ///
    /// # Errors
    /// The kernel returns no random bytes.
    pub fn new(parts: LendingParts) -> Result<Self, Error> {
        let LendingParts { host, settings, client_registry, kernel, transport, client, .. } = parts;
        let own = Host {
            name: host.as_str().to_owned(),
            address: settings.address,
            rack: settings.rack.clone(),
            spare_bytes: 0,
        };
        let (shared, messages) = share(host, settings, client_registry, kernel, transport)?;
        let answer_timeout = shared.settings.machine.answer_timeout;
        let registry = registry(parts.discovery, &client, answer_timeout, shared.health.clone());
        let (asked, orders) = mpsc::channel(ORDERS_MAX);
        Ok(Self {
            shared: Arc::new(shared),
            listener: parts.listener,
            connections_max: parts.connections_max,
            connections: Arc::default(),
            server: parts.server,
            client,
            registry,
            own,
            messages,
            orders,
            asked,
        })
    }

    /// Counts of the connections of other hosts.
    pub const fn connections(&self) -> &Arc<ConnectionCounts> {
        &self.connections
    }

    /// The part that the HTTP interface uses.
    pub fn handle(&self) -> Arc<Handle> {
        Arc::new(Handle { shared: self.shared.clone(), asked: self.asked.clone() })
    }

    /// Starts.
    ///
    /// # Errors
    /// The kernel has no threads or descriptors left.
    pub fn start(self) -> Result<Lending, Error> {
        let (stop, stopped) = oneshot::channel();
        let handle = self.handle();
        let swaps = self.shared.settings.borrows;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lend-io")
            // These start the devices' threads, which inherit their scheduling.
            .on_thread_start(move || {
                if swaps {
                    open_reserve()
                }
            })
            .enable_io()
            .enable_time()
            .build()
            .map_err(Error::Start)?;
        self.listener.set_nonblocking(true)?;
        let thread = thread::Builder::new().name("lend".into()).spawn(move || {
            if swaps {
                open_reserve();
            }
            runtime.block_on(self.run(stopped));
            // A swapoff that does not end is abandoned.
            runtime.shutdown_background();
        })?;
        Ok(Lending { stop: Some(stop), thread: Some(thread), handle })
    }

    async fn run(self, stopped: oneshot::Receiver<()>) {
        let (results, waiting) = mpsc::unbounded_channel();
        let (own, said) = watch::channel(self.own);
        let (told, hosts) = watch::channel(Vec::new());
        let time = self.shared.settings.machine.answer_timeout;
        let host = self.shared.peers.clone();
        let server = self.server;
        match tokio::net::TcpListener::from_std(self.listener) {
            Ok(listener) => {
                let limits = ServerLimits::of(self.connections_max);
                let counts = self.connections;
                tokio::spawn(async move { serve(listener, &server, host, limits, counts).await });
            }
            Err(error) => tracing::error!("can't receive messages of other hosts: {error}"),
        }
        tokio::spawn(self.registry.run(said, told));
        let orders = self.orders;
        let inputs = Inputs { messages: self.messages, results: waiting, orders, hosts };
        let places = driver::watch_places(self.shared.clone(), results.clone());
        let asks = asks::ask_hosts(self.shared.clone(), self.client.clone());
        let contacts = self.shared.health.clone();
        let outbox = Box::new(Outbox::new(self.client, time, contacts));
        let outputs = Outputs { outbox, results, own };
        tokio::select! {
            () = driver::run(self.shared, inputs, outputs) => {}
            () = places => {}
            () = asks => {}
            _ = stopped => {}
        }
    }
}

impl Lending {
    /// Returns all borrowed memory, and recalls all loans, within `limit`.
    pub async fn drain(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let shared = &self.handle.shared;
        if shared.is_at_rest() {
            return;
        }
        tracing::info!("returning borrowed memory and recalling loans");
        // The loop below checks whether it started.
        let _ = self.handle.order(LendOrder::Drain).await;
        while !shared.is_at_rest() {
            // Borrowers get their recall time. This host needs its borrowed device until the last page is back: without
            // the daemon the device is gone, and so are programs with pages on it.
            if Instant::now() > end && !shared.has_devices() {
                tracing::error!("not all loans were returned in time");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        // The last messages are in flight.
        tokio::time::sleep(LOOK).await;
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // It never panics, which would abort the process.
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
            // The requester may be gone.
            let _ = told.send(Err(Error::ManyOrders.to_string()));
        }
        answer
    }
}

/// Gives the calling thread access to the kernel's memory reserve, so that pages can be written out when no other
/// memory is free.
fn open_reserve() {
    static TOLD: Once = Once::new();
    if let Err(error) = spillway_platform::swap::open_reserve() {
        TOLD.call_once(|| {
            tracing::warn!(
                "can't get a real-time priority ({error}), which gives page-out access to the kernel's memory reserve: \
                 allow LimitRTPRIO=1, or this host may stand still when its memory is full"
            );
        });
    }
}

/// Creates the shared state, and the channel of other hosts' messages. Adopts loans that the store
/// kept.
pub(crate) fn share(
    host: HostId,
    settings: Settings,
    client_registry: Arc<ClientRegistry>,
    kernel: Arc<dyn Kernel>,
    transport: Arc<dyn Transport>,
) -> Result<(Shared, mpsc::Receiver<Event>), Error> {
    if !settings.lends {
        free_kept(&client_registry);
    }
    let settings = Arc::new(settings);
    let lender = Lender::new(settings.clone(), client_registry);
    let (peers, messages) = Peers::new(host.clone());
    let (epoch, seed) = (Epoch(random()?), random()?);
    let (machine, kept) = (settings.machine.clone(), lender.kept());
    let machine = Machine::new(host.clone(), epoch, seed, machine, kept, Duration::ZERO);
    let peers = Arc::new(peers);
    let health = Arc::new(PeerHealth::new(peers.clone(), settings.machine.answer_timeout));
    let borrower = Borrower::new(host, settings.clone(), kernel.clone(), transport, health.clone());
    let shared = Shared {
        machine: Mutex::new(machine),
        started: Instant::now(),
        settings,
        peers,
        health,
        lender: Arc::new(lender),
        borrower: Arc::new(borrower),
        kernel,
        memory: Mutex::new(Memory::default()),
    };
    Ok((shared, messages))
}

fn registry(
    discovery: Discovery,
    tls: &ClientSettings,
    time: Duration,
    contacts: Arc<PeerHealth>,
) -> Registry {
    let tls = tls.clone();
    match discovery {
        Discovery::List { hosts, interval } => {
            Registry::Static(listed::List { hosts, tls, interval, time, contacts })
        }
        Discovery::Etcd { endpoints, prefix, lease_s } => {
            Registry::Etcd(etcd::Settings { endpoints, prefix, lease_s, tls, time })
        }
    }
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(std::io::Error::from)?;
    Ok(u64::from_le_bytes(bytes))
}
