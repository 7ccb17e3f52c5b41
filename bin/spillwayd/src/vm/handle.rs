//! All guests, for the HTTP interface and the memory manager: their list, their sizes, the files that they start with.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_api::types::{VmArgs, VmList, VmOutcome, VmResize};
use spillway_guests::{GROWTH_MAX, Who};
use spillway_manager::{Manager, Policy};
use spillway_sections::{Backing, GuestFile, Pool};
use spillway_types::Statistics;
use tokio::sync::{Notify, oneshot};

use crate::config::{Vm, Way};
use crate::vm::shared::{Shared, Wanted, Wish};
use crate::vm::{options, status};

/// Larger addresses are requested only if the configuration needs them.
const ADDRESSES_MAX: u64 = 256 << 30;

/// Guests for the HTTP interface and the memory manager.
pub struct Handle {
    pub(super) pool: Arc<Pool>,
    pub(super) dir: PathBuf,
    pub(super) vms: Vec<Wired>,
    pub(super) sharing: Mutex<Sharing>,
    pub(super) hunger: Arc<Notify>,
    /// Held while files are created, so that concurrent requests get the same files.
    pub(super) makes_files: Mutex<()>,
}

/// A VM, and the channel to its thread.
pub(super) struct Wired {
    pub(super) shared: Arc<Shared>,
    pub(super) boot_bytes: u64,
    pub(super) wishes: Sender<Wish>,
    pub(super) bell: UnixStream,
}

/// The memory manager of sections: its pages are sections, its puts the guests' working sets, its misses their
/// refaults.
pub struct Sharing {
    pub(super) manager: Manager,
    pub(super) counters: HashMap<usize, Statistics>,
    /// When sizes were last computed.
    pub(super) shared_at: Instant,
}

impl Sharing {
    pub fn new(policy: Policy) -> Self {
        Self {
            manager: Manager::of_frames(policy),
            counters: HashMap::new(),
            shared_at: Instant::now(),
        }
    }
}

impl Wired {
    /// Wakes its threads.
    pub(super) fn ring(&self) {
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
    pub(super) fn ready_bytes(&self) -> u64 {
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
            ivshmem: vm.shared.windows.as_ref().and_then(|place| place.device.as_deref()),
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
