//! Finds the parts of a device's file that the guest has not plugged.
//!
//! QEMU touches all of a block while the guest plugs it (`prealloc=on`), and punches it when the guest unplugs it. The
//! pool's reserved memory is allocated, zero, and untouched. On tmpfs the file distinguishes the two: SEEK_DATA skips
//! memory that was allocated but never touched. On hugetlbfs it does not; there a section that has not been plugged is
//! unmapped and zero. Both conditions are checked: a QEMU that took over its memory from another (`cpr-transfer`) maps
//! a page only when it uses it, and no byte of that may be lost.
//!
//! A touched section is never punched. A section that the guest plugs between the check and the punch would be, so this
//! runs only while QEMU lets the guest plug nothing, because it has its requested size.

use std::ops::Range;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pread, retry_on_intr};
use spillway_platform::pagemap::Pagemap;

use crate::error::Error;
use crate::file::SectionFile;
use crate::mount::Backing;

/// The contents of a page that was never written.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A device's state while its guest rests.
pub struct Rest<'a> {
    /// Bytes of a section.
    pub section: u64,
    /// The guest's plugged bytes, as QEMU reports.
    pub size: u64,
    /// The ready range, which the guest has not plugged either, and which stays.
    pub ready: Range<u64>,
    /// None if the kernel does not report mappings: then unplugged memory on hugetlbfs can't be detected.
    pub pagemap: Option<&'a Pagemap>,
}

impl SectionFile {
    /// Releases memory that was reserved but not plugged, and returns whether there was any. Does nothing if fewer
    /// sections were touched than the guest has: then QEMU does not touch memory when it plugs it, so the guest's
    /// memory can't be identified.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn give_back_unplugged(&self, rest: &Rest) -> Result<bool, Error> {
        let kept = rest.size + (rest.ready.end - rest.ready.start);
        let (mut at, mut touched, mut unplugged) = (0, 0, Vec::new());
        let mut has_given = false;
        let bound = self.bound()?;
        while at < bound && self.allocated()? > kept {
            let section = at..bound.min(at + rest.section);
            at = section.end;
            if section.start < rest.ready.end && rest.ready.start < section.end {
                continue;
            }
            let is_touched = self
                .is_touched(section.clone(), rest.pagemap)
                .map_err(Error::io("look at memory of", &self.path))?;
            if is_touched {
                touched += section.end - section.start;
            } else {
                unplugged.push(section);
            }
            if touched >= rest.size {
                // All of the guest's memory lies below.
                has_given |= !unplugged.is_empty();
                unplugged.drain(..).try_for_each(|section| self.give_back(section))?;
            }
        }
        Ok(has_given)
    }

    fn is_touched(&self, section: Range<u64>, pagemap: Option<&Pagemap>) -> Result<bool, Errno> {
        match (self.backing, pagemap) {
            (Backing::Tmpfs, _) => match seek(&self.descriptor, SeekFrom::Data(section.start)) {
                Ok(data) => Ok(data < section.end),
                // There is no data up to the end.
                Err(Errno::NXIO) => Ok(false),
                Err(errno) => Err(errno),
            },
            (Backing::Hugetlbfs { .. }, None) => Ok(true),
            (Backing::Hugetlbfs { page_bytes }, Some(pagemap)) => {
                let mut pages = section.step_by(page_bytes as usize);
                pages.try_fold(false, |is_touched, at| {
                    Ok(is_touched || self.is_page_touched(at, page_bytes, pagemap)?)
                })
            }
        }
    }

    /// Whether a huge page is mapped, or not zero. Checking a hole fills it for a moment.
    fn is_page_touched(&self, at: u64, bytes: u64, pagemap: &Pagemap) -> Result<bool, Errno> {
        let before = fstat(&self.descriptor)?.st_blocks;
        match self.allocate(at, bytes) {
            // No page is available for a hole.
            Err(Errno::NOSPC | Errno::NOMEM) => return Ok(false),
            made => made?,
        }
        let was_hole = fstat(&self.descriptor)?.st_blocks > before;
        if pagemap.is_mapped(&self.descriptor, at, bytes as usize)? || !self.is_zero(at, bytes)? {
            return Ok(true);
        }
        if was_hole {
            self.punch(at..at + bytes)?;
        }
        Ok(false)
    }

    fn is_zero(&self, at: u64, bytes: u64) -> Result<bool, Errno> {
        let mut read = vec![0; ZEROS.len()];
        let (mut at, end) = (at, at + bytes);
        while at < end {
            let length = read.len().min((end - at) as usize);
            let count = retry_on_intr(|| pread(&self.descriptor, &mut read[..length], at))?;
            if count == 0 {
                return Err(Errno::NODATA);
            }
            if read[..count] != ZEROS[..count] {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }
}
