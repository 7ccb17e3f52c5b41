//! The target: what all its connections share, and what their commands are answered from.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::rand::{GetRandomFlags, getrandom};
use spillway_block::Exports;
use spillway_serving::{CommandKind, Latencies, PoolLog, Recorder};
use spillway_store::Store;
use spillway_types::{Access, Admitted, ClientId, Identity, PoolId};
use spillway_wire::fabrics::DISCOVERY_NQN;

use crate::config::Config;
use crate::controller::{Host, ProvenClient};
use crate::controllers::Controllers;
use crate::error::Error;
use crate::quota::Quotas;
use crate::subsystem::Subsystem;

/// The kinds of commands of pools and of block namespaces, and the admin commands.
const COMMANDS: &[CommandKind] = &[
    CommandKind::Get,
    CommandKind::Put,
    CommandKind::Remove,
    CommandKind::Read,
    CommandKind::Write,
    CommandKind::Discard,
    CommandKind::Flush,
    CommandKind::Other,
];

/// What the connections of a target share. It does no I/O: see [`Connection`](crate::Connection).
pub struct Target {
    pub(crate) store: Arc<Store>,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) exports: Arc<dyn Exports>,
    pub(crate) config: Config,
    pub(crate) controllers: Controllers,
    pub(crate) pool_log: PoolLog,
    latencies: Arc<Latencies>,
    pools_nqn: String,
    blocks_nqn: String,
    quotas: Quotas,
    damaged: AtomicU64,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Target {
    /// A target for the pools in `store` and the block devices in `exports`. `access` decides which hosts are admitted.
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
        // Linux refuses a controller whose id another one of the subsystem has. After a restart a host may still know
        // the controllers from before, so ids start at random.
        let mut first_id = [0; 2];
        getrandom(&mut first_id, GetRandomFlags::empty())?;
        Ok(Arc::new(Self {
            store,
            pool_log: PoolLog::new("NVMe/TCP", Arc::clone(&access)),
            access,
            exports,
            controllers: Controllers::new(u16::from_ne_bytes(first_id)),
            pools_nqn: config.pools_nqn(),
            blocks_nqn: config.blocks_nqn(),
            config,
            latencies: Arc::new(Latencies::new(COMMANDS)),
            quotas: Quotas::default(),
            damaged: AtomicU64::new(0),
        }))
    }

    /// Tells a client's hosts that pools or block exports were added, removed or changed.
    pub fn namespaces_changed(&self, client: ClientId) {
        self.controllers.namespaces_changed(client);
    }

    /// The latencies of its commands.
    pub const fn latencies(&self) -> &Arc<Latencies> {
        &self.latencies
    }

    /// PDUs that arrived with a wrong digest of their data.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    pub(crate) fn count_damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn recorder(&self) -> Recorder {
        self.latencies.recorder()
    }

    /// The subsystem with this name.
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

    pub(crate) fn nqn(&self, subsystem: Subsystem) -> &str {
        match subsystem {
            Subsystem::Discovery => DISCOVERY_NQN,
            Subsystem::Blocks => &self.blocks_nqn,
            Subsystem::Pools => &self.pools_nqn,
        }
    }

    /// The serial number of all subsystems: the identity of the store.
    pub(crate) fn serial(&self) -> String {
        format!("{:016x}", self.store.identity(PoolId(0)) >> 64)
    }

    /// Reports a TLS handshake that failed because of what the host sent, or took too long; not one that the host ended.
    pub(crate) fn tls_failed(&self, error: &Error) {
        match error {
            Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                self.access.authentication_failed();
            }
            Error::Silent => self.access.handshake_late(),
            _ => {}
        }
    }

    /// Admits a host as a client. The caller calls `leave` of [`Access`] once for it.
    pub(crate) fn admit(&self, host: &Host) -> Result<ProvenClient, Error> {
        let who = match &host.name {
            Some(name) => Identity::Name(name),
            None => Identity::Host { nqn: &host.nqn },
        };
        let Admitted { client: id, limits } = self.access.admit(who)?;
        Ok(ProvenClient { id, quota: self.quotas.of(id, limits) })
    }
}
