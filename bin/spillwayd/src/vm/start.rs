//! Guests as a part of the daemon: opens the pool before the sandbox, starts a thread for each VM,
//! ends the threads.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use spillway_guests::Guest;
use spillway_sections::{Pool, Settings};
use spillway_store::Store;
use tokio::sync::Notify;

use crate::config::{Config, Error};
use crate::memory::Room;
use crate::vm::driver::Driver;
use crate::vm::handle::{Handle, Sharing, Wired};
use crate::vm::loan::{self, Lender, Loan};
use crate::vm::shared::{Notes, Shared, WindowsShared, Wish};
use crate::vm::windows::Windows;

/// Parts that are ready to start.
pub struct Prepared {
    handle: Arc<Handle>,
    inputs: Vec<Inputs>,
    loan: Option<Arc<Loan>>,
}

/// Guests, each with its thread. The threads end when this is dropped.
pub struct Vms {
    handle: Arc<Handle>,
    threads: Vec<JoinHandle<()>>,
    /// Outlives the threads, which may take lent memory back.
    _lender: Option<Lender>,
}

/// The queues and wake-up descriptors of a VM's threads: for its driver and for its windows.
struct Inputs {
    wished: Receiver<Wish>,
    hears: UnixStream,
    windows: Option<UnixStream>,
}

/// Checks that the pool's directory can be used as configured.
///
/// # Errors
/// It can't be used.
pub fn check(config: &Config) -> Result<(), Error> {
    if config.vms.is_empty() {
        return Ok(());
    }
    let backing = pool_settings(config).check();
    let backing = backing.map_err(|error| Error::new(format!("sections: {error}")))?;
    loan::check(backing, config.sections.lend_bytes)
}

fn pool_settings(config: &Config) -> Settings {
    let sections = &config.sections;
    Settings {
        dir: sections.dir.clone().unwrap_or_default(),
        capacity_bytes: sections.capacity_bytes,
        section_bytes: sections.section_bytes,
        group: sections.gid.map(|gid| gid as u32),
    }
}

impl Prepared {
    /// Opens the pool, which may lend to the store. None if the configuration names no guests.
    ///
    /// # Errors
    /// The pool's directory can't be used.
    pub fn new(config: &Config, store: &Arc<Store>, room: Room) -> anyhow::Result<Option<Self>> {
        let sections = &config.sections;
        if config.vms.is_empty() {
            return Ok(None);
        }
        let settings = pool_settings(config);
        let pool = Pool::open(&settings);
        let pool = pool.map_err(|error| Error::new(format!("sections: {error}")))?;
        let dir = settings.dir;
        let pool = Arc::new(pool);
        let loan = Loan::new(&pool, store, room)?;
        let hunger = Arc::new(Notify::new());
        let (mut vms, mut inputs) = (Vec::new(), Vec::new());
        for vm in &config.vms {
            let (bell, hears) = UnixStream::pair().context("can't make a socket pair")?;
            bell.set_nonblocking(true)?;
            hears.set_nonblocking(true)?;
            let (wishes, wished) = channel();
            let settings = vm.settings(sections.section_bytes);
            let device = vm.device(&config.listen);
            let windows = vm.windows(&config.listen);
            let windows = windows.map(|(client, path)| WindowsShared::new(client, path, device));
            let windows = windows.transpose().context("can't make a socket pair")?;
            let (place, windows) = windows.unzip();
            let notes = Notes {
                target_bytes: vm.most_bytes,
                weight: vm.weight as u32,
                ready_bytes: vm.ready_bytes,
                ..Notes::default()
            };
            let shared = Shared {
                name: vm.name.clone(),
                way: vm.way(&config.listen),
                agent: vm.agent(&config.listen),
                pool: pool.clone(),
                guest: Mutex::new(Guest::new(settings)),
                notes: Mutex::new(notes),
                stop: AtomicBool::new(false),
                hunger: hunger.clone(),
                windows: place,
            };
            vms.push(Wired { shared: Arc::new(shared), boot_bytes: vm.boot_bytes, wishes, bell });
            inputs.push(Inputs { wished, hears, windows });
        }
        let sharing = Mutex::new(Sharing::new(config.memory.policy()));
        let makes_files = Mutex::default();
        let handle = Arc::new(Handle { pool, dir, vms, sharing, hunger, makes_files });
        Ok(Some(Self { handle, inputs, loan }))
    }

    /// The part that the HTTP interface uses.
    pub fn handle(&self) -> Arc<Handle> {
        self.handle.clone()
    }

    /// Starts the threads. Windows are served by `ring`.
    ///
    /// # Errors
    /// The kernel has no threads left.
    pub fn start(self, ring: Option<&Arc<spillway_ring::Server>>) -> anyhow::Result<Vms> {
        let mut threads = Vec::new();
        for (vm, inputs) in self.handle.vms.iter().zip(self.inputs) {
            let Inputs { wished, hears, windows } = inputs;
            if let (Some(place), Some(bell)) = (&vm.shared.windows, windows) {
                let windows = Windows::new(vm.shared.clone(), place.clone(), ring.cloned(), bell);
                let thread = thread::Builder::new().name(format!("win-{}", vm.shared.name));
                let thread = thread.spawn(|| windows.run());
                threads.push(thread.context("can't start a thread for a VM's windows")?);
            }
            let driver = Driver::new(vm.shared.clone(), wished, hears);
            let thread = thread::Builder::new().name(format!("vm-{}", vm.shared.name));
            threads.push(thread.spawn(|| driver.run()).context("can't start a thread for a VM")?);
        }
        let lender = self.loan.map(|loan| {
            let handle = self.handle.clone();
            Lender::start(loan, handle.pool.clone(), move || handle.ready_bytes())
        });
        Ok(Vms { handle: self.handle, threads, _lender: lender.transpose()? })
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        for vm in &self.handle.vms {
            vm.shared.stop.store(true, Ordering::Relaxed);
            vm.ring();
        }
        for thread in self.threads.drain(..) {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}
