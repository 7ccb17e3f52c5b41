//! The parts of the daemon that the service shows and changes, for all handlers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::State;
use spillway_directory::ClientRegistry;
use spillway_history::History;
use spillway_manager::{Manager, Policy};
use spillway_types::Limits;
use tokio::sync::{mpsc, oneshot, watch};

use crate::problem::Error;
use crate::types::{
    Dashboard, DiskEmptied, DiskStatus, LendStatus, Reload, VmArgs, VmList, VmOutcome, VmResize,
};

/// What the service shows and changes.
pub struct Daemon {
    /// Clients, pools and devices.
    pub client_registry: Arc<ClientRegistry>,
    /// The policy of the clients' targets.
    pub manager: Arc<Mutex<Manager>>,
    /// The policy of paged programs' targets.
    pub programs: Mutex<Manager>,
    /// Local frames of all programs together, pages; 0 only counts them.
    pub program_pages: AtomicU64,
    /// Milliseconds between two samples of the clients.
    pub interval_ms: watch::Sender<u64>,
    /// Requests to reload the configuration, in their order.
    pub reloads: mpsc::Sender<ReloadOutcome>,
    /// The recent history.
    pub history: Mutex<History>,
    /// Default limits of an added client.
    pub limits: Limits,
    /// The commit from which the daemon was built, if known.
    pub commit: Option<&'static str>,
    /// When the daemon started.
    pub started: Instant,
    /// The same by the system clock, milliseconds since 1970.
    pub started_ms: u64,
    /// Whether its memory is locked.
    pub memory_locked: bool,
    /// The fd store's name.
    pub kept_by: &'static str,
    /// The dashboard's address.
    pub dashboard: Dashboard,
    /// Lending; none if the configuration has it off.
    pub lending: Option<Arc<dyn Lending>>,
    /// Tmem disks.
    pub disks: Box<dyn Disks>,
    /// Name of the host.
    pub host: String,
    /// Guests; none if the configuration names none.
    pub guests: Option<Arc<dyn Guests>>,
    /// All metrics as text, and the media type of that.
    pub metrics: (Box<dyn Fn() -> String + Send + Sync>, &'static str),
}

impl Daemon {
    /// Sets the policy for clients and programs, and the interval. An unchanged policy keeps its state.
    pub fn apply_policy(&self, policy: Policy, interval_ms: u64) {
        self.interval_ms
            .send_if_modified(|time| std::mem::replace(time, interval_ms) != interval_ms);
        if self.policy() != policy {
            self.set_policy(policy);
        }
    }

    /// Sets another policy for clients and programs.
    pub(crate) fn set_policy(&self, policy: Policy) {
        for manager in [&*self.manager, &self.programs] {
            manager.lock().unwrap_or_else(PoisonError::into_inner).set_policy(policy);
        }
    }

    /// The policy for clients, programs and guests.
    pub fn policy(&self) -> Policy {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner).policy()
    }

    /// Local frames of all programs together, pages; none if they are only counted.
    pub fn program_pages(&self) -> Option<u64> {
        Some(self.program_pages.load(Ordering::Relaxed)).filter(|&pages| pages > 0)
    }
}

/// Takes the outcome of a reload, or one line that says why the old configuration stays in force.
pub type ReloadOutcome = oneshot::Sender<Result<Reload, String>>;

pub(crate) type Shared = State<Arc<Daemon>>;

/// The part of the daemon that lends and borrows.
pub trait Lending: Send + Sync {
    /// Its status.
    fn status(&self) -> LendStatus;

    /// Executes an order. Returns whether it was started, or one line that says why it can't be.
    fn order(&self, order: LendOrder) -> oneshot::Receiver<Result<(), String>>;
}

/// An operator's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LendOrder {
    /// Borrow a device of this many bytes.
    Borrow(u64),
    /// Return all borrowed memory.
    Return,
    /// Return all borrowed memory, recall all loans, and do neither until `Resume`.
    Drain,
    /// Lend and borrow again.
    Resume,
}

/// The tmem disks.
pub trait Disks: Send + Sync {
    /// All disks, in the order of the configuration.
    fn list(&self) -> Vec<DiskStatus>;

    /// Removes a disk's pages from the store, or says in one line why not. None if the disk does not exist.
    fn empty(&self, name: &str) -> Option<Result<DiskEmptied, String>>;
}

/// The part of the daemon that resizes guests.
pub trait Guests: Send + Sync {
    /// The pool and all guests.
    fn list(&self) -> VmList;

    /// Changes a guest's size. Returns how that ended, or one line that says why nothing was changed. None if the guest
    /// does not exist.
    fn resize(
        &self,
        name: &str,
        wanted: VmResize,
    ) -> Option<oneshot::Receiver<Result<VmOutcome, String>>>;

    /// Sets whether a guest's size changes automatically; returns whether the guest exists.
    fn set_auto(&self, name: &str, auto: bool) -> bool;

    /// Reserves boot memory, and returns the options for QEMU. None if the guest does not exist.
    fn args(&self, name: &str) -> Option<Result<VmArgs, String>>;
}

/// Runs slow work on another thread, so that other requests are answered meanwhile.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, spillway_directory::Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| Error::Stopping)?;
    Ok(done?)
}
