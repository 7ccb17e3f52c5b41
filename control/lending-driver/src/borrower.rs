//! The borrower's side: devices over loans of others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use spillway_fanout::{BackupFile, Holder};
use spillway_host::{Monitor, Swap};
use spillway_lender::Loan;
use spillway_lending::{Access, DeviceId, Event, HostId, LoanId, Mode, Place};
use spillway_tls::ClientSettings;
use spillway_types::Size;
use tokio::sync::mpsc::UnboundedSender;

use crate::config::{DeviceUse, Lend};
use crate::lend::device::{Device, Slabs};
use crate::lend::health::PeerHealth;
use crate::lend::helper::{Connect, Helper, Verb};

/// TCP connections to a lender for pages.
const QUEUES: u16 = 2;
/// The slowest at which pages are expected to come back, bytes a second; a swapoff may take so long.
const SWAPOFF_BYTES_S: u64 = 2 << 20;
/// What a swapoff may take beyond that, seconds.
const SWAPOFF_S: u64 = 60;

/// What a borrower is told.
pub struct Settings {
    pub own: HostId,
    pub lend: Lend,
    /// Keys for connections to lenders.
    pub tls: ClientSettings,
    /// NVMe Qualified Name of this host.
    pub host_nqn: String,
    /// Directory of sockets.
    pub dir: PathBuf,
    /// The secret of this host's kernel, in direct mode.
    pub secret: Arc<RwLock<Option<String>>>,
}

/// Says nothing of the secret, so that no log has it.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("own", &self.own).finish_non_exhaustive()
    }
}

/// Loans of others, and the devices that are made of them.
#[derive(Debug)]
pub struct Borrower {
    settings: Settings,
    /// None where nothing is done to this host.
    helper: Option<Arc<Helper>>,
    health: Arc<PeerHealth>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loans: BTreeMap<LoanId, Arc<OpenLoan>>,
    devices: BTreeMap<DeviceId, Arc<Device>>,
}

/// A loan that was granted.
#[derive(Debug)]
struct OpenLoan {
    device: DeviceId,
    lender: HostId,
    access: Access,
    /// The way there, once it was needed.
    holder: Mutex<Option<Arc<Holder>>>,
}

impl Borrower {
    /// Nothing is borrowed yet.
    pub fn new(settings: Settings, helper: Option<Arc<Helper>>, health: Arc<PeerHealth>) -> Self {
        Self { settings, helper, health, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self, device: DeviceId) -> Option<Arc<Device>> {
        self.state().devices.get(&device).cloned()
    }

    /// All devices that are there.
    pub fn devices(&self) -> Vec<(DeviceId, Arc<Device>)> {
        self.state().devices.iter().map(|(&id, device)| (id, device.clone())).collect()
    }

    /// What lies on each device, bytes.
    pub fn used_bytes(&self, swaps: &[Swap]) -> Vec<(DeviceId, u64)> {
        let used = |(id, device): (DeviceId, Arc<Device>)| (id, device.used_bytes(swaps));
        self.devices().into_iter().map(used).collect()
    }

    /// The copies of slabs in loans that are lost.
    pub fn lost_places(&self) -> Vec<Event> {
        let lost =
            |(id, device): (DeviceId, Arc<Device>)| device.lost_places(id, &self.settings.own);
        self.devices().into_iter().flat_map(lost).collect()
    }

    /// Notes a loan that was granted.
    pub fn open(&self, device: DeviceId, loan: LoanId, lender: HostId, access: Access) {
        let holder = Mutex::default();
        let held = OpenLoan { device, lender, access, holder };
        self.state().loans.insert(loan, Arc::new(held));
    }

    /// Makes a device of slabs, and has this host use it. After an error nothing of it is left.
    ///
    /// # Errors
    /// One line that says why not.
    pub fn attach(
        &self,
        id: DeviceId,
        slabs: &[[Option<Place>; 2]],
        losses: UnboundedSender<Event>,
    ) -> Result<(), String> {
        let lend = &self.settings.lend;
        let bytes = slabs.len() as u64 * lend.slab_bytes;
        if lend.dry_run {
            let size = Size(bytes);
            tracing::info!(%id, %size, "dry run: would make a device and swap onto it");
            self.state().devices.insert(id, Arc::new(Device::pretended()));
            return Ok(());
        }
        let device = match lend.mode {
            Mode::Direct => Device::direct(self.connect(slabs)?),
            Mode::FanOut => {
                let own = self.settings.own.clone();
                let health = self.health.clone();
                Device::fan_out(id, own, lend, self.places(id, slabs)?, losses, health)?
            }
        };
        let device = Arc::new(device);
        device.watch_losses(Arc::downgrade(&device));
        if let Err(error) = self.use_device(id, &device, bytes) {
            self.close(id, &device);
            return Err(error);
        }
        self.state().devices.insert(id, device);
        Ok(())
    }

    /// The places of a device's slabs, with the ways there.
    fn places(&self, id: DeviceId, slabs: &[[Option<Place>; 2]]) -> Result<Slabs, String> {
        let needs_file = slabs.iter().flatten().flatten().any(|place| *place == Place::File);
        let file = needs_file.then(|| self.file(id, slabs.len() as u64)).transpose()?;
        let mut places = Slabs { file, ..Slabs::default() };
        for (slab, copies) in slabs.iter().enumerate() {
            let mut found = [None, None];
            for (copy, place) in copies.iter().enumerate() {
                let Some(place) = place else { continue };
                found[copy] = Some(self.fan_out_place(place, slab as u32, places.file.as_ref())?);
            }
            places.slabs.push(found);
        }
        Ok(places)
    }

    fn fan_out_place(
        &self,
        place: &Place,
        slab: u32,
        file: Option<&Arc<Holder>>,
    ) -> Result<spillway_fanout::Place, String> {
        match place {
            Place::Lender { loan, index } => {
                Ok(spillway_fanout::Place { holder: self.holder(loan)?, slab: *index })
            }
            Place::File => {
                let holder = file.ok_or("the device has no local file")?.clone();
                Ok(spillway_fanout::Place { holder, slab })
            }
        }
    }

    /// The local file of a device, allocated in full.
    fn file(&self, id: DeviceId, slabs: u64) -> Result<Arc<Holder>, String> {
        let start =
            self.settings.lend.backup_file.as_ref().ok_or("there is no lend.backup_file")?;
        let mut name = start.clone().into_os_string();
        if !BackupFile::is_disk(start) {
            name.push(format!(".{id}"));
        }
        let file = BackupFile::open(&PathBuf::from(name), slabs * self.settings.lend.slab_bytes);
        let file = file.map_err(|error| error.to_string())?;
        Holder::file(file).map_err(|error| error.to_string())
    }

    /// The way to a loan, made when it is first needed.
    fn holder(&self, loan: &LoanId) -> Result<Arc<Holder>, String> {
        let held = self.state().loans.get(loan).cloned();
        let held = held.ok_or_else(|| format!("the loan {loan} is not held any more"))?;
        let mut holder = held.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = &*holder {
            return Ok(holder.clone());
        }
        let tls = self.settings.tls.to(held.lender.as_str());
        let settings = spillway_lender::Settings {
            address: held.access.address.clone(),
            pool: held.access.pool.0,
            tls: tls.map_err(|error| error.to_string())?,
            host_nqn: self.settings.host_nqn.clone(),
            timeout: Duration::from_millis(self.settings.lend.request_ms),
            queues: QUEUES,
        };
        let address = &held.access.address;
        let error =
            |error: &dyn std::fmt::Display| format!("lender {} at {address}: {error}", held.lender);
        let way = Loan::connect(&settings).map_err(|why| error(&why))?;
        let made = Holder::lender(loan.number, Arc::new(way)).map_err(|why| error(&why))?;
        Ok(holder.insert(made).clone())
    }

    /// Connects this host's kernel to the one loan of a device in direct mode; the path.
    fn connect(&self, slabs: &[[Option<Place>; 2]]) -> Result<String, String> {
        let first = slabs.first().and_then(|copies| copies[0].as_ref());
        let Some(Place::Lender { loan, .. }) = first else {
            return Err("a device in direct mode lies in one loan".to_owned());
        };
        let held = self.state().loans.get(loan).cloned();
        let held = held.ok_or_else(|| format!("the loan {loan} is not held any more"))?;
        let address: SocketAddr = held.access.address.parse().map_err(|_| {
            format!("lender {}: '{}' is no numeric address", held.lender, held.access.address)
        })?;
        let nqn = held.access.nqn.clone();
        let nqn = nqn.ok_or_else(|| format!("lender {} names no subsystem", held.lender))?;
        tracing::warn!(lender = %held.lender, %address, "direct mode: pages travel in the clear");
        // Without another copy, requests wait as long as the loan may last.
        let loss_s = self.settings.lend.lease_s;
        let secret = &self.settings.secret;
        let secret = secret.read().unwrap_or_else(PoisonError::into_inner).clone();
        let uuid = held.access.pool.0;
        self.ask(&Verb::Connect(Connect { address, nqn, uuid, loss_s, secret }))
    }

    fn ask(&self, verb: &Verb) -> Result<String, String> {
        self.helper.as_ref().ok_or("there is no helper")?.ask(verb, &[])
    }

    /// Has this host use a device.
    fn use_device(&self, id: DeviceId, device: &Device, bytes: u64) -> Result<(), String> {
        let lend = &self.settings.lend;
        if lend.device == DeviceUse::Socket {
            return device.serve(&self.settings.dir.join(format!("lend-{id}.sock")));
        }
        let helper = self.helper.clone().ok_or("there is no helper")?;
        device.give_to_kernel(helper, lend)?;
        let total = Monitor::open().and_then(|monitor| monitor.memory());
        let twentieth = total.map_err(|error| error.to_string())?.total / 20;
        let least = lend.min_free_bytes.min(twentieth);
        if least > 0 {
            self.ask(&Verb::MinFree { bytes: least, may_change: lend.raise_min_free })?;
        }
        let path = device.path();
        let priority = match self.ask(&Verb::SwapOn { path: path.clone() }) {
            // Whatever was said, the kernel has it: it must not be closed.
            Err(error) if Self::swaps_onto(&path) => {
                tracing::warn!(path, "swapon said: {error}");
                String::new()
            }
            priority => priority?,
        };
        tracing::info!(path, size = %Size(bytes), priority, "swaps onto borrowed memory");
        Ok(())
    }

    /// Whether the kernel swaps onto a device, as far as can be told.
    fn swaps_onto(path: &str) -> bool {
        let swaps = Monitor::open().and_then(|monitor| monitor.swaps());
        swaps.is_ok_and(|swaps| swaps.iter().any(|swap| swap.path == path))
    }

    /// Takes a device out of use. After an error it is as it was.
    ///
    /// # Errors
    /// One line that says why not.
    pub fn detach(&self, id: DeviceId, monitor: &Monitor) -> Result<(), String> {
        let Some(device) = self.device(id) else { return Ok(()) };
        let lend = &self.settings.lend;
        if lend.dry_run {
            tracing::info!(%id, "dry run: would swapoff, and close the device");
        } else if lend.device == DeviceUse::Swap {
            let swaps = monitor.swaps().map_err(|error| error.to_string())?;
            let used = device.used_bytes(&swaps);
            let path = device.path();
            if swaps.iter().any(|swap| swap.path == path) {
                has_headroom(monitor, &swaps, &path, used, lend.margin_bytes)?;
                let timeout_s = SWAPOFF_S + used / SWAPOFF_BYTES_S;
                self.ask(&Verb::SwapOff { path, timeout_s })?;
            }
        }
        self.close(id, &device);
        let mut state = self.state();
        state.devices.remove(&id);
        state.loans.retain(|_, held| held.device != id);
        Ok(())
    }

    /// Gives back what a device has taken of this host.
    fn close(&self, id: DeviceId, device: &Device) {
        let path = device.path();
        let closed = match (device.is_direct(), self.settings.lend.dry_run) {
            (_, true) => Ok(()),
            (true, false) => self.ask(&Verb::Disconnect { path }).map(|_| ()),
            (false, false) => device.close(),
        };
        if let Err(error) = closed {
            tracing::error!("a device is not closed: {error}");
        }
        let is_last = self.state().devices.keys().all(|other| *other == id);
        if is_last && self.helper.is_some() {
            // It puts back what it changed itself.
            let _ = self.ask(&Verb::MinFree { bytes: 0, may_change: true });
        }
    }

    /// Copies a slab to a new place, and uses that.
    ///
    /// # Errors
    /// One line that says why not; the copy is where it was.
    pub fn place(&self, id: DeviceId, slab: u32, copy: u8, place: &Place) -> Result<(), String> {
        if self.settings.lend.dry_run {
            return Ok(());
        }
        let device = self.device(id).ok_or("the device is gone")?;
        let fan_out = device.fan_out_device().ok_or("slabs don't move in direct mode")?;
        let file = match place {
            Place::File => Some(device.file(|slabs| self.file(id, slabs))?),
            Place::Lender { .. } => None,
        };
        if *place == Place::File && device.is_in_file(slab, 1 - usize::from(copy)) {
            // All that was acknowledged is there already: the other copy goes with its loan.
            return Ok(());
        }
        let place = self.fan_out_place(place, slab, file.as_ref())?;
        fan_out.place(slab, copy.into(), place).map_err(|error| error.to_string())
    }

    /// Stops using a loan: when this returns nothing is on its way there.
    pub fn forget(&self, id: DeviceId, loan: &LoanId) {
        let held = self.state().loans.remove(loan);
        let Some(held) = held else { return };
        let holder = held.holder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(holder) = holder else { return };
        let device = self.device(id);
        if let Some(fan_out) = device.as_ref().and_then(|device| device.fan_out_device()) {
            fan_out.forget(&holder);
        }
    }
}

/// Sees that what lies on a device finds room when it comes back.
fn has_headroom(
    monitor: &Monitor,
    swaps: &[Swap],
    path: &str,
    used: u64,
    margin: u64,
) -> Result<(), String> {
    let memory = monitor.memory().map_err(|error| error.to_string())?;
    let others = swaps.iter().filter(|swap| swap.path != path);
    let free: u64 = others.map(|swap| swap.bytes.saturating_sub(swap.used_bytes)).sum();
    let room = memory.available + free;
    if room < used + margin {
        return Err(format!(
            "{} lie on {path}, and {} are available with other swap: free {} first, or add swap",
            Size(used),
            Size(room),
            Size(used + margin - room)
        ));
    }
    Ok(())
}
