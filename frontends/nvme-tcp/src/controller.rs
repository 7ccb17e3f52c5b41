//! A controller: what the queues of one association share.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use spillway_types::ClientId;

use crate::quota::Quota;
use crate::subsystem::Subsystem;
use crate::traffic::Traffic;

/// Makes the owner of a connection call [`crate::Connection::poll`] soon.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A host, by the names that it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) nqn: String,
    pub(crate) id: [u8; 16],
    /// The name in its certificate; none without TLS.
    pub(crate) name: Option<String>,
}

/// The client as which a host was admitted.
#[derive(Clone, Debug)]
pub(crate) struct ProvenClient {
    pub(crate) id: ClientId,
    pub(crate) quota: Arc<Quota>,
}

/// A controller, from the Connect of its admin queue to the end of that connection.
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) subsystem: Subsystem,
    pub(crate) host: Host,
    /// The target's address to which the host connected.
    pub(crate) local: SocketAddr,
    /// The commands of its I/O queues.
    pub(crate) traffic: Traffic,
    client: OnceLock<ProvenClient>,
    /// Whether commands are executed. A queue holds the read lock while it executes commands, so no command is executed
    /// any more once the thread that ends the controller has had the write lock.
    open: RwLock<bool>,
    enabled: AtomicBool,
    namespaces_changed: AtomicBool,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// Numbers of I/O queues in use.
    numbers: HashSet<u16>,
    wakers: Vec<(u16, Waker)>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("id", &self.id).field("host", &self.host).finish()
    }
}

impl Controller {
    pub(crate) fn new(id: u16, subsystem: Subsystem, host: Host, local: SocketAddr) -> Self {
        Self {
            id,
            subsystem,
            host,
            local,
            traffic: Traffic::default(),
            client: OnceLock::new(),
            open: RwLock::new(true),
            enabled: AtomicBool::new(false),
            namespaces_changed: AtomicBool::new(false),
            queues: Mutex::default(),
        }
    }

    /// The client, once the host may act as it.
    pub(crate) fn client(&self) -> Option<&ProvenClient> {
        self.client.get()
    }

    /// The host may act as this client. Each queue calls this; the first call counts.
    pub(crate) fn set_client(&self, client: ProvenClient) {
        let _ = self.client.set(client);
    }

    /// Keeps the controller from ending until the guard is dropped. `None` if it has ended.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if *open { Some(open) } else { None }
    }

    /// Ends the controller: when this returns, no command that its queues received is executed any more.
    pub(crate) fn end(&self) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = false;
        self.enabled.store(false, Ordering::Release);
        self.wake(|_| true);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Allows I/O queues, or ends the existing ones.
    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Release);
        if !enabled {
            self.wake(|queue| queue != 0);
        }
    }

    /// The client's namespaces changed.
    pub(crate) fn tell_namespaces_changed(&self) {
        self.namespaces_changed.store(true, Ordering::Release);
        self.wake(|queue| queue == 0);
    }

    /// Whether the client's namespaces changed since the last call.
    pub(crate) fn take_namespaces_changed(&self) -> bool {
        self.namespaces_changed.swap(false, Ordering::AcqRel)
    }

    /// Adds a queue. False if there is one with its number.
    pub(crate) fn add_queue(&self, number: u16, waker: &Waker) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let added = queues.numbers.insert(number);
        if added {
            queues.wakers.push((number, Arc::clone(waker)));
        }
        added
    }

    pub(crate) fn remove_queue(&self, number: u16) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.numbers.remove(&number);
        queues.wakers.retain(|(of, _)| *of != number);
    }

    fn wake(&self, which: impl Fn(u16) -> bool) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, waker) in queues.wakers.iter().filter(|(number, _)| which(*number)) {
            waker();
        }
    }
}
