//! Where windows lie: in huge pages of the guest's memory, or in its ivshmem device.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::PollFd;
use spillway_guests::window::WindowPlace;
use spillway_wire::ring::{Geometry, Welcome};

use super::device::{Device, Part};
use super::pages::{Pages, Window};

/// The sources of windows. At least one exists.
#[derive(Debug)]
pub struct Memory {
    pub pages: Option<Pages>,
    /// The guest's ivshmem devices. Only the one that the host maps is ever written.
    pub devices: Vec<Device>,
    /// Which of them that is.
    pub used: Option<usize>,
}

/// A window's memory, in use until [`Memory::give_back`].
#[derive(Debug)]
pub enum HeldMemory {
    /// Pages of the guest's memory.
    Pages(Window),
    /// Pages of its device.
    Part(Part),
}

impl HeldMemory {
    /// Where the host finds it.
    pub fn place(&self) -> WindowPlace {
        match self {
            Self::Pages(window) => WindowPlace::Pages(window.pages.clone()),
            Self::Part(part) => part.place(),
        }
    }

    /// Its huge pages.
    pub const fn count(&self) -> usize {
        match self {
            Self::Pages(window) => window.pages.len(),
            Self::Part(part) => part.count(),
        }
    }

    /// Those of them that are the guest's memory.
    pub const fn guest_pages(&self) -> usize {
        match self {
            Self::Pages(window) => window.pages.len(),
            Self::Part(_) => 0,
        }
    }

    pub const fn is_on_device(&self) -> bool {
        matches!(self, Self::Part(_))
    }

    /// What its program is told.
    pub fn welcome(&self, geometry: Geometry, instance: u64) -> Welcome {
        let first = match self {
            Self::Pages(_) => None,
            Self::Part(part) => NonZeroU32::new(part.first),
        };
        match first {
            None => Welcome::Granted { geometry, instance },
            Some(first) => Welcome::Part { geometry, instance, first },
        }
    }
}

impl AsFd for HeldMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Pages(window) => window.as_fd(),
            Self::Part(part) => part.as_fd(),
        }
    }
}

impl Memory {
    /// The device in which windows may lie.
    pub fn device(&self) -> Option<&Device> {
        self.devices.get(self.used?)
    }

    /// Uses the device that contains this number, which the host wrote to its file. Clears what earlier runs of the agent
    /// lent there. Call it when the host has released all of it.
    pub fn use_device(&mut self, number: Option<u64>) {
        let has_it = |device: &Device| number.is_some_and(|number| device.number() == number);
        self.used = self.devices.iter().position(has_it);
        if let Some(device) = self.device() {
            device.clear();
        }
    }

    /// Lends this many successive pages of the device, if they are free there.
    pub fn lend_part(&mut self, count: usize) -> Option<HeldMemory> {
        let used = self.used?;
        self.devices.get_mut(used)?.lend(used, count).map(HeldMemory::Part)
    }

    /// Allocates pages of the guest's memory for window number `id`. Together there may be `most` of them. `hold`
    /// starts a process that holds them when this one is killed.
    ///
    /// # Errors
    /// There are none.
    pub fn make(
        &mut self,
        id: u64,
        count: usize,
        most: usize,
        hold: impl FnOnce(&OwnedFd, &Path) -> io::Result<()>,
    ) -> io::Result<HeldMemory> {
        let pages = self.pages.as_mut();
        let pages = pages.ok_or_else(|| io::Error::other("this guest has no hugetlbfs"))?;
        // Allow twice as many: a returned page becomes free a moment later.
        pages.allow(2 * most as u64)?;
        hold(pages.pins(), pages.folder())?;
        pages.make(id, count).map(HeldMemory::Pages)
    }

    /// The program gets the window.
    pub fn hand_over(&self, held: &HeldMemory) {
        if let HeldMemory::Part(part) = held
            && let Some(device) = self.devices.get(part.device)
        {
            device.hand_over(part);
        }
    }

    /// Takes a window's memory back. Call it when the host has released it. Pages of a device are free once `program`, the
    /// socket of a program that may still write there, is closed too.
    pub fn give_back(&mut self, (held, program): (HeldMemory, Option<UnixStream>)) {
        match (held, &mut self.pages) {
            (HeldMemory::Pages(window), Some(pages)) => pages.give_back(window),
            (HeldMemory::Pages(_), None) => {}
            (HeldMemory::Part(part), _) => {
                if let Some(device) = self.devices.get_mut(part.device) {
                    device.give_back(part, program);
                }
            }
        }
    }

    /// Frees the pages of devices that programs have left now.
    pub fn hear_programs(&mut self) {
        self.devices.iter_mut().for_each(Device::hear_programs);
    }

    /// The sockets of those programs.
    pub fn interest(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.devices.iter().flat_map(Device::interest)
    }

    /// Frees the guest memory that earlier runs of the agent lent. Call it when the host has released all of it.
    pub fn forget_others(&self) {
        if let Some(pages) = &self.pages {
            pages.forget_others();
        }
    }
}
