//! The target: what all connections share.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use spillway_block::Exports;
use spillway_store::Store;
use spillway_types::{Access, Admitted, ClientId, Identity, PoolId};
use spillway_wire::fabrics::{ANY_STATIC_CONTROLLER, DISCOVERY_NQN};

use crate::config::Config;
use crate::connection::Connection;
use crate::controller::{Controller, Host, ProvenClient, Subsystem, Waker};
use crate::error::Error;
use crate::quota::Quota;

/// A target without I/O: connections take bytes and give bytes.
pub struct Target {
    pub(crate) store: Arc<Store>,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) exports: Arc<dyn Exports>,
    pub(crate) config: Config,
    pools_nqn: String,
    blocks_nqn: String,
    controllers: Mutex<Controllers>,
    quotas: Mutex<HashMap<ClientId, Weak<Quota>>>,
}

#[derive(Default)]
struct Controllers {
    by_id: HashMap<u16, Arc<Controller>>,
    last_id: u16,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Target {
    /// A target for the pools in `store` and the block devices in `exports`, for those whom `access`
    /// lets in.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(
        store: Arc<Store>,
        access: Arc<dyn Access>,
        exports: Arc<dyn Exports>,
        config: Config,
    ) -> Result<Arc<Self>, Error> {
        config.check()?;
        let mut first = [0; 2];
        rustix::rand::getrandom(&mut first, rustix::rand::GetRandomFlags::empty())?;
        Ok(Arc::new(Self {
            store,
            access,
            exports,
            pools_nqn: config.pools_nqn(),
            blocks_nqn: config.blocks_nqn(),
            config,
            controllers: Mutex::new(Controllers {
                by_id: HashMap::new(),
                // Linux takes no two controllers of one id in a subsystem, so those of a restarted
                // target better have others than before.
                last_id: u16::from_ne_bytes(first),
            }),
            quotas: Mutex::default(),
        }))
    }

    /// A new connection that a host made to `local`. `name` is what its certificate calls it, over TLS: it is
    /// that client, whatever name it gives, and has nothing more to prove. `waker` is called, on any thread, when
    /// [`Connection::poll`] has something to do.
    pub fn accept(
        self: &Arc<Self>,
        local: SocketAddr,
        name: Option<String>,
        now_ms: u64,
        waker: Waker,
    ) -> Connection {
        Connection::new(Arc::clone(self), local, name, now_ms, waker)
    }

    /// Tells a client's hosts that pools or block exports came, went or changed.
    pub fn namespaces_changed(&self, client: ClientId) {
        let controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        for controller in controllers.by_id.values() {
            if controller.client().is_some_and(|its| its.id == client) {
                controller.tell_namespaces_changed();
            }
        }
    }

    /// Which subsystem has this name.
    pub(crate) fn subsystem(&self, nqn: &str) -> Option<Subsystem> {
        if nqn == DISCOVERY_NQN {
            Some(Subsystem::Discovery)
        } else if nqn == self.blocks_nqn {
            Some(Subsystem::Blocks)
        } else if nqn == self.pools_nqn {
            Some(Subsystem::Pools)
        } else {
            None
        }
    }

    /// The serial number of both subsystems: the store's own number.
    pub(crate) fn serial(&self) -> String {
        format!("{:016x}", self.store.identity(PoolId(0)) >> 64)
    }

    pub(crate) fn nqn(&self, subsystem: Subsystem) -> &str {
        match subsystem {
            Subsystem::Discovery => DISCOVERY_NQN,
            Subsystem::Blocks => &self.blocks_nqn,
            Subsystem::Pools => &self.pools_nqn,
        }
    }

    /// Makes a controller. `None` when all ids are taken.
    pub(crate) fn add_controller(
        &self,
        subsystem: Subsystem,
        host: Host,
        local: SocketAddr,
    ) -> Option<Arc<Controller>> {
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = controllers.free_id()?;
        let controller = Arc::new(Controller::new(id, subsystem, host, local));
        controllers.by_id.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// The host of a controller may act as `client`. Its earlier associations have ended when this
    /// returns, so that nothing which they received is carried out after what the new one asks. A
    /// kernel may reach its devices over several of the target's addresses, but only once over each.
    pub(crate) fn establish(&self, controller: &Arc<Controller>, client: ProvenClient) {
        let mut old = Vec::new();
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        controllers.by_id.retain(|_, other| {
            let same = other.subsystem == controller.subsystem
                && other.host == controller.host
                && (controller.subsystem == Subsystem::Pools || other.local == controller.local)
                && other.client().is_some();
            if same {
                old.push(Arc::clone(other));
            }
            !same
        });
        // Under the lock, so that of two that come at once one sees the other.
        controller.set_client(client);
        drop(controllers);
        for controller in old {
            controller.end();
        }
    }

    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        let controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        controllers.by_id.get(&id).cloned()
    }

    /// Ends a controller with all its queues.
    pub(crate) fn remove_controller(&self, controller: &Arc<Controller>) {
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        if controllers.by_id.get(&controller.id).is_some_and(|its| Arc::ptr_eq(its, controller)) {
            controllers.by_id.remove(&controller.id);
        }
        drop(controllers);
        controller.end();
    }

    /// Reports a TLS handshake that failed by what the host sent, not by its end or a deadline.
    pub(crate) fn tls_failed(&self, error: &Error) {
        if matches!(error, Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData) {
            self.access.authentication_failed();
        }
    }

    /// Lets a host in as a client; who calls this calls `leave` of [`Access`] once.
    pub(crate) fn admit(&self, host: &Host) -> Result<ProvenClient, Error> {
        let who = match &host.name {
            Some(name) => Identity::Name(name),
            None => Identity::Host { nqn: &host.nqn },
        };
        let Admitted { client: id, limits } = self.access.admit(who)?;
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        let known = quotas.get(&id).and_then(Weak::upgrade);
        let quota = known.unwrap_or_else(|| {
            quotas.retain(|_, quota| quota.strong_count() != 0);
            let quota = Arc::new(Quota::new(limits));
            quotas.insert(id, Arc::downgrade(&quota));
            quota
        });
        Ok(ProvenClient { id, quota })
    }
}

impl Controllers {
    fn free_id(&mut self) -> Option<u16> {
        // Those from FFF0h on are reserved, and what Connect uses for any controller is among them.
        const IDS: u16 = 0xfff0;
        const _: () = assert!(IDS <= ANY_STATIC_CONTROLLER);
        for _ in 0..IDS {
            self.last_id = self.last_id.wrapping_add(1) % IDS;
            if !self.by_id.contains_key(&self.last_id) {
                return Some(self.last_id);
            }
        }
        None
    }
}
