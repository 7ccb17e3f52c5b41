//! Devices of this process as disks of this host's kernel, through its own NBD driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spillway_block::Device;

use crate::error::Error;

/// How a device is attached.
#[derive(Clone, Debug)]
pub struct AttachSettings {
    /// Connections, each with a thread of its own; the kernel spreads requests over them by processor.
    pub connections: usize,
    /// After how long without an answer the kernel gives a request up: seconds, longer than the device's longest
    /// stall.
    pub timeout: Duration,
}

impl Default for AttachSettings {
    fn default() -> Self {
        Self { connections: 2, timeout: Duration::from_secs(30) }
    }
}

/// A device that the kernel has as a disk.
#[derive(Debug)]
pub struct Attached {
    path: PathBuf,
}

impl Attached {
    /// The disk: `/dev/nbdN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the disk away from the kernel; nothing may use it any more.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses.
    pub fn detach(self) -> Result<(), Error> {
        Ok(())
    }
}

/// Gives `device` to this host's kernel as a disk.
///
/// # Errors
/// [`Error::Attach`] with what to do.
pub fn attach(device: Arc<dyn Device>, settings: &AttachSettings) -> Result<Attached, Error> {
    let _ = (device, settings);
    Err(Error::Attach("attaching is not built yet".into()))
}
