//! A device that consists of loans.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use spillway_block::fresh_uuid;
use spillway_fanout::{Counters, FanOut, Holder, Report, SlabLocation};
use spillway_host::Swap;
use spillway_lending::{CopyLocation, DeviceId, Event, HostId, LoanId, LostPlace};
use spillway_types::PAGE_BYTES;
use tokio::sync::mpsc::UnboundedSender;

use crate::error::Error;
use crate::health::PeerHealth;
use crate::kernel::AttachedDevice;
use crate::settings::Settings;

/// Most consecutive timeouts for a batch and the batch before it: two batches of 32 requests.
const LATE_REQUESTS: u32 = 64;
/// Batches that wait for last copies, one after the other.
const WAITING_BATCHES: u32 = 2;
/// Additional time before the kernel fails a request.
const KERNEL_WAITS: Duration = Duration::from_secs(30);

/// The places of slabs' copies.
#[derive(Debug, Default)]
pub struct Slabs {
    pub slabs: Vec<[Option<SlabLocation>; 2]>,
    /// The local file, if there is one.
    pub file: Option<Arc<Holder>>,
}

/// A device.
#[derive(Debug)]
pub struct Device {
    kind: Kind,
    use_: Mutex<Use>,
}

#[derive(Debug)]
enum Kind {
    /// Spread over lenders.
    FanOut {
        fan_out: Arc<FanOut>,
        file: Mutex<Option<Arc<Holder>>>,
        told: Arc<OnceLock<Weak<Device>>>,
    },
    /// One lender's, to which the kernel connects itself.
    Direct,
    /// No device: a dry run.
    Pretended,
}

/// Its user and path.
#[derive(Debug, Default)]
struct Use {
    path: String,
    attached: Option<Box<dyn AttachedDevice>>,
}

impl Device {
    /// A device of a dry run.
    pub fn pretended() -> Self {
        Self { kind: Kind::Pretended, use_: Mutex::default() }
    }

    /// The device at `path`, which a lender serves to the kernel.
    pub fn direct(path: String) -> Self {
        let used = Use { path, ..Use::default() };
        Self { kind: Kind::Direct, use_: Mutex::new(used) }
    }

    /// A device of slabs on lenders. Lost copies go to `losses`, and their causes to `health`.
    ///
    /// # Errors
    /// [`Error::FanOut`], [`Error::Io`].
    pub fn fan_out(
        id: DeviceId,
        own: HostId,
        lend: &Settings,
        places: Slabs,
        losses: UnboundedSender<Event>,
        health: Arc<PeerHealth>,
    ) -> Result<Self, Error> {
        let settings = spillway_fanout::Settings {
            slab_bytes: lend.machine.slab_bytes,
            request_timeout: lend.request_timeout,
            last_copy_wait: lend.machine.lease,
            stall_max: lend.machine.lease,
            ..spillway_fanout::Settings::default()
        };
        let uuid = fresh_uuid()?;
        let itself = Arc::<OnceLock<Weak<Self>>>::default();
        let watched = itself.clone();
        let told = move |report: Report| {
            match report {
                Report::Loss(loss) => health.pages_failed(&loss),
                Report::Answer { holder, after } => return health.pages_answered(holder, after),
            }
            let Some(device) = watched.get().and_then(Weak::upgrade) else { return };
            if let Some(event) = device.lost_places(id, &own) {
                // The receiver is gone when the daemon ends.
                let _ = losses.send(event);
            }
            // This thread must not own the last reference, because it ends with the device.
            if let Some(last) = Arc::into_inner(device) {
                thread::spawn(move || drop(last));
            }
        };
        let fan_out = Arc::new(FanOut::open(settings, uuid, places.slabs, told)?);
        let kind = Kind::FanOut { fan_out, file: Mutex::new(places.file), told: itself };
        Ok(Self { kind, use_: Mutex::default() })
    }

    /// Starts reporting losses, once the device has its final address.
    pub fn watch_losses(&self, itself: Weak<Self>) {
        if let Kind::FanOut { told, .. } = &self.kind {
            // It is called once.
            let _ = told.set(itself);
        }
    }

    fn used(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All lost copies, at each call; none if there are none.
    pub fn lost_places(&self, device: DeviceId, own: &HostId) -> Option<Event> {
        let fan_out = self.fan_out_device()?;
        let mut all = Vec::new();
        for slab in 0..fan_out.slabs() {
            let copies = fan_out.places(slab).unwrap_or_default();
            for lost in copies.iter().flatten().filter(|it| it.is_lost) {
                let SlabLocation { holder, slab: index } = &lost.place;
                let loan = LoanId { borrower: own.clone(), number: holder.number() };
                let place = match holder.number() {
                    Holder::FILE => CopyLocation::File,
                    _ => CopyLocation::Lender { loan, index: *index },
                };
                all.push(LostPlace { slab, place });
            }
        }
        (!all.is_empty()).then_some(Event::LostPlaces { device, lost: all })
    }

    /// Its path; empty before it is in use, and in a dry run.
    pub fn path(&self) -> String {
        self.used().path.clone()
    }

    /// Whether the kernel connects to its lender itself.
    pub fn is_direct(&self) -> bool {
        matches!(self.kind, Kind::Direct)
    }

    /// The device of slabs, if it is one.
    pub fn fan_out_device(&self) -> Option<&Arc<FanOut>> {
        match &self.kind {
            Kind::FanOut { fan_out, .. } => Some(fan_out),
            Kind::Direct | Kind::Pretended => None,
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.fan_out_device().map(|fan_out| fan_out.counters()).unwrap_or_default()
    }

    /// Used bytes, as the kernel reports if it is swap space.
    pub fn used_bytes(&self, swaps: &[Swap]) -> u64 {
        let path = self.path();
        let swap = swaps.iter().find(|swap| swap.path == path).map(|swap| swap.used_bytes);
        swap.unwrap_or_else(|| self.counters().stored_pages * PAGE_BYTES as u64)
    }

    /// The local file, which `open` creates for this many slabs if it does not exist yet.
    ///
    /// # Errors
    /// [`Error::NoSlabs`], and those of `open`.
    pub fn file(
        &self,
        open: impl FnOnce(u64) -> Result<Arc<Holder>, Error>,
    ) -> Result<Arc<Holder>, Error> {
        let Kind::FanOut { fan_out, file, .. } = &self.kind else {
            return Err(Error::NoSlabs);
        };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        Ok(file.insert(open(fan_out.slabs().into())?).clone())
    }

    /// Which copies of a slab have missed writes, and have not been brought up to date yet.
    pub fn is_behind(&self, slab: u32) -> [bool; 2] {
        let pages = self.fan_out_device().map(|fan_out| fan_out.behind_pages(slab));
        pages.unwrap_or_default().map(|pages| pages != 0)
    }

    /// Whether the local file has a good copy of a slab, with all its pages.
    pub fn is_in_file(&self, slab: u32, copy: usize) -> bool {
        let copies = self.fan_out_device().and_then(|fan_out| fan_out.places(slab).ok());
        let standing = copies.and_then(|copies| copies.into_iter().nth(copy).flatten());
        standing.is_some_and(|it| {
            let is_good = !it.is_lost && it.behind_pages == 0;
            is_good && it.place.holder.number() == Holder::FILE
        })
    }

    /// Stops using the loan of this number, if the device has copies in it.
    pub fn forget(&self, number: u64) {
        let Some(fan_out) = self.fan_out_device() else { return };
        let mut places =
            (0..fan_out.slabs()).flat_map(|slab| fan_out.places(slab).unwrap_or_default());
        let its = places.find_map(|it| it.filter(|it| it.place.holder.number() == number));
        if let Some(its) = its {
            fan_out.forget(&its.place.holder);
        }
    }

    /// Puts it into use, as `attached` says.
    pub fn attached(&self, attached: Box<dyn AttachedDevice>) {
        let mut used = self.used();
        used.path = attached.path().display().to_string();
        used.attached = Some(attached);
    }

    /// Takes it out of use.
    ///
    /// # Errors
    /// The kernel does not release it.
    pub fn close(&self) -> Result<(), Error> {
        let attached = self.used().attached.take();
        attached.map_or(Ok(()), |attached| attached.detach())
    }
}

/// How long the kernel waits for a request: longer than the device ever takes.
pub fn kernel_timeout(lend: &Settings) -> Duration {
    lend.request_timeout * LATE_REQUESTS + lend.machine.lease * WAITING_BATCHES + KERNEL_WAITS
}
