//! Guests as a part of the daemon: opens the pool before the sandbox, starts a thread for each VM,
//! ends the threads.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use spillway_api::types::{VmArgs, VmList, VmOutcome, VmResize};
use spillway_guests::{GROWTH_MAX, Guest, Who};
use spillway_sections::{Backing, GuestFile, Pool, Settings};
use spillway_store::Store;
use tokio::sync::{Notify, oneshot};

use crate::config::{Config, Error, Vm, Way};
use crate::memory::Room;
use crate::vm::driver::Driver;
use crate::vm::loan::{Lender, Loan};
use crate::vm::share::Sharing;
use crate::vm::shared::{Notes, Shared, Wanted, WindowsShared, Wish};
use crate::vm::windows::Windows;
use crate::vm::{loan, options, status};

/// Larger addresses are requested only if the configuration needs them.
const ADDRESSES_MAX: u64 = 256 << 30;

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

/// Guests for the HTTP interface and the memory manager.
pub struct Handle {
    pool: Arc<Pool>,
    dir: PathBuf,
    vms: Vec<Wired>,
    sharing: Mutex<Sharing>,
    hunger: Arc<Notify>,
    /// Held while files are created, so that concurrent requests get the same files.
    makes_files: Mutex<()>,
}

/// A VM, and the channel to its thread.
struct Wired {
    shared: Arc<Shared>,
    boot_bytes: u64,
    wishes: Sender<Wish>,
    bell: UnixStream,
}

/// Checks that the pool's directory can be used as configured.
///
/// # Errors
/// It can't be used.
pub fn check(config: &Config) -> Result<(), Error> {
    let Some(dir) = config.sections.dir.as_ref().filter(|_| !config.vms.is_empty()) else {
        return Ok(());
    };
    let backing = Backing::at(dir).map_err(|error| Error::new(format!("sections: {error}")))?;
    loan::check(backing, config.sections.lend_bytes)
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
        let dir = sections.dir.clone().unwrap_or_default();
        let pool = Pool::open(&Settings {
            dir: dir.clone(),
            capacity_bytes: sections.capacity_bytes,
            section_bytes: sections.section_bytes,
            group: sections.gid.map(|gid| gid as u32),
        })
        .map_err(|error| Error::new(format!("sections: {error}")))?;
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
            let windows =
                vm.windows(&config.listen).map(|(client, path)| WindowsShared::new(client, path));
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

impl Wired {
    fn ring(&self) {
        // When it is full, the thread will wake anyway.
        let _ = (&self.bell).write(&[0]);
        if let Some(windows) = self.shared.windows.as_ref().filter(|_| self.is_stopping()) {
            windows.ring();
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }
}

impl Handle {
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn vms(&self) -> impl Iterator<Item = &Shared> {
        self.vms.iter().map(|vm| &*vm.shared)
    }

    pub fn sharing(&self) -> MutexGuard<'_, Sharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory to prepare for all guests, bytes.
    fn ready_bytes(&self) -> u64 {
        self.vms.iter().map(|vm| vm.shared.notes().ready_bytes).sum()
    }

    /// Waits until a guest needs memory that others have.
    pub async fn hunger(&self) {
        self.hunger.notified().await;
    }

    /// Sends a message to the thread of the VM with this index.
    pub fn wish(&self, at: usize, wish: Wish) {
        if let Some(vm) = self.vms.get(at)
            && vm.wishes.send(wish).is_ok()
        {
            vm.ring();
        }
    }

    /// Applies the changes of a reload. An operator's `spillway vm auto` stays in force, unless `auto` in the file
    /// has changed.
    pub fn configure(&self, old: &[Vm], vms: &[Vm]) {
        for (at, wired) in self.vms.iter().enumerate() {
            let Some(vm) = vms.iter().find(|vm| vm.name == wired.shared.name) else { continue };
            wired.shared.notes().weight = vm.weight as u32;
            wired.shared.notes().ready_bytes = vm.ready_bytes;
            let mut settings = vm.settings(self.pool.section_bytes());
            if old.iter().any(|old| old.name == vm.name && old.auto == vm.auto) {
                settings.auto = wired.shared.guest().settings().auto;
            }
            self.wish(at, Wish::Settings(settings));
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.vms.iter().position(|vm| vm.shared.name == name)
    }

    /// Reserves boot memory and creates the device's file, which QEMU maps. Creates nothing for libvirt domains.
    fn make_files(&self, vm: &Wired) -> Result<VmArgs, String> {
        let (name, most_bytes) = (&vm.shared.name, vm.shared.guest().settings().most_bytes);
        let section = self.pool.section_bytes();
        // A reload may make `most` smaller than `boot`, which it does not change.
        let more_bytes = most_bytes.saturating_sub(vm.boot_bytes);
        let device_bytes = more_bytes.next_multiple_of(section).max(section);
        let of = options::Vm {
            boot_bytes: vm.boot_bytes,
            device_bytes,
            max_bytes: most_ever(vm.boot_bytes, device_bytes),
            section_bytes: section,
            agent: &vm.shared.agent,
            windows: vm.shared.windows.as_ref().map(|place| place.channel.as_path()),
        };
        let Way::Monitor(qmp) = &vm.shared.way else {
            // libvirt allocates the memory.
            let is_huge = matches!(self.pool.backing(), Backing::Hugetlbfs { .. });
            return Ok(options::libvirt(&of, is_huge));
        };
        let is_running = vm.shared.guest().view().size_bytes.is_some();
        let make = |file, bytes| {
            self.pool.create(name, file, bytes).map_err(|error| match error {
                spillway_sections::Error::OtherSize { .. } if is_running => format!(
                    "vm '{name}' runs with another `most` or `boot` than is configured now: end it first, because QEMU takes \
                     them at its start"
                ),
                error => error.to_string(),
            })
        };
        // Files of an earlier VM of this name are useless, unless it still runs.
        if !is_running {
            self.pool.clear(name).map_err(|error| error.to_string())?;
        }
        let boot = make(GuestFile::Boot, vm.boot_bytes)?;
        let device = make(GuestFile::Device(1), device_bytes)?;
        let files = options::Files { boot: &boot, device: &device, qmp };
        Ok(options::qemu(&of, &files))
    }
}

/// The largest size for which QEMU lays out addresses: the largest possible size of a returns-all guest, unless that
/// exceeds the address width of small processors.
fn most_ever(boot_bytes: u64, device_bytes: u64) -> u64 {
    let usual = boot_bytes.saturating_mul(GROWTH_MAX).min(ADDRESSES_MAX);
    usual.max(boot_bytes + device_bytes)
}

impl spillway_api::Guests for Handle {
    fn list(&self) -> VmList {
        status::list(&self.pool, &self.dir.display().to_string(), self.vms())
    }

    fn resize(
        &self,
        name: &str,
        wanted: VmResize,
    ) -> Option<oneshot::Receiver<Result<VmOutcome, String>>> {
        let at = self.find(name)?;
        let (told, ended) = oneshot::channel();
        let size = match (wanted.to_bytes, wanted.grow_bytes, wanted.shrink_bytes) {
            (Some(bytes), ..) => Wanted::To(bytes),
            (_, Some(bytes), _) => Wanted::Grow(bytes),
            (.., bytes) => Wanted::Shrink(bytes.unwrap_or_default()),
        };
        let (roll_back, force) = (wanted.roll_back, wanted.force);
        self.wish(
            at,
            Wish::Size { wanted: size, who: Who::Operator, roll_back, force, told: Some(told) },
        );
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            if let Ok(outcome) = ended.await {
                // The requester may be gone.
                let _ = answer.send(status::outcome(outcome));
            }
        });
        Some(answered)
    }

    fn set_auto(&self, name: &str, auto: bool) -> bool {
        let at = self.find(name);
        if let Some(at) = at {
            self.wish(at, Wish::Auto(auto));
        }
        at.is_some()
    }

    fn args(&self, name: &str) -> Option<Result<VmArgs, String>> {
        let _makes = self.makes_files.lock().unwrap_or_else(PoisonError::into_inner);
        self.find(name).map(|at| self.make_files(&self.vms[at]))
    }
}
