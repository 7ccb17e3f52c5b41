//! Dispatch: sends the next requests of a batch's entries to all holders at once, and takes the
//! answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_types::Key;

use crate::batch::{Batch, Entry, Progress, Want};
use crate::device::Core;
use crate::holder::Holder;
use crate::lender::{BATCH_PAGES, PageOutcome};
use crate::loss::Cause;
use crate::request::{Operation, Payload, RequestSlot};
use crate::scratch::{SLOTS, Scratch};
use crate::slabs::{COPIES, Slab, SlabLocation, TARGET};

/// How much longer than the deadline a worker may take to report an answer that came just in time.
const GRACE: Duration = Duration::from_millis(50);

/// A wait without a deadline.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86400);

/// An in-flight request to a holder.
struct InFlight<'s> {
    holder: &'s Arc<Holder>,
    operation: Operation,
    slot: usize,
    /// For each page: the index of its entry in the batch, and the copy.
    entries: [(u8, u8); BATCH_PAGES],
    count: usize,
}

impl InFlight<'_> {
    fn entries(&self) -> &[(u8, u8)] {
        &self.entries[..self.count]
    }
}

type Requests<'s> = [Option<InFlight<'s>>; SLOTS];

impl Core {
    /// Sends the requests that can be sent, and takes the answers. Returns false if there was
    /// nothing to send.
    pub fn dispatch(&self, slabs: &[Slab], batch: &mut Batch<'_>, scratch: &mut Scratch) -> bool {
        if scratch.slots.iter().all(|slot| !slot.is_free()) {
            // All slots are with holders that did not answer in time. They become free when those
            // calls end.
            scratch.slots[0].wait(None);
        }
        let deadline = Instant::now() + self.settings.request_timeout;
        let requests = self.load(slabs, batch, scratch, deadline);
        if requests[0].is_none() {
            return false;
        }
        let mut executed = [false; SLOTS];
        for (place, request) in requests.iter().flatten().enumerate() {
            executed[place] = self.try_execute(request, batch, scratch);
        }
        // This thread executes one request itself, so a device with one lender wakes no worker.
        // This thread, not a worker, waits for room in the write-back buffer: workers have pages to
        // read.
        let own = requests
            .iter()
            .flatten()
            .enumerate()
            .filter(|(place, request)| {
                !executed[*place] && request.holder.is_prompt(request.operation)
            })
            .min_by_key(|(_, request)| request.holder.is_lender())
            .map(|(place, _)| place);
        let mut submitted = [false; SLOTS];
        for (place, request) in requests.iter().flatten().enumerate() {
            if Some(place) != own && !executed[place] {
                request.holder.submit(&scratch.slots[request.slot]);
                submitted[place] = true;
            }
        }
        if let Some(request) = own.and_then(|own| requests[own].as_ref()) {
            let slot = Arc::clone(&scratch.slots[request.slot]);
            let mut payload = slot.payload();
            request.holder.execute(&mut payload);
            self.settle(request, &mut payload, batch, scratch);
        }
        let mut late = [false; SLOTS];
        for place in (0..SLOTS).filter(|place| submitted[*place]) {
            let Some(request) = &requests[place] else { continue };
            late[place] = !self.collect(request, Some(deadline + GRACE), batch, scratch);
        }
        for place in (0..SLOTS).filter(|place| late[*place]) {
            let Some(request) = &requests[place] else { continue };
            self.end_late(request, slabs, batch, scratch);
        }
        for entry in batch.iter_mut() {
            let slab = &slabs[self.slab_of(entry.page)];
            retry_patiently(entry, slab);
        }
        true
    }

    /// Fills request slots with what the entries need next.
    fn load<'s>(
        &self,
        slabs: &'s [Slab],
        batch: &mut Batch<'_>,
        scratch: &Scratch,
        deadline: Instant,
    ) -> Requests<'s> {
        let mut requests: Requests<'s> = [const { None }; SLOTS];
        for (at, entry) in batch.iter_mut().enumerate() {
            let slab = &slabs[self.slab_of(entry.page)];
            while let Some((copy, operation)) = next_operation(entry, slab) {
                let Some(place) = slab.live(copy) else { break };
                let Some(request) =
                    find_request(&mut requests, &place.holder, operation, scratch, deadline)
                else {
                    break;
                };
                let key = self.key_of(entry.page, place);
                let mut payload = scratch.slots[request.slot].payload();
                let room = payload.push(key);
                if operation == Operation::Put {
                    room.0 = scratch.sealed[at].0;
                    if entry.is_patient {
                        payload.deadline = deadline + NEVER;
                    }
                }
                drop(payload);
                request.entries[request.count] = (at as u8, copy as u8);
                request.count += 1;
                entry.sent |= 1 << copy;
                if operation == Operation::Get {
                    entry.progress = Progress::Awaited;
                }
            }
        }
        requests
    }

    /// The key of a page at a holder.
    fn key_of(&self, page: u64, place: &SlabLocation) -> Key {
        let pages = self.pages_per_slab();
        let number = u64::from(place.slab) * pages + page % pages;
        Key::new(number >> 32, number as u32)
    }

    /// Executes a request if that needs no waiting. Returns whether it did.
    fn try_execute(
        &self,
        request: &InFlight<'_>,
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
    ) -> bool {
        let slot = Arc::clone(&scratch.slots[request.slot]);
        let mut payload = slot.payload();
        let executed = request.holder.try_execute(&mut payload);
        if executed {
            self.settle(request, &mut payload, batch, scratch);
        }
        executed
    }

    /// Takes the outcomes of a request if it is completed by the deadline. Returns whether it is.
    fn collect(
        &self,
        request: &InFlight<'_>,
        deadline: Option<Instant>,
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
    ) -> bool {
        let slot: Arc<RequestSlot> = Arc::clone(&scratch.slots[request.slot]);
        let back = slot.wait(deadline);
        if back {
            self.settle(request, &mut slot.payload(), batch, scratch);
        }
        back
    }

    /// Ends a late request. If other copies serve all its entries, this stops waiting: the slot
    /// becomes free by itself. Otherwise it waits on.
    fn end_late(
        &self,
        request: &InFlight<'_>,
        slabs: &[Slab],
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
    ) {
        let dispensable = request.entries().iter().all(|&(at, copy)| {
            let entry = batch.at(usize::from(at));
            let slab = &slabs[self.slab_of(entry.page)];
            is_dispensable(entry, slab, usize::from(copy))
        });
        if !dispensable {
            self.collect(request, None, batch, scratch);
            return;
        }
        for &(at, copy) in request.entries() {
            let entry = batch.at(usize::from(at));
            entry.note_bad(usize::from(copy), Cause::NoAnswer);
            if entry.progress == Progress::Awaited {
                entry.progress = Progress::Open;
            }
        }
    }

    /// Records the outcome of each page of a request.
    fn settle(
        &self,
        request: &InFlight<'_>,
        payload: &mut Payload,
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
    ) {
        for (index, &(at, copy)) in request.entries().iter().enumerate() {
            let (at, copy) = (usize::from(at), usize::from(copy));
            let entry = batch.at(at);
            let cause = match payload.outcomes[index] {
                PageOutcome::Done if request.operation != Operation::Get => None,
                PageOutcome::Done => self.unpack(entry, at, payload, index, scratch).err(),
                PageOutcome::Refused => Some(Cause::Refused),
                PageOutcome::Missing => Some(Cause::Missing),
                PageOutcome::Lost => Some(Cause::NoAnswer),
            };
            match cause {
                None => entry.good |= 1 << copy,
                Some(cause) => entry.note_bad(copy, cause),
            }
            if entry.progress == Progress::Awaited {
                let done = cause.is_none() && !matches!(entry.want, Want::Copy);
                entry.progress = if done { Progress::Closed } else { Progress::Open };
            }
        }
    }

    /// Opens a fetched page, and copies it to its reader or keeps it for the copy.
    fn unpack(
        &self,
        entry: &mut Entry<'_>,
        at: usize,
        payload: &mut Payload,
        index: usize,
        scratch: &mut Scratch,
    ) -> Result<(), Cause> {
        let page = &mut payload.pages[index];
        let Some(seal) = entry.seal else { return Err(Cause::Forged) };
        if matches!(entry.want, Want::Copy) {
            scratch.sealed[at].0 = page.0;
        }
        if !self.cipher.open(entry.page, &seal, page) {
            return Err(Cause::Forged);
        }
        match &mut entry.want {
            Want::Read { room, start } => {
                room.copy_from_slice(&page.0[*start..*start + room.len()]);
            }
            _ => entry.fetched = true,
        }
        Ok(())
    }
}

/// The next operation that an entry needs, and on which copy. If there is none, this closes the
/// entry.
fn next_operation(entry: &mut Entry<'_>, slab: &Slab) -> Option<(usize, Operation)> {
    if entry.progress != Progress::Open {
        return None;
    }
    let unsent = |copy: &usize| entry.sent & 1 << copy == 0;
    let live = |copy: &usize| slab.live(*copy).is_some();
    match entry.want {
        Want::Copy if entry.fetched => {
            let next = Some(TARGET).filter(unsent).filter(live);
            next.map(|copy| (copy, Operation::Put)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Read { .. } | Want::Copy => {
            let next = (0..COPIES).filter(unsent).find(live);
            next.map(|copy| (copy, Operation::Get)).or_else(|| close(entry, Progress::Failed))
        }
        Want::Write(_) => {
            let next = (0..=TARGET).filter(unsent).find(live);
            next.map(|copy| (copy, Operation::Put)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Discard => {
            let flushes =
                |copy: &usize| slab.live(*copy).is_some_and(|place| place.holder.is_lender());
            let next = (0..=TARGET).filter(unsent).find(flushes);
            next.map(|copy| (copy, Operation::Flush)).or_else(|| close(entry, Progress::Closed))
        }
    }
}

/// Retries a write that no copy took because the write-back buffer had no room in time: once more,
/// without a deadline. So the device stalls while its disk does. A file that fails reports that at
/// once.
fn retry_patiently(entry: &mut Entry<'_>, slab: &Slab) {
    let live = |copy: &usize| slab.live(*copy).is_some();
    let all_sent = (0..COPIES).filter(live).all(|copy| entry.sent & 1 << copy != 0);
    let stored = entry.good & ((1 << COPIES) - 1) != 0;
    if !matches!(entry.want, Want::Write(_)) || entry.is_patient || stored || !all_sent {
        return;
    }
    let file = (0..COPIES).filter(live).find(|copy| {
        let in_file = slab.live(*copy).is_some_and(|place| !place.holder.is_lender());
        in_file && entry.bad & 1 << copy != 0
    });
    if let Some(copy) = file {
        entry.is_patient = true;
        entry.sent &= !(1 << copy);
        entry.bad &= !(1 << copy);
        entry.progress = Progress::Open;
    }
}

const fn close(entry: &mut Entry<'_>, progress: Progress) -> Option<(usize, Operation)> {
    entry.progress = progress;
    None
}

/// Whether an entry can be served without the answer of a copy.
fn is_dispensable(entry: &Entry<'_>, slab: &Slab, copy: usize) -> bool {
    let copies = (1 << COPIES) - 1;
    match entry.want {
        Want::Write(_) => entry.good & copies != 0,
        Want::Copy if entry.fetched => true,
        Want::Discard => copy == TARGET || slab.has_other(copy),
        Want::Read { .. } | Want::Copy => {
            (0..COPIES).any(|other| entry.sent & 1 << other == 0 && slab.live(other).is_some())
        }
    }
}

/// The in-flight request to a holder for an operation, or a new one. None if all slots are in use.
fn find_request<'t, 's>(
    requests: &'t mut Requests<'s>,
    holder: &'s Arc<Holder>,
    operation: Operation,
    scratch: &Scratch,
    deadline: Instant,
) -> Option<&'t mut InFlight<'s>> {
    let is_it = |request: &InFlight<'_>| {
        Arc::ptr_eq(request.holder, holder) && request.operation == operation
    };
    let place = match requests.iter().position(|request| request.as_ref().is_some_and(is_it)) {
        Some(place) => place,
        None => {
            let place = requests.iter().position(Option::is_none)?;
            let taken = |slot: usize| requests.iter().flatten().any(|request| request.slot == slot);
            let slot = (0..SLOTS).find(|&slot| !taken(slot) && scratch.slots[slot].is_free())?;
            scratch.slots[slot].payload().reset(operation, deadline);
            requests[place] = Some(InFlight {
                holder,
                operation,
                slot,
                entries: [(0, 0); BATCH_PAGES],
                count: 0,
            });
            place
        }
    };
    requests[place].as_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread;

    use spillway_block::Device;

    use super::*;
    use crate::write_back::tests::Fake;
    use crate::{FanOut, Lender, Page, Settings};

    /// A lender that stores pages until it is dead; from then on it does not answer.
    #[derive(Debug)]
    struct Mortal {
        pages: Mutex<Vec<Page>>,
        dead: AtomicBool,
    }

    impl Mortal {
        fn answer(&self, outcomes: &mut [PageOutcome], deadline: Instant) {
            outcomes.fill(PageOutcome::Done);
            if self.dead.load(Ordering::SeqCst) {
                thread::sleep(deadline.saturating_duration_since(Instant::now()));
                outcomes.fill(PageOutcome::Lost);
            }
        }
    }

    impl Lender for Mortal {
        fn put(
            &self,
            keys: &[Key],
            pages: &[Page],
            outcomes: &mut [PageOutcome],
            deadline: Instant,
        ) {
            for (key, page) in keys.iter().zip(pages) {
                self.pages.lock().unwrap()[key.index as usize].0 = page.0;
            }
            self.answer(outcomes, deadline);
        }

        fn get(
            &self,
            keys: &[Key],
            pages: &mut [Page],
            outcomes: &mut [PageOutcome],
            end: Instant,
        ) {
            for (key, page) in keys.iter().zip(pages) {
                page.0 = self.pages.lock().unwrap()[key.index as usize].0;
            }
            self.answer(outcomes, end);
        }

        fn flush(&self, _: &[Key], outcomes: &mut [PageOutcome], deadline: Instant) {
            self.answer(outcomes, deadline);
        }
    }

    #[test]
    fn a_lender_that_dies_while_the_file_has_no_room_costs_time_and_no_page() {
        const SLABS: u32 = 8;
        // Pages for which the write-back buffer has room.
        const BUFFER_PAGES: u64 = 1024;
        let fake = Fake::new();
        let file = Holder::pages(Box::new(Arc::clone(&fake))).unwrap();
        let lender = Arc::new(Mortal {
            pages: Mutex::new(vec![Page([0; 4096]); 256 * SLABS as usize]),
            dead: AtomicBool::new(false),
        });
        let holder = Holder::lender(0, lender.clone()).unwrap();
        let place =
            |holder: &Arc<Holder>, slab| Some(SlabLocation { holder: holder.clone(), slab });
        // The fake file ends inside the fifth slab.
        let slabs = (0..SLABS).map(|slab| [place(&holder, slab), place(&file, slab)]).collect();
        let request_timeout = Duration::from_millis(100);
        let settings = Settings { slab_bytes: 1 << 20, request_timeout, ..Settings::default() };
        let device = FanOut::open(settings, 1, slabs, |_| {}).unwrap();
        fake.hold(true);
        for page in 0..BUFFER_PAGES {
            device.write(page * 4096, &[1; 4096]).unwrap();
        }
        lender.dead.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let writes = scope.spawn(|| device.write(BUFFER_PAGES * 4096, &[2; 4096]));
            thread::sleep(4 * request_timeout);
            fake.hold(false);
            writes.join().unwrap().unwrap();
        });
        let mut page = [0; 4096];
        for (number, value) in [(0, 1), (BUFFER_PAGES - 1, 1), (BUFFER_PAGES, 2)] {
            device.read(number * 4096, &mut page).unwrap();
            assert_eq!(page, [value; 4096]);
        }
        assert_eq!(device.counters().errors, 0);
    }
}
