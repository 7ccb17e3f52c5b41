//! Brings copies up to date that have missed writes: a thread of the device, which copies the pages of
//! [`Behind`](crate::behind::Behind) once their holder answers.

use core::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use crate::batch::{Batch, Want};
use crate::device::Core;
use crate::lender::BATCH_PAGES;
use crate::request::Operation;
use crate::scratch::Scratch;
use crate::slabs::COPIES;

impl Core {
    /// The main loop of the thread that brings copies up to date.
    pub fn mend(&self) {
        // The kernel may wait for a page whose lock this thread holds, as for a holder's workers.
        let _ = spillway_platform::swap::serve_swap();
        let mut scratch = Scratch::new();
        while self.mending.wait() {
            while self.behind.total() != 0 {
                let slabs = self.slabs().len();
                for number in 0..slabs {
                    for copy in 0..COPIES {
                        if self.behind.count(number, copy) != 0 {
                            self.mend_slab(number, copy, &mut scratch);
                        }
                    }
                }
                if !self.mending.pause() {
                    return;
                }
            }
        }
    }

    /// Brings a copy of a slab up to date, as far as its holder answers.
    fn mend_slab(&self, number: usize, copy: usize, scratch: &mut Scratch) {
        let slabs = self.slabs();
        let Some(holder) = slabs[number].live(copy).map(|place| Arc::clone(&place.holder)) else {
            return;
        };
        self.give_up_stalled(&slabs, number, copy);
        drop(slabs);
        let pulse = holder.pulse();
        if pulse.is_stalled() && pulse.takes_probe() {
            self.probe(number, copy, scratch);
        }
        let mut from = 0;
        // A request that nobody waits for any more may still write what is old. It is waited for.
        while !pulse.is_slow() && scratch.has_spare_slots() && !self.mending.is_ended() {
            let failed = Cell::new(false);
            let mut batch = Batch::new();
            let mut last = None;
            for page in self.behind.pages(number, copy, from).take(BATCH_PAGES) {
                batch.push(page, Want::Mend(copy), &failed);
                last = Some(page);
            }
            let Some(last) = last else { return };
            self.run(&mut batch, scratch);
            from = last % self.pages_per_slab() + 1;
        }
    }

    /// Asks a holder that has stopped answering for a page. Its answer, whatever it is, ends the stall.
    fn probe(&self, number: usize, copy: usize, scratch: &Scratch) {
        let Some(page) = self.behind.pages(number, copy, 0).next() else { return };
        let Some(slot) = scratch.slots.iter().find(|slot| slot.is_free()) else { return };
        let deadline = Instant::now() + self.settings.request_timeout;
        let slabs = self.slabs();
        let Some(place) = slabs[number].live(copy) else { return };
        let holder = Arc::clone(&place.holder);
        let mut payload = slot.payload();
        payload.reset(Operation::Get, deadline);
        payload.push(self.key_of(page, place));
        drop(payload);
        // From here on, whoever forgets the holder waits for the request. Nobody else does.
        holder.submit(slot);
        drop(slabs);
        if !slot.wait(Some(deadline)) {
            slot.mark_overdue(holder.pulse());
        }
    }
}
