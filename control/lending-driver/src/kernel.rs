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

/// This host's kernel: its memory, its swap space and its disks. The daemon asks it through a process that has the rights
/// for that.
///
/// Calls block, some for minutes. Several threads call it at once.
pub trait Kernel: Debug + Send + Sync {
    /// The memory now.
    ///
    /// # Errors
    /// It can't be read.
    fn memory(&self) -> io::Result<Memory>;

    /// The swap spaces now.
    ///
    /// # Errors
    /// They can't be read.
    fn swaps(&self) -> io::Result<Vec<Swap>>;

    /// Who waits for memory now; none on a kernel that does not say so.
    fn pressure(&self) -> Option<Pressure>;

    /// Makes a disk of `device`. The kernel gives a request up after `timeout` without an answer.
    ///
    /// # Errors
    /// It has no driver for that, or refuses. Nothing is left of the disk.
    fn attach(
        &self,
        device: Arc<dyn Device>,
        timeout: Duration,
    ) -> Result<Box<dyn AttachedDevice>, Error>;

    /// Serves `device` on a Unix socket; others than the daemon's user and root are sent away.
    ///
    /// # Errors
    /// The socket can't be made.
    fn serve(&self, device: Arc<dyn Device>, path: &Path)
    -> Result<Box<dyn AttachedDevice>, Error>;

    /// Connects to a device that a lender serves, in direct mode; its path.
    ///
    /// # Errors
    /// The lender can't be reached, or does not have it.
    fn connect(&self, device: &RemoteDevice) -> Result<String, Error>;

    /// Disconnects from what [`Self::connect`] gave.
    ///
    /// # Errors
    /// The kernel does not let go.
    fn disconnect(&self, path: &str) -> Result<(), Error>;

    /// Makes swap space of a disk, and swaps onto it before any other; its priority.
    ///
    /// # Errors
    /// The kernel refuses, or the answer was lost.
    fn swap_on(&self, path: &str) -> Result<String, Error>;

    /// Brings back what lies on a disk, and swaps onto it no more.
    ///
    /// # Errors
    /// There is no room for it, or it took longer than `limit`: the disk stays in use.
    fn swap_off(&self, path: &str, limit: Duration) -> Result<(), Error>;

    /// Sees that at least `bytes` are kept free.
    ///
    /// # Errors
    /// It is less, and can't or may not be changed.
    fn keep_free(&self, bytes: u64, may_change: bool) -> Result<(), Error>;

    /// Takes back what [`Self::keep_free`] changed.
    fn restore_free(&self);
}

/// A device that this host uses. Dropping it ends that too, but can't tell what went wrong.
pub trait AttachedDevice: Debug + Send {
    /// The disk or the socket.
    fn path(&self) -> &Path;

    /// Takes the device away from whoever uses it.
    ///
    /// # Errors
    /// The kernel does not let go.
    fn detach(self: Box<Self>) -> Result<(), Error>;
}

/// A device that a lender serves, in direct mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteDevice {
    /// Where the lender's target is.
    pub address: SocketAddr,
    /// Its subsystem.
    pub nqn: String,
    /// The device's UUID.
    pub uuid: u128,
    /// After how long without an answer it is lost.
    pub loss: Duration,
}
