//! The other hosts and their messages.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spillway_lending::{Event, HostId, Message, Peer};
use spillway_peers::outbox::Outbox;
use spillway_peers::server::{self, Refusal};
use spillway_registry::Host;
use tokio::sync::mpsc;

/// Most unprocessed messages.
const WAITING_MAX: usize = 1024;

/// Most recorded hosts, including those that are gone.
const SEEN_MAX: usize = 4 * spillway_registry::HOSTS_MAX;

/// Sends messages to other hosts, without delivery reports.
pub trait Messenger: Send {
    /// As [`Outbox::send`].
    ///
    /// # Errors
    /// As [`Outbox::send`].
    fn send(
        &mut self,
        name: &str,
        address: SocketAddr,
        key: String,
        body: Vec<u8>,
    ) -> Result<(), spillway_peers::Error>;
}

impl Messenger for Outbox {
    fn send(
        &mut self,
        name: &str,
        address: SocketAddr,
        key: String,
        body: Vec<u8>,
    ) -> Result<(), spillway_peers::Error> {
        Self::send(self, name, address, key, body)
    }
}

/// The known hosts, and the channel of their messages to the driver.
#[derive(Debug)]
pub struct Peers {
    own: HostId,
    known: Mutex<Known>,
    spare_bytes: AtomicU64,
    events: mpsc::Sender<Event>,
}

#[derive(Debug, Default)]
struct Known {
    /// Those of the registry.
    hosts: Vec<Host>,
    /// All hosts ever seen: when the registry forgets a host, its loans continue.
    addresses: HashMap<String, SocketAddr>,
}

impl Peers {
    /// No hosts yet. Their messages arrive on the channel.
    pub fn new(own: HostId) -> (Self, mpsc::Receiver<Event>) {
        let (events, waiting) = mpsc::channel(WAITING_MAX);
        let peers = Self { own, known: Mutex::default(), spare_bytes: AtomicU64::new(0), events };
        (peers, waiting)
    }

    /// Applies the registry's hosts; returns them for the state machine.
    pub fn update(&self, hosts: &[Host]) -> Vec<Peer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for host in hosts {
            if known.addresses.len() < SEEN_MAX || known.addresses.contains_key(&host.name) {
                known.addresses.insert(host.name.clone(), host.address);
            }
        }
        known.hosts = hosts.to_vec();
        let peer = |host: &Host| {
            Some(Peer {
                host: HostId::new(&host.name).ok()?,
                rack: host.rack.clone(),
                spare_bytes: host.spare_bytes,
            })
        };
        hosts.iter().filter_map(peer).collect()
    }

    /// A host's address for messages.
    pub fn address(&self, host: &HostId) -> Option<SocketAddr> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.addresses.get(host.as_str()).copied()
    }

    /// The hosts of the registry.
    pub fn hosts(&self) -> Vec<Host> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).hosts.clone()
    }

    /// Sets the spare memory that this host reports.
    pub fn set_spare_bytes(&self, bytes: u64) {
        self.spare_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl server::Host for Peers {
    fn knows(&self, peer: &str) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.addresses.contains_key(peer)
    }

    fn name(&self) -> &str {
        self.own.as_str()
    }

    fn message(&self, _: &str, body: &[u8]) -> Result<(), Refusal> {
        let message =
            Message::decode(body).map_err(|error| Refusal::Unreadable(error.to_string()))?;
        self.events.try_send(Event::Received(message)).map_err(|_| Refusal::Busy)
    }

    fn spare_bytes(&self) -> u64 {
        self.spare_bytes.load(Ordering::Relaxed)
    }
}
