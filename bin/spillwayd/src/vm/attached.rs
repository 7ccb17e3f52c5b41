//! A reachable VM, through QEMU's monitor or libvirt: its memory, its requested size, and its memory in the pool.

use std::os::fd::{AsFd, BorrowedFd};

use spillway_guests::Facts;
use spillway_qmp::Event;
use spillway_sections::{Error, Pool};

use crate::config::Way;
use crate::vm::layout::Layout;
use crate::vm::{libvirt, monitor};

/// A VM whose identity was checked.
pub enum Attached {
    /// Its memory lies in the pool's files.
    Monitor(monitor::Attached),
    /// libvirt allocates its memory, and the pool counts it.
    Libvirt(libvirt::Attached),
}

/// An event of a VM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub resets: usize,
    /// A migration to another host has begun or ended.
    pub is_migrating: Option<bool>,
    /// A device's size has changed.
    pub has_changed: bool,
}

impl Attached {
    /// Connects, and reads the VM's memory devices.
    ///
    /// # Errors
    /// It does not answer, it is another VM, or it can't be resized: the line names what it needs.
    pub fn connect(name: &str, way: &Way, pool: &Pool) -> anyhow::Result<(Self, Facts)> {
        Ok(match way {
            Way::Monitor(path) => {
                let (attached, facts) = monitor::Attached::connect(name, path, pool)?;
                (Self::Monitor(attached), facts)
            }
            Way::Libvirt { domain, socket } => {
                let socket = socket.clone().unwrap_or_else(spillway_libvirt::usual_socket);
                let (attached, facts) = libvirt::Attached::connect(name, &socket, domain, pool)?;
                (Self::Libvirt(attached), facts)
            }
        })
    }

    /// Prepares the VM for windows, wherever they lie.
    ///
    /// # Errors
    /// Why it can have none.
    pub fn prepare_windows(&mut self) -> Result<(), String> {
        match self {
            Self::Monitor(attached) => attached.prepare_windows(),
            Self::Libvirt(_) => Err("the memory of a libvirt domain has no named file".into()),
        }
    }

    /// Where its boot memory lies, for its programs' windows.
    ///
    /// # Errors
    /// Why this is unknown.
    pub fn layout(&mut self, name: &str, pool: &Pool, boot_bytes: u64) -> Result<Layout, String> {
        match self {
            Self::Monitor(attached) => attached.layout(name, pool, boot_bytes),
            Self::Libvirt(_) => Err("the memory of a libvirt domain has no named file".into()),
        }
    }

    /// Reads the VM's events, without blocking.
    ///
    /// # Errors
    /// Why it is out of reach now.
    pub fn look(&mut self) -> Result<Seen, String> {
        match self {
            Self::Libvirt(attached) => attached.look().map(|()| Seen::default()),
            Self::Monitor(attached) => {
                attached.monitor.pump().map_err(|error| error.to_string())?;
                let events = attached.monitor.events();
                // A flood of events may have hidden a reset, so the VM is read again.
                if events.lost > 0 {
                    return Err("the monitor sent more events than fit in the queue".into());
                }
                let is_change = |event: &Event| matches!(event, Event::SizeChange { .. });
                let migrating = |event: &Event| match event {
                    Event::Migration { is_under_way } => Some(*is_under_way),
                    _ => None,
                };
                Ok(Seen {
                    is_migrating: events.seen.iter().filter_map(migrating).next_back(),
                    resets: events.seen.iter().filter(|event| **event == Event::Reset).count(),
                    has_changed: events.seen.iter().any(is_change),
                })
            }
        }
    }

    /// The size and requested size of each device, bytes.
    ///
    /// # Errors
    /// Why it is out of reach now.
    pub fn sizes(&mut self) -> Result<Vec<(u64, u64)>, String> {
        match self {
            Self::Monitor(attached) => attached.sizes().map_err(|error| error.to_string()),
            Self::Libvirt(attached) => attached.sizes(),
        }
    }

    /// Requests a size of a device from the guest.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn request(&mut self, device: usize, bytes: u64) -> Result<(), String> {
        match self {
            Self::Monitor(attached) => {
                attached.request(device, bytes).map_err(|error| error.to_string())
            }
            Self::Libvirt(attached) => attached.request(device, bytes),
        }
    }

    /// Reserves more of the pool for a device. Returns how many bytes are reserved then.
    ///
    /// # Errors
    /// The pool is exhausted.
    pub fn reserve(
        &self,
        name: &str,
        pool: &Pool,
        device: usize,
        more_bytes: u64,
    ) -> Result<u64, Error> {
        match self {
            Self::Monitor(_) => pool.reserve(name, self.file(device), more_bytes),
            Self::Libvirt(_) => pool.count_more(name, self.file(device), more_bytes),
        }
    }

    /// Returns to the pool what a device of this size does not use. Returns how many bytes stay
    /// reserved.
    ///
    /// # Errors
    /// The pool's file can't be read.
    pub fn settle(
        &self,
        name: &str,
        pool: &Pool,
        device: usize,
        size_bytes: u64,
    ) -> Result<u64, Error> {
        let file = self.file(device);
        match self {
            Self::Monitor(_) => Ok(pool.settle_device(name, file, size_bytes)?.set_aside_bytes),
            Self::Libvirt(_) => pool.count(name, file, size_bytes).map(|()| size_bytes),
        }
    }

    /// Adds an empty device of this many bytes to the VM, and reads the VM again. A libvirt domain gets none, because
    /// only its owner changes its definition.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn add_device(
        &mut self,
        name: &str,
        pool: &Pool,
        bytes: u64,
    ) -> anyhow::Result<Option<Facts>> {
        match self {
            Self::Monitor(attached) => attached.add_device(name, pool, bytes).map(Some),
            Self::Libvirt(_) => Ok(None),
        }
    }

    /// The pool's file or account of a device.
    pub fn file(&self, device: usize) -> u8 {
        match self {
            Self::Monitor(attached) => attached.file(device),
            Self::Libvirt(_) => libvirt::account(device),
        }
    }
}

impl AsFd for Attached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Monitor(attached) => attached.monitor.as_fd(),
            Self::Libvirt(attached) => attached.as_fd(),
        }
    }
}
