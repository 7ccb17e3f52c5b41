//! Either of the two file tiers.

use std::io;

use super::{Files, KeptFile, SlotRead, WRITE_PAGES_MAX};
use crate::PageBuf;
use crate::budget::Budget;
use spillway_types::PAGE_BYTES;

/// The file tier of a store.
#[derive(Debug)]
pub enum Disk {
    /// Of a store that ends with its process.
    Own(Box<Files>),
    /// Of a store that is kept over the end of its process.
    Kept(Box<KeptFile>),
}

/// A page in a file that was looked up, with the checksum noted then.
#[derive(Debug)]
pub enum DiskRead<'a> {
    /// In a file of this process.
    Own(SlotRead<'a>),
    /// In the file that is kept.
    Kept {
        /// The tier.
        file: &'a KeptFile,
        /// Where in it.
        at: (u8, u32),
        /// The checksum.
        sum: u64,
    },
}

impl Disk {
    /// Writes all of up to [`WRITE_PAGES_MAX`] pages or none, and tells the file and the slot of
    /// each in `places`; see [`Files::write`] and [`KeptFile::write`].
    pub fn write(
        &self,
        pages: &[&[u8; PAGE_BYTES]],
        budget: &Budget,
        places: &mut [Option<(u8, u32)>; WRITE_PAGES_MAX],
    ) -> bool {
        match self {
            Self::Own(files) => {
                let Some(at) = files.write(pages, budget) else { return false };
                for (place, number) in places.iter_mut().zip(0..pages.len() as u32) {
                    *place = Some((at.file, at.first + number));
                }
                true
            }
            Self::Kept(file) => file.write(pages, budget, places),
        }
    }

    /// Frees a slot.
    pub fn free(&self, file: u8, slot: u32) {
        match self {
            Self::Own(files) => files.free(file, slot),
            Self::Kept(kept) => kept.free(file, slot),
        }
    }

    /// Notes the checksum of a slot in use, to read it without a lock.
    pub fn hold(&self, file: u8, slot: u32) -> DiskRead<'_> {
        match self {
            Self::Own(files) => DiskRead::Own(files.hold(file, slot)),
            Self::Kept(kept) => {
                DiskRead::Kept { file: kept, at: (file, slot), sum: kept.sum(file, slot) }
            }
        }
    }

    /// Pages in files.
    pub fn pages(&self) -> u64 {
        match self {
            Self::Own(files) => files.pages(),
            Self::Kept(kept) => kept.counters().pages,
        }
    }

    /// Pages that were read back.
    pub fn reads(&self) -> u64 {
        match self {
            Self::Own(files) => files.reads(),
            Self::Kept(kept) => kept.counters().read_pages,
        }
    }

    /// The files of this process.
    pub fn own(&self) -> Option<&Files> {
        match self {
            Self::Own(files) => Some(files),
            Self::Kept(_) => None,
        }
    }

    /// The file that is kept.
    pub fn kept(&self) -> Option<&KeptFile> {
        match self {
            Self::Own(_) => None,
            Self::Kept(kept) => Some(kept),
        }
    }
}

impl DiskRead<'_> {
    /// The checksum that was noted.
    pub const fn sum(&self) -> u64 {
        match self {
            Self::Own(read) => read.sum(),
            Self::Kept { sum, .. } => *sum,
        }
    }

    /// Reads the page; false when it is not what was written. (The slot may have been reused since
    /// it was looked up: look again before calling that corrupt.)
    ///
    /// # Errors
    /// What the disk says.
    pub fn read(&self, page: &mut PageBuf) -> io::Result<bool> {
        match self {
            Self::Own(read) => read.read(page),
            Self::Kept { file, at, sum } => file.read(at.0, at.1, *sum, page),
        }
    }
}
