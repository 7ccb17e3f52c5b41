//! Operations of this host's kernel. Privileged ones go through the helper.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use spillway_block::Device;
use spillway_host::{Memory, Monitor, Pressure, Swap};
use spillway_lending_driver::{AttachedDevice, Error, HelperState, Kernel, RemoteDevice};
use spillway_nbd::AttachSettings;

use super::helper::{Connect, Helper, Verb};
use super::socket::Served;

/// The kernel, through its files in /proc and through the helper.
pub struct HostKernel {
    monitor: Monitor,
    /// None if nothing on this host is changed.
    helper: Option<Arc<Helper>>,
    /// The secret that the kernel proves to lenders, in direct mode.
    secret: Arc<RwLock<Option<String>>>,
}

/// Omits the secret, so that no log contains it.
impl std::fmt::Debug for HostKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostKernel").field("helper", &self.helper).finish_non_exhaustive()
    }
}

impl HostKernel {
    /// # Errors
    /// /proc/meminfo can't be opened.
    pub fn open(helper: Option<Helper>, secret: Arc<RwLock<Option<String>>>) -> io::Result<Self> {
        Ok(Self { monitor: Monitor::open()?, helper: helper.map(Arc::new), secret })
    }

    fn asked(&self) -> Result<&Arc<Helper>, Error> {
        self.helper.as_ref().ok_or_else(|| Error::Kernel("there is no helper".into()))
    }

    fn ask(&self, verb: &Verb) -> Result<String, Error> {
        self.asked()?.ask(verb, Vec::new()).map_err(|line| Error::Kernel(line.into()))
    }
}

impl Kernel for HostKernel {
    fn memory(&self) -> io::Result<Memory> {
        self.monitor.memory()
    }

    fn swaps(&self) -> io::Result<Vec<Swap>> {
        self.monitor.swaps()
    }

    fn pressure(&self) -> Option<Pressure> {
        self.monitor.pressure()
    }

    fn helper(&self) -> HelperState {
        self.helper.as_ref().map(|helper| helper.state()).unwrap_or_default()
    }

    fn attach(
        &self,
        device: Arc<dyn Device>,
        timeout: Duration,
    ) -> Result<Box<dyn AttachedDevice>, Error> {
        let settings = AttachSettings { timeout, ..AttachSettings::default() };
        let attached = spillway_nbd::attach_by(self.asked()?.clone(), device, &settings);
        Ok(Box::new(Disk(attached.map_err(kernel_error)?)))
    }

    fn serve(
        &self,
        device: Arc<dyn Device>,
        path: &Path,
    ) -> Result<Box<dyn AttachedDevice>, Error> {
        let served = Served::start(path, device);
        let served = served.map_err(|error| Error::Socket { path: path.to_owned(), error })?;
        Ok(Box::new(served))
    }

    fn connect(&self, device: &RemoteDevice) -> Result<String, Error> {
        let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner).clone();
        let RemoteDevice { address, nqn, uuid, loss } = device.clone();
        let loss_s = loss.as_secs();
        self.ask(&Verb::Connect(Connect { address, nqn, uuid, loss_s, secret }))
    }

    fn disconnect(&self, path: &str) -> Result<(), Error> {
        self.ask(&Verb::Disconnect { path: path.to_owned() }).map(drop)
    }

    fn swap_on(&self, path: &str, limit: Duration) -> Result<String, Error> {
        self.ask(&Verb::SwapOn { path: path.to_owned(), timeout_s: limit.as_secs() })
    }

    fn swap_off(&self, path: &str, limit: Duration) -> Result<(), Error> {
        self.ask(&Verb::SwapOff { path: path.to_owned(), timeout_s: limit.as_secs() }).map(drop)
    }

    fn keep_free(&self, bytes: u64, may_change: bool) -> Result<(), Error> {
        self.ask(&Verb::MinFree { bytes, may_change }).map(drop)
    }

    fn restore_free(&self) {
        if self.helper.is_some() {
            // The helper restores what it changed.
            let _ = self.ask(&Verb::MinFree { bytes: 0, may_change: true });
        }
    }
}

/// A disk of the kernel.
#[derive(Debug)]
struct Disk(spillway_nbd::Attached);

impl AttachedDevice for Disk {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn detach(self: Box<Self>) -> Result<(), Error> {
        self.0.detach().map_err(kernel_error)
    }
}

fn kernel_error(error: spillway_nbd::Error) -> Error {
    Error::Kernel(error.into())
}

impl AttachedDevice for Served {
    fn path(&self) -> &Path {
        Self::path(self)
    }

    fn detach(self: Box<Self>) -> Result<(), Error> {
        // Dropping it ends it.
        Ok(())
    }
}
