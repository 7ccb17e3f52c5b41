//! Emptying: a disk whose guest has ended gives its pages back.

use std::time::Duration;

use spillway_types::Key;

use crate::config::Kind;
use crate::disk::Disk;
use crate::error::Error;
use crate::group::{GROUP_BLOCKS, Group};
use crate::map::BlockLocation;

impl Disk {
    /// Removes all of the disk's pages from the store, and returns their number. All blocks of a swap disk read as
    /// zeros afterwards; the file of a cache disk keeps its data. No guest may have been connected in the last `quiet`,
    /// so that a guest that connects again after a restart finds its pages.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::File`], [`Error::Store`].
    pub fn empty(&self, quiet: Duration) -> Result<u64, Error> {
        self.guest.begin_to_empty(quiet)?;
        let emptied = self.forget_all();
        self.guest.end_emptying();
        emptied
    }

    fn forget_all(&self) -> Result<u64, Error> {
        if self.config.kind == Kind::Swap {
            for first in (0..self.blocks()).step_by(GROUP_BLOCKS) {
                let _alone = self.stripes.alone(Group::of(first).number);
                let count = (self.blocks() - first).min(GROUP_BLOCKS as u64);
                let all = u64::MAX >> (u64::from(u64::BITS) - count);
                self.map.set(first, all, BlockLocation::Nowhere)?;
            }
        }
        self.forget_unless(|_| false)
    }

    /// Removes the values from the store whose blocks `is_kept` does not want. Returns their number.
    pub(crate) fn forget_unless(&self, is_kept: impl Fn(u64) -> bool) -> Result<u64, Error> {
        let mut keys = [Key::new(0, 0); 256];
        let mut from = None;
        let mut forgotten = 0;
        loop {
            let listed = self.store.list_keys(self.pool, from, &mut keys)?;
            for &key in &keys[..listed] {
                let block = key.object << 32 | u64::from(key.index);
                if !is_kept(block) {
                    self.store.flush(self.pool, key);
                    forgotten += 1;
                }
            }
            if listed < keys.len() {
                return Ok(forgotten);
            }
            from = keys.last().copied();
        }
    }
}
