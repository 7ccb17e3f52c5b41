//! The places of connections: who has one, and who gives way when there are too many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::Shutdown;
use spillway_types::{ConnectionSlots, Peer, SlotLimits, SlotsFull};

use crate::transport::Socket;

/// The sockets of all connections, and their places.
#[derive(Debug)]
pub struct Places(Mutex<Open>);

#[derive(Debug)]
struct Open {
    sockets: HashMap<u64, Arc<Socket>>,
    slots: ConnectionSlots,
}

impl Places {
    /// Of a server that has at most so many connections.
    pub fn new(connections_max: usize) -> Self {
        let slots = ConnectionSlots::new(SlotLimits::quarters(connections_max));
        Self(Mutex::new(Open { sockets: HashMap::new(), slots }))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection that has come. Whether another one, whose peer had not said who it is, gives way:
    /// its socket is shut, and its worker notices.
    ///
    /// # Errors
    /// There is no place.
    pub fn enter(&self, id: u64, peer: Peer, socket: &Arc<Socket>) -> Result<bool, SlotsFull> {
        let mut open = self.lock();
        let gone = open.slots.enter(id, peer)?;
        if let Some(socket) = gone.and_then(|id| open.sockets.get(&id)) {
            // It may have ended by itself.
            let _ = rustix::net::shutdown(&**socket, Shutdown::Both);
        }
        open.sockets.insert(id, Arc::clone(socket));
        Ok(gone.is_some())
    }

    /// The connection's peer was let in.
    pub fn prove(&self, id: u64) {
        self.lock().slots.prove(id);
    }

    /// The connection has ended.
    pub fn leave(&self, id: u64) {
        let mut open = self.lock();
        if open.sockets.remove(&id).is_some() {
            open.slots.leave(id);
        }
    }
}
