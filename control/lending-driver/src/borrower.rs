//! The borrower's side: devices over loans of others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_fanout::{BackupFile, Holder};
use spillway_host::Swap;
use spillway_lending::{Access, CopyLocation, DeviceId, Event, HostId, LoanId, Mode};
use spillway_types::Size;
use tokio::sync::mpsc::UnboundedSender;

use crate::device::{Device, Slabs, kernel_timeout};
use crate::error::Error;
use crate::health::PeerHealth;
use crate::kernel::{Kernel, RemoteDevice};
use crate::settings::{DeviceUse, Settings};
use crate::transport::Transport;

/// The slowest expected rate at which pages come back, bytes per second. It limits the time of a
/// swapoff.
const SWAPOFF_BYTES_S: u64 = 2 << 20;
/// Additional time for a swapoff.
const SWAPOFF: Duration = Duration::from_secs(60);

/// Loans of other hosts, and the devices that consist of them.
#[derive(Debug)]
pub struct Borrower {
    own: HostId,
    settings: Arc<Settings>,
    kernel: Arc<dyn Kernel>,
    transport: Arc<dyn Transport>,
    health: Arc<PeerHealth>,
    state: Mutex<BorrowerState>,
}

#[derive(Debug, Default)]
struct BorrowerState {
    loans: BTreeMap<LoanId, Arc<OpenLoan>>,
    devices: BTreeMap<DeviceId, Arc<Device>>,
}

/// A loan that was granted.
#[derive(Debug)]
struct OpenLoan {
    device: DeviceId,
    lender: HostId,
    access: Access,
    /// Its transport, once needed.
    holder: Mutex<Option<Arc<Holder>>>,
}

impl Borrower {
    /// Nothing is borrowed yet.
    pub fn new(
        own: HostId,
        settings: Arc<Settings>,
        kernel: Arc<dyn Kernel>,
        transport: Arc<dyn Transport>,
        health: Arc<PeerHealth>,
    ) -> Self {
        Self { own, settings, kernel, transport, health, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, BorrowerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self, device: DeviceId) -> Option<Arc<Device>> {
        self.state().devices.get(&device).cloned()
    }

    /// All devices that are there.
    pub fn devices(&self) -> Vec<(DeviceId, Arc<Device>)> {
        self.state().devices.iter().map(|(&id, device)| (id, device.clone())).collect()
    }

    /// Used bytes on each device.
    pub fn used_bytes(&self, swaps: &[Swap]) -> Vec<(DeviceId, u64)> {
        let used = |(id, device): (DeviceId, Arc<Device>)| (id, device.used_bytes(swaps));
        self.devices().into_iter().map(used).collect()
    }

    /// The lost copies of each device that has some.
    pub fn lost_places(&self) -> Vec<Event> {
        let lost = |(id, device): (DeviceId, Arc<Device>)| device.lost_places(id, &self.own);
        self.devices().into_iter().filter_map(lost).collect()
    }

    /// Records a granted loan.
    pub fn open(&self, device: DeviceId, loan: LoanId, lender: HostId, access: Access) {
        let holder = Mutex::default();
        let held = OpenLoan { device, lender, access, holder };
        self.state().loans.insert(loan, Arc::new(held));
    }

    /// Creates a device of slabs, and puts it into use on this host. After an error nothing of it
    /// is left.
    ///
    /// # Errors
    /// Why it can't.
    pub fn attach(
        &self,
        id: DeviceId,
        slabs: &[[Option<CopyLocation>; 2]],
        losses: UnboundedSender<Event>,
    ) -> Result<(), Error> {
        let settings = &self.settings;
        let bytes = slabs.len() as u64 * settings.machine.slab_bytes;
        if settings.dry_run {
            let size = Size(bytes);
            tracing::info!(%id, %size, "dry run: would create a device and swap onto it");
            self.state().devices.insert(id, Arc::new(Device::pretended()));
            return Ok(());
        }
        let device = match settings.machine.mode {
            Mode::Direct => Device::direct(self.connect(slabs)?),
            Mode::FanOut => {
                let (own, health) = (self.own.clone(), self.health.clone());
                Device::fan_out(id, own, settings, self.places(id, slabs)?, losses, health)?
            }
        };
        let device = Arc::new(device);
        device.watch_losses(Arc::downgrade(&device));
        self.insert(id, &device, slabs);
        if let Err(error) = self.use_device(id, &device, bytes) {
            self.close(id, &device);
            self.state().devices.remove(&id);
            return Err(error);
        }
        Ok(())
    }

    /// Makes a device known before it is in use: a loan that is forgotten from then on is forgotten in the device too.
    /// Those that were forgotten before have served no page yet.
    fn insert(&self, id: DeviceId, device: &Arc<Device>, slabs: &[[Option<CopyLocation>; 2]]) {
        let mut state = self.state();
        state.devices.insert(id, device.clone());
        let mut gone = BTreeSet::new();
        for place in slabs.iter().flatten().flatten() {
            if let CopyLocation::Lender { loan, .. } = place
                && !state.loans.contains_key(loan)
            {
                gone.insert(loan.number);
            }
        }
        drop(state);
        for number in gone {
            device.forget(number);
        }
    }

    /// The places of a device's slabs, with their transports.
    fn places(&self, id: DeviceId, slabs: &[[Option<CopyLocation>; 2]]) -> Result<Slabs, Error> {
        let needs_file = slabs.iter().flatten().flatten().any(|place| *place == CopyLocation::File);
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
        place: &CopyLocation,
        slab: u32,
        file: Option<&Arc<Holder>>,
    ) -> Result<spillway_fanout::SlabLocation, Error> {
        match place {
            CopyLocation::Lender { loan, index } => {
                Ok(spillway_fanout::SlabLocation { holder: self.holder(loan)?, slab: *index })
            }
            CopyLocation::File => {
                let holder = file.ok_or(Error::NoFile)?.clone();
                Ok(spillway_fanout::SlabLocation { holder, slab })
            }
        }
    }

    /// The local file of a device, allocated in full.
    fn file(&self, id: DeviceId, slabs: u64) -> Result<Arc<Holder>, Error> {
        let start = self.settings.backup_file.as_ref().ok_or(Error::NoBackupFile)?;
        let mut name = start.clone().into_os_string();
        if !BackupFile::is_disk(start) {
            name.push(format!(".{id}"));
        }
        let bytes = slabs * self.settings.machine.slab_bytes;
        Ok(Holder::file(BackupFile::open(&PathBuf::from(name), bytes)?)?)
    }

    fn loan(&self, loan: &LoanId) -> Result<Arc<OpenLoan>, Error> {
        let held = self.state().loans.get(loan).cloned();
        held.ok_or_else(|| Error::NotHeld(loan.clone()))
    }

    /// The transport to a loan, created on first use.
    fn holder(&self, loan: &LoanId) -> Result<Arc<Holder>, Error> {
        let held = self.loan(loan)?;
        let mut holder = held.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = &*holder {
            return Ok(holder.clone());
        }
        let way = self.transport.connect(&held.lender, &held.access)?;
        let made = Holder::lender(loan.number, way).map_err(|error| Error::Lender {
            lender: held.lender.clone(),
            address: held.access.address.clone(),
            error: error.into(),
        })?;
        Ok(holder.insert(made).clone())
    }

    /// Connects this host's kernel to the one loan of a device in direct mode; the path.
    fn connect(&self, slabs: &[[Option<CopyLocation>; 2]]) -> Result<String, Error> {
        let first = slabs.first().and_then(|copies| copies[0].as_ref());
        let Some(CopyLocation::Lender { loan, .. }) = first else { return Err(Error::NotOneLoan) };
        let held = self.loan(loan)?;
        let lender = &held.lender;
        let address = held.access.address.parse().map_err(|_| Error::Address {
            lender: lender.clone(),
            address: held.access.address.clone(),
        })?;
        let nqn = held.access.nqn.clone();
        let nqn = nqn.ok_or_else(|| Error::NoSubsystem(lender.clone()))?;
        tracing::warn!(%lender, %address, "direct mode: pages travel in the clear");
        // Without another copy, requests wait as long as the loan may last.
        let loss = self.settings.machine.lease;
        self.kernel.connect(&RemoteDevice { address, nqn, uuid: held.access.pool.0, loss })
    }

    /// Puts a device into use on this host.
    fn use_device(&self, id: DeviceId, device: &Device, bytes: u64) -> Result<(), Error> {
        let (settings, kernel) = (&self.settings, &self.kernel);
        let fan_out = device.fan_out_device();
        if settings.device == DeviceUse::Socket {
            let path = settings.socket_dir.join(format!("lend-{id}.sock"));
            let fan_out = fan_out.ok_or(Error::NotServed)?;
            device.attached(kernel.serve(fan_out.clone(), &path)?);
            return Ok(());
        }
        if let Some(fan_out) = fan_out {
            device.attached(kernel.attach(fan_out.clone(), kernel_timeout(settings))?);
        }
        let twentieth = kernel.memory()?.total / 20;
        let least = settings.min_free_bytes.min(twentieth);
        if least > 0 {
            kernel.keep_free(least, settings.raise_min_free)?;
        }
        let path = device.path();
        let priority = match kernel.swap_on(&path, kernel_timeout(settings)) {
            // Despite the error, the kernel uses it: it must not be closed.
            Err(error) if self.swaps_onto(&path) => {
                tracing::warn!(path, "swapon reported: {error}");
                String::new()
            }
            priority => priority?,
        };
        tracing::info!(path, size = %Size(bytes), priority, "swapping onto borrowed memory");
        Ok(())
    }

    /// Whether the kernel swaps onto a device, as far as known.
    fn swaps_onto(&self, path: &str) -> bool {
        self.kernel.swaps().is_ok_and(|swaps| swaps.iter().any(|swap| swap.path == path))
    }

    /// Takes a device out of use. After an error it is as it was.
    ///
    /// # Errors
    /// Why it can't.
    pub fn detach(&self, id: DeviceId) -> Result<(), Error> {
        let Some(device) = self.device(id) else { return Ok(()) };
        if self.settings.dry_run {
            tracing::info!(%id, "dry run: would swapoff, and close the device");
        } else if self.settings.device == DeviceUse::Swap {
            let swaps = self.kernel.swaps()?;
            let used = device.used_bytes(&swaps);
            let path = device.path();
            if swaps.iter().any(|swap| swap.path == path) {
                self.has_headroom(&swaps, &path, used)?;
                let limit = SWAPOFF + Duration::from_secs(used / SWAPOFF_BYTES_S);
                self.kernel.swap_off(&path, limit)?;
            }
        }
        self.close(id, &device);
        let mut state = self.state();
        state.devices.remove(&id);
        state.loans.retain(|_, held| held.device != id);
        Ok(())
    }

    /// Checks that a device's pages fit in memory when they come back.
    fn has_headroom(&self, swaps: &[Swap], path: &str, used: u64) -> Result<(), Error> {
        let memory = self.kernel.memory()?;
        let others = swaps.iter().filter(|swap| swap.path != path);
        let free: u64 = others.map(|swap| swap.bytes.saturating_sub(swap.used_bytes)).sum();
        let (room, needed) = (memory.available + free, used + self.settings.margin_bytes);
        if room < needed {
            return Err(Error::Headroom {
                path: path.to_owned(),
                used_bytes: used,
                room_bytes: room,
                missing_bytes: needed - room,
            });
        }
        Ok(())
    }

    /// Releases a device's resources of this host.
    fn close(&self, id: DeviceId, device: &Device) {
        let closed = match (device.is_direct(), self.settings.dry_run) {
            (_, true) => Ok(()),
            (true, false) => self.kernel.disconnect(&device.path()),
            (false, false) => device.close(),
        };
        if let Err(error) = closed {
            tracing::error!("can't close a device: {error}");
        }
        let is_last = self.state().devices.keys().all(|other| *other == id);
        if is_last {
            self.kernel.restore_free();
        }
    }

    /// Copies a slab to a new place, and uses the new copy.
    ///
    /// # Errors
    /// Why it can't; the copy stays where it was.
    pub fn place(
        &self,
        id: DeviceId,
        slab: u32,
        copy: u8,
        place: &CopyLocation,
    ) -> Result<(), Error> {
        if self.settings.dry_run {
            return Ok(());
        }
        let device = self.device(id).ok_or(Error::NoDevice)?;
        let fan_out = device.fan_out_device().ok_or(Error::Unmovable)?;
        let file = match place {
            CopyLocation::File => Some(device.file(|slabs| self.file(id, slabs))?),
            CopyLocation::Lender { .. } => None,
        };
        if *place == CopyLocation::File && device.is_in_file(slab, 1 - usize::from(copy)) {
            // The local file has all acknowledged pages already: the other copy ends with its loan.
            return Ok(());
        }
        let place = self.fan_out_place(place, slab, file.as_ref())?;
        Ok(fan_out.place(slab, copy.into(), place)?)
    }

    /// Stops using a loan: when this returns, no request to it is in flight.
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
