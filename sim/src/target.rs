//! The real target, its connections and its store, in the simulated network.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_block::NoExports;
use spillway_nvme_tcp::{Config, Connection, Output, Target, Waker};
use spillway_store::{ClientConfig, Store};
use spillway_types::{Access, Admitted, ClientId, Denied, Identity, Limits, PoolId};
use spillway_wire::auth::Secret;

use crate::network::{Network, Pipe, Side};

/// The host name by which the target knows its clients.
pub const HOST: &str = "nqn.2026-11.io.spillway:sim";
/// The clients' secret, when they must authenticate.
pub const SECRET: &str = "DHHC-1:00:T3sGex2wgWEj1SC9bd2ZY6tYia8IeXymwMwVq4fMIZ9vbP05:";
/// Memory of the store.
const CAPACITY_BYTES: u64 = 4 << 20;

/// Admits one host.
#[derive(Debug)]
struct OneHost {
    client: ClientId,
    authenticates: bool,
}

impl Access for OneHost {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        match who {
            Identity::Host { nqn: HOST } => Ok(Admitted {
                client: self.client,
                limits: Limits { connections_max: 64, operations_max: 256, bytes_max: 1 << 20 },
            }),
            _ => Err(Denied::Unknown),
        }
    }

    fn leave(&self, _client: ClientId) {}

    fn host_secret(&self, nqn: &str, secret: &mut [u8; 64]) -> Option<usize> {
        let known = Secret::parse(SECRET).ok().filter(|_| self.authenticates)?;
        let (key, bytes) = known.key_of(nqn);
        *secret = key;
        Some(bytes)
    }
}

struct Served {
    connection: Connection,
    input: Vec<u8>,
    output: Output,
    woken: Arc<AtomicBool>,
}

/// A process that serves a store. It can be stopped, ended and restarted.
pub struct Server {
    store: Arc<Store>,
    client: ClientId,
    target: Arc<Target>,
    served: BTreeMap<Pipe, Served>,
    authenticates: bool,
    /// Whether the process is stopped: it reads nothing and does not check the clock.
    stopped: bool,
    /// Whether the process has ended.
    down: bool,
    /// Why it last closed a connection.
    error: Option<String>,
}

impl Server {
    /// A target with an empty store.
    pub fn new(authenticates: bool) -> Self {
        let (store, client) = empty_store();
        let target = start(&store, client, authenticates);
        Self {
            store,
            client,
            target,
            served: BTreeMap::new(),
            authenticates,
            stopped: false,
            down: false,
            error: None,
        }
    }

    /// Why it last closed a connection.
    pub fn error(&self) -> &str {
        self.error.as_deref().unwrap_or("none")
    }

    /// Whether it accepts connections.
    pub const fn is_up(&self) -> bool {
        !self.down
    }

    /// Identifies its store: the high half of the identities of the store's pools.
    pub fn identity(&self) -> u64 {
        (self.store.identity(PoolId(0)) >> 64) as u64
    }

    /// The target.
    pub const fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Accepts a connection.
    pub fn accept(&mut self, pipe: Pipe, now_us: u64) {
        let woken = Arc::new(AtomicBool::new(false));
        let waker: Waker = {
            let woken = Arc::clone(&woken);
            Arc::new(move || woken.store(true, Ordering::Relaxed))
        };
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let connection =
            Connection::new(Arc::clone(&self.target), local, None, now_us / 1000, waker);
        let served = Served { connection, input: Vec::new(), output: Output::default(), woken };
        self.served.insert(pipe, served);
    }

    /// Handles received bytes. A stopped process finds them when it continues.
    pub fn receive(&mut self, network: &mut Network, pipe: Pipe, bytes: &[u8]) {
        let Some(served) = self.served.get_mut(&pipe) else { return };
        served.input.extend_from_slice(bytes);
        if !self.stopped {
            self.serve(network, pipe);
        }
    }

    /// Handles the end of a connection. All bytes sent before were handled.
    pub fn closed(&mut self, network: &mut Network, pipe: Pipe) {
        if self.stopped {
            // The process sees the end after the bytes, when it continues: here at the next check.
            let at_us = network.now_us() + 1_000;
            network.schedule(at_us, crate::network::Event::Closed(pipe, Side::Target));
            return;
        }
        self.served.remove(&pipe);
        self.look(network);
    }

    /// Checks the clock, and connections that were woken.
    pub fn look(&mut self, network: &mut Network) {
        if self.stopped || self.down {
            return;
        }
        let pipes: Vec<Pipe> = self.served.keys().copied().collect();
        for pipe in pipes {
            self.serve(network, pipe);
        }
    }

    fn serve(&mut self, network: &mut Network, pipe: Pipe) {
        let now_ms = network.now_us() / 1000;
        let Some(served) = self.served.get_mut(&pipe) else { return };
        let mut open = true;
        loop {
            let late = served.connection.deadline_ms(now_ms).is_some_and(|at_ms| at_ms <= now_ms);
            let mut taken = Ok(0);
            if served.woken.swap(false, Ordering::Relaxed) || late {
                taken = served.connection.poll(now_ms, &mut served.output).map(|()| 0);
            }
            if taken.is_ok() {
                taken = served.connection.receive(now_ms, &served.input, &mut served.output);
            }
            network.send(pipe, Side::Client, served.output.pending());
            let sent = served.output.pending().len();
            served.output.sent(sent);
            match taken {
                Ok(0) if sent == 0 => break,
                Ok(taken) => drop(served.input.drain(..taken)),
                Err(error) => {
                    self.error = Some(error.to_string());
                    open = false;
                    break;
                }
            }
        }
        if !open {
            network.close(pipe, Side::Target);
            self.served.remove(&pipe);
        }
    }

    /// Stops the process for a while, like SIGSTOP.
    pub const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Ends the process, and keeps its store for the next one or not.
    pub fn end(&mut self, network: &mut Network, keep: bool) {
        self.served.clear();
        network.end_all();
        self.down = true;
        if !keep {
            (self.store, self.client) = empty_store();
        }
        self.target = start(&self.store, self.client, self.authenticates);
    }

    /// Continues or restarts the process.
    pub fn go_on(&mut self, network: &mut Network) {
        self.stopped = false;
        self.down = false;
        self.look(network);
    }
}

impl core::fmt::Debug for Server {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Server").field("identity", &self.identity()).finish_non_exhaustive()
    }
}

fn empty_store() -> (Arc<Store>, ClientId) {
    let store = Store::open(spillway_store::Config::embedded(CAPACITY_BYTES))
        .expect("memory for a small store");
    let client = store.add_client(ClientConfig::default()).expect("a first client");
    (Arc::new(store), client)
}

fn start(store: &Arc<Store>, client: ClientId, authenticates: bool) -> Arc<Target> {
    let access = Arc::new(OneHost { client, authenticates });
    Target::new(Arc::clone(store), access, Arc::new(NoExports), Config::default())
        .expect("a configuration that can be met")
}
