//! Where windows lie: in huge pages of the guest's memory, or in its ivshmem device.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use spillway_guests::window::WindowPlace;
use spillway_wire::ring::{Geometry, Welcome};

use super::device::{Device, Part};
use super::pages::{Pages, Window};

/// The sources of windows. At least one exists.
#[derive(Debug)]
pub struct Memory {
    pub pages: Option<Pages>,
    pub device: Option<Device>,
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
    /// Lends this many successive pages of the device, if they are free there.
    pub fn lend_part(&mut self, count: usize) -> Option<HeldMemory> {
        self.device.as_mut()?.lend(count).map(HeldMemory::Part)
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
        if let (HeldMemory::Part(part), Some(device)) = (held, &self.device) {
            device.hand_over(part);
        }
    }

    /// Takes a window's memory back. Call it when the host has released it.
    pub fn give_back(&mut self, held: HeldMemory) {
        match (held, &mut self.pages, &mut self.device) {
            (HeldMemory::Pages(window), Some(pages), _) => pages.give_back(window),
            (HeldMemory::Part(part), _, Some(device)) => device.give_back(&part),
            _ => {}
        }
    }

    /// Frees what earlier runs of the agent lent. Call it when the host has released all of it.
    pub fn forget_others(&self) {
        if let Some(pages) = &self.pages {
            pages.forget_others();
        }
        if let Some(device) = &self.device {
            device.clear();
        }
    }
}
