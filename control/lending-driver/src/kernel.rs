//! What the driver requires of this host's kernel.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spillway_block::Device;
use spillway_host::{Memory, Pressure, Swap};

use crate::error::Error;

/// This host's kernel: its memory, swap space and disks. The daemon uses a privileged helper process for it.
///
/// Calls block, some for minutes. Several threads may call it at the same time.
pub trait Kernel: Debug + Send + Sync {
    /// The present memory.
    ///
    /// # Errors
    /// It can't be read.
    fn memory(&self) -> io::Result<Memory>;

    /// The present swap spaces.
    ///
    /// # Errors
    /// They can't be read.
    fn swaps(&self) -> io::Result<Vec<Swap>>;

    /// The present memory pressure; none on a kernel that does not report it.
    fn pressure(&self) -> Option<Pressure>;

    /// Whether what changes this host is there. Does not wait.
    fn helper(&self) -> HelperState;

    /// Creates a disk for `device`. The kernel fails a request after `timeout` without an answer.
    ///
    /// # Errors
    /// The kernel has no driver for it, or refuses. Nothing is left of the disk.
    fn attach(
        &self,
        device: Arc<dyn Device>,
        timeout: Duration,
    ) -> Result<Box<dyn AttachedDevice>, Error>;

    /// Serves `device` on a Unix socket, for the daemon's user and root only.
    ///
    /// # Errors
    /// The socket can't be made.
    fn serve(&self, device: Arc<dyn Device>, path: &Path)
    -> Result<Box<dyn AttachedDevice>, Error>;

    /// Connects to a lender's device in direct mode; returns its path.
    ///
    /// # Errors
    /// The lender can't be reached, or does not have it.
    fn connect(&self, device: &RemoteDevice) -> Result<String, Error>;

    /// Disconnects from a device of [`Self::connect`].
    ///
    /// # Errors
    /// The kernel does not release it.
    fn disconnect(&self, path: &str) -> Result<(), Error>;

    /// Makes a disk swap space with the highest priority; returns the priority. Waits no longer than `limit`.
    ///
    /// # Errors
    /// The kernel refuses, or the answer was lost.
    fn swap_on(&self, path: &str, limit: Duration) -> Result<String, Error>;

    /// Stops swapping to a disk, and brings its pages back.
    ///
    /// # Errors
    /// The pages do not fit, or it took longer than `limit`: the disk stays in use.
    fn swap_off(&self, path: &str, limit: Duration) -> Result<(), Error>;

    /// Makes the kernel keep at least `bytes` free.
    ///
    /// # Errors
    /// The value is lower, and can't or may not be changed.
    fn keep_free(&self, bytes: u64, may_change: bool) -> Result<(), Error>;

    /// Restores the value before [`Self::keep_free`].
    fn restore_free(&self);
}

/// The state of the privileged helper process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelperState {
    /// This host needs none.
    #[default]
    Unneeded,
    /// It is there.
    Ok,
    /// It has not answered in time, and still does not.
    Silent,
    /// It has ended.
    Gone,
}

impl HelperState {
    /// Its name in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unneeded => "none",
            Self::Ok => "ok",
            Self::Silent => "silent",
            Self::Gone => "gone",
        }
    }

    /// Why this host can't borrow, if it can't.
    pub const fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Unneeded | Self::Ok => None,
            Self::Silent => Some("the helper does not answer"),
            Self::Gone => Some("the helper is gone; restart the daemon"),
        }
    }
}

/// A device in use on this host. Dropping it also ends the use, but can't report errors.
pub trait AttachedDevice: Debug + Send {
    /// The disk or the socket.
    fn path(&self) -> &Path;

    /// Takes the device out of use.
    ///
    /// # Errors
    /// The kernel does not let go.
    fn detach(self: Box<Self>) -> Result<(), Error>;
}

/// A lender's device, in direct mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteDevice {
    /// The address of the lender's target.
    pub address: SocketAddr,
    /// Its subsystem.
    pub nqn: String,
    /// The device's UUID.
    pub uuid: u128,
    /// Time without an answer after which it counts as lost.
    pub loss: Duration,
}
