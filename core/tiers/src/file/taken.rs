//! Slots of the file that is kept, from when they are taken to when the disk has their pages.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use spillway_platform::page_file::PageFile;

use super::slots::Slots;
use super::trouble::{DiskError, DiskTrouble, Trouble};
use super::{punch, refusal};
use crate::PageBuf;
use crate::budget::Budget;
use crate::sync::{AtomicU64, Lock, Ordering};

/// What the threads have, too.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) file: File,
    pub(super) slots: Lock<Slots>,
    /// Groups without used slots that are still to be punched out.
    emptied: Mutex<Vec<usize>>,
    pub(super) trouble: Mutex<Trouble>,
    last_error: Mutex<Option<(DiskError, Instant)>>,
    pub(super) pages: AtomicU64,
    pub(super) delay: Duration,
}

/// Slots on their way to be used. They are free again when this is dropped.
pub(super) struct Taken {
    shared: Arc<Shared>,
    rows: Vec<(usize, usize)>,
    /// Whether something may have been written to them.
    begun: bool,
    pub(super) kept: bool,
}

impl Taken {
    /// So many slots, and as many pages of the most that there may be.
    pub(super) fn take(
        shared: &Arc<Shared>,
        count: usize,
        pages_max: u64,
        budget: &Budget,
    ) -> Result<Self, DiskTrouble> {
        let more = |pages| Some(pages + count as u64).filter(|&sum| sum <= pages_max);
        let pages = &shared.pages;
        pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| DiskTrouble::Full)?;
        let rows = loop {
            if let Some(rows) = shared.slots.lock().take_rows(count, budget) {
                break rows;
            }
            // What is still to be punched out is used at once instead.
            let Some(group) = shared.emptied().pop() else {
                pages.fetch_sub(count as u64, Ordering::Relaxed);
                return Err(Errno::NOMEM.into());
            };
            shared.slots.lock().punched(group);
        };
        Ok(Self { shared: Arc::clone(shared), rows, begun: false, kept: false })
    }

    /// All of them.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().flat_map(|&(first, count)| first..first + count)
    }

    /// Writes a page to each slot.
    pub(super) fn write(mut self, pages: &[PageBuf]) -> Result<Self, Errno> {
        self.begun = true;
        std::thread::sleep(self.shared.delay);
        let file = PageFile::new(&self.shared.file);
        let mut rest = pages;
        for &(first, count) in &self.rows {
            let (row, after) = rest.split_at(count);
            rest = after;
            file.write(first as u64, row, |page| &page.0).map_err(refusal)?;
        }
        Ok(self)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for slot in self.slots() {
            self.shared.pages.fetch_sub(1, Ordering::Relaxed);
            let group = self.shared.slots.lock().give(slot);
            match group {
                Some(group) if self.begun => self.shared.punch(group),
                // It is who asked that drops it, and who must not wait for the disk.
                Some(group) => self.shared.slots.lock().punched(group),
                None => {}
            }
        }
    }
}

impl Shared {
    pub(super) fn new(file: File, slots: Slots, delay: Duration) -> Self {
        let (slots, emptied) = (Lock::new(slots), Mutex::default());
        let (trouble, last_error) = Default::default();
        Self { file, slots, emptied, trouble, last_error, pages: AtomicU64::new(0), delay }
    }

    pub(super) fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an error, which stays the last one however long the disk then works.
    pub(super) fn note_error(&self, error: DiskError) {
        *self.last_error_slot() = Some((error, Instant::now()));
    }

    /// The last error, and when it was.
    pub(super) fn last_error(&self) -> Option<(DiskError, Instant)> {
        *self.last_error_slot()
    }

    fn last_error_slot(&self) -> MutexGuard<'_, Option<(DiskError, Instant)>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn emptied(&self) -> MutexGuard<'_, Vec<usize>> {
        self.emptied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Punches out one of the groups that are still to be.
    pub(super) fn punch_next(&self) {
        let next = self.emptied().pop();
        if let Some(group) = next {
            self.punch(group);
        }
    }

    fn punch(&self, group: usize) {
        punch(&self.file, group);
        self.slots.lock().punched(group);
    }
}
