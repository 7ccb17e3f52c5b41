//! The slots of connections. If all are taken, a new connection replaces an unidentified one.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::Shutdown;
use spillway_serving::{ConnectionCounts, CountedSlots, Refusal};
use spillway_types::{Peer, SlotLimits};

use crate::transport::Socket;

/// Longest wait of a new connection for the end of replaced ones.
const ENDS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The sockets of all connections, and their slots.
#[derive(Debug)]
pub struct Places {
    counts: Arc<ConnectionCounts>,
    open: Mutex<Open>,
    /// Notified when a connection ends.
    ended: Condvar,
}

#[derive(Debug)]
struct Open {
    sockets: HashMap<u64, Arc<Socket>>,
    slots: CountedSlots,
}

impl Places {
    /// The slots of a server with at most `connections_max` connections.
    pub fn new(connections_max: usize) -> Self {
        let counts = Arc::<ConnectionCounts>::default();
        let slots = CountedSlots::new(SlotLimits::quarters(connections_max), counts.clone());
        let open = Mutex::new(Open { sockets: HashMap::new(), slots });
        Self { counts, open, ended: Condvar::new() }
    }

    /// Counts of the connections.
    pub const fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }

    /// Whether a user floods the server.
    pub fn takes_pause(&self) -> bool {
        self.lock().slots.takes_pause()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a new connection. Gives the peer of the unidentified connection that is replaced, if there is
    /// one: its socket is shut down, and its worker notices that. A replaced connection ends within moments, so a new
    /// one waits for that instead of being refused.
    ///
    /// # Errors
    /// There is no free slot, or the peer opens connections too fast.
    pub fn enter(
        &self,
        id: u64,
        peer: Peer,
        socket: &Arc<Socket>,
    ) -> Result<Option<Peer>, Refusal> {
        let waits = |open: &mut Open| open.slots.waits_for_ends();
        let waited = self.ended.wait_timeout_while(self.lock(), ENDS_WAIT_MAX, waits);
        let mut open = waited.unwrap_or_else(PoisonError::into_inner).0;
        let gone = open.slots.enter(id, peer)?;
        if let Some(socket) = gone.and_then(|other| open.sockets.get(&other.number)) {
            // The peer may have closed the connection already.
            let _ = rustix::net::shutdown(&**socket, Shutdown::Both);
        }
        open.sockets.insert(id, Arc::clone(socket));
        Ok(gone.map(|gone| gone.peer))
    }

    /// Notes that the peer of a connection is identified.
    pub fn prove(&self, id: u64) {
        self.lock().slots.prove(id);
    }

    /// Frees the slot of a connection that has ended.
    pub fn leave(&self, id: u64) {
        let mut open = self.lock();
        if open.sockets.remove(&id).is_some() {
            open.slots.leave(id);
        }
        drop(open);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    #[test]
    fn newcomers_wait_for_those_that_gave_way_for_a_second_at_most() {
        // Four slots for unidentified peers, one for each peer.
        let (places, peer) = (Places::new(16), Peer::User(1000));
        let socket = Arc::new(Socket::Unix(UnixStream::pair().unwrap().0));
        let enter = |id| places.enter(id, peer, &socket);
        assert_eq!((1..=5).map(enter).filter(|gave_way| *gave_way == Ok(Some(peer))).count(), 4);
        std::thread::scope(|scope| {
            let began = Instant::now();
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                places.leave(1);
            });
            // On a busy machine the other thread may come after that second.
            let entered = (0..5).map(|_| enter(6)).find(Result::is_ok);
            assert_eq!(entered, Some(Ok(Some(peer))), "one that gave way ends late");
            assert!(began.elapsed() >= Duration::from_millis(100));
        });
        assert_eq!(enter(7), Err(Refusal::Full), "none ends");
    }
}
