//! Other hosts: who there are, and what they say.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spillway_lending::{Event, HostId, Message, Peer};
use spillway_peers::outbox::Outbox;
use spillway_peers::server::{self, Refusal};
use spillway_registry::Host;
use tokio::sync::mpsc;

/// Messages that wait to be looked at.
const WAITING_MAX: usize = 1024;

/// Hosts that are remembered, those that have gone included.
const SEEN_MAX: usize = 4 * spillway_registry::HOSTS_MAX;

/// Has messages sent to other hosts. Whether they arrive is not asked.
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

/// What is known of other hosts, and the way of their messages to the driver.
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
    /// All that were ever seen: a registry that forgets a host ends none of its loans.
    addresses: HashMap<String, SocketAddr>,
}

impl Peers {
    /// Nobody is known yet. What they say comes out of the channel.
    pub fn new(own: HostId) -> (Self, mpsc::Receiver<Event>) {
        let (events, waiting) = mpsc::channel(WAITING_MAX);
        let peers = Self { own, known: Mutex::default(), spare_bytes: AtomicU64::new(0), events };
        (peers, waiting)
    }

    /// Takes what the registry says; the same for the state machine.
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

    /// Where a host takes messages.
    pub fn address(&self, host: &HostId) -> Option<SocketAddr> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.addresses.get(host.as_str()).copied()
    }

    /// The hosts of the registry.
    pub fn hosts(&self) -> Vec<Host> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).hosts.clone()
    }

    /// Sets what this host says that it can spare.
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
