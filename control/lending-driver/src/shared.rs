//! Shared state of the driver's parts.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_host::Memory;
use spillway_lending::{Machine, Reading};
use tokio::time::Instant;

use crate::borrower::Borrower;
use crate::health::PeerHealth;
use crate::kernel::Kernel;
use crate::lender::Lender;
use crate::peers::Peers;
use crate::settings::{Settings, UsedBy};

/// State that driver and status share.
#[derive(Debug)]
pub struct Shared {
    pub machine: Mutex<Machine>,
    pub started: Instant,
    pub settings: Arc<Settings>,
    pub peers: Arc<Peers>,
    pub health: Arc<PeerHealth>,
    pub lender: Arc<Lender>,
    pub borrower: Arc<Borrower>,
    pub kernel: Arc<dyn Kernel>,
    /// The last sample of the memory.
    pub memory: Mutex<Memory>,
}

impl Shared {
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Memory in use, by the configured definition.
    pub fn used_bytes(&self, memory: &Memory) -> u64 {
        match self.settings.used {
            UsedBy::Available => memory.total.saturating_sub(memory.available),
            UsedBy::Paper => memory.total.saturating_sub(memory.free + memory.cache),
        }
    }

    /// Reads the memory, with what lies on borrowed devices.
    pub fn reading(&self) -> io::Result<Reading> {
        let memory = self.kernel.memory()?;
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
        Ok(Reading {
            total_bytes: memory.total,
            used_bytes: self.used_bytes(&memory),
            lent_used_bytes: self.lender.used_bytes(),
            devices: self.borrower.used_bytes(&self.kernel.swaps()?),
        })
    }

    /// Whether this host uses borrowed memory.
    pub fn has_devices(&self) -> bool {
        !self.machine().view(self.now()).devices.is_empty()
    }

    /// Whether nothing is lent, borrowed or requested.
    pub fn is_at_rest(&self) -> bool {
        let view = self.machine().view(self.now());
        view.lent.is_empty() && view.borrowed.is_empty() && view.devices.is_empty()
    }
}
