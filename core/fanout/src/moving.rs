//! Moves slabs to new places, and forgets holders.

use core::cell::Cell;
use std::sync::Arc;

use crate::batch::{Batch, Want};
use crate::device::Core;
use crate::error::Error;
use crate::holder::Holder;
use crate::lender::BATCH_PAGES;
use crate::slabs::{COPIES, SlabLocation, TARGET};
use crate::table::PageState;

impl Core {
    /// Copies a slab to `place`, and makes that its copy `copy`.
    pub fn move_slab(&self, number: u32, copy: usize, place: SlabLocation) -> Result<(), Error> {
        self.begin_move(number, copy, place)?;
        // From here on, every write to the slab goes to the new place too.
        let copied = self.copy_pages(number);
        let mut slabs = self.slabs_alone();
        let slab = &mut slabs[number as usize];
        let arrived = slab.live(TARGET).is_some();
        let target = slab.take_target();
        copied?;
        if !arrived {
            return Err(Error::PlaceLost(number));
        }
        slab.set(copy, target);
        self.behind.clear_slab(number as usize, copy);
        Ok(())
    }

    fn begin_move(&self, number: u32, copy: usize, place: SlabLocation) -> Result<(), Error> {
        let mut slabs = self.slabs_alone();
        let found = slabs.get_mut(number as usize).filter(|_| copy < COPIES);
        let slab = found.ok_or(Error::NoSlab { slab: number, copy })?;
        if slab.place(TARGET).is_some() {
            return Err(Error::Moving(number));
        }
        // A lost copy can be made anew with its holder, but in another slab there: a late write may still reach the old one.
        let is_taken = |copy: usize| {
            let is_old =
                slab.place(copy).is_some_and(|old| old.is_with(&place) && old.slab == place.slab);
            is_old || slab.live(copy).is_some_and(|old| old.is_with(&place))
        };
        if (0..COPIES).any(is_taken) {
            return Err(Error::SamePlace(number));
        }
        slab.set(TARGET, Some(place));
        Ok(())
    }

    /// Copies each page that is stored and that a place has; one that is lost is left out. Its writers wait meanwhile; its
    /// readers do not.
    fn copy_pages(&self, number: u32) -> Result<(), Error> {
        let pages = self.pages_per_slab();
        let (first, end) = (u64::from(number) * pages, (u64::from(number) + 1) * pages);
        let mut at = first;
        while at < end {
            let failed = Cell::new(false);
            let mut batch = Batch::new();
            let from = at;
            let mut count = 0;
            while at < end && count < BATCH_PAGES {
                // A page that is written from now on reaches the new place by that write.
                if self.table.is_stored(at) {
                    batch.push(at, Want::Copy, &failed);
                    count += 1;
                }
                at += 1;
            }
            if count == 0 {
                break;
            }
            // The buffers are taken anew for each batch, so that other requests can use them in
            // between.
            self.run(&mut batch, &mut self.scratches.take());
            if self.slabs()[number as usize].live(TARGET).is_none() {
                return Err(Error::PlaceLost(number));
            }
            if failed.get() {
                return Err(Error::Unreadable(from));
            }
        }
        Ok(())
    }

    /// Drops a holder's copies, and waits until no request to it is in flight. Pages whose last
    /// copy is dropped are lost.
    pub fn forget(&self, holder: &Arc<Holder>) {
        let mut slabs = self.slabs_alone();
        let with_it = |place: Option<&SlabLocation>| {
            place.is_some_and(|place| Arc::ptr_eq(&place.holder, holder))
        };
        for (number, slab) in (0..).zip(slabs.iter_mut()) {
            if with_it(slab.place(TARGET)) {
                slab.lose(TARGET);
            }
            for copy in 0..COPIES {
                if with_it(slab.place(copy)) {
                    let was_live = slab.live(copy).is_some();
                    slab.set(copy, None);
                    self.behind.clear_slab(number as usize, copy);
                    let is_last = (0..COPIES).all(|copy| slab.place(copy).is_none());
                    if is_last {
                        self.lose_pages(number, |_| true);
                    } else if was_live {
                        // Only this copy had them.
                        self.lose_pages(number, |page| self.behind.of(page) != 0);
                    }
                }
            }
        }
        drop(slabs);
        self.losses.end_wait(holder.number(), true);
        holder.wait_until_idle();
    }

    /// Records that pages of a slab are lost. To be called with the slabs locked.
    fn lose_pages(&self, number: u64, is_lost: impl Fn(u64) -> bool) {
        let pages = number * self.pages_per_slab()..(number + 1) * self.pages_per_slab();
        for page in pages.filter(|page| self.table.is_stored(*page) && is_lost(*page)) {
            self.table.set(page, PageState::Broken);
        }
    }
}
