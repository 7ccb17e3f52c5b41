//! Dispatch: sends the next requests of a batch's entries to all holders at once, and takes the
//! answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_types::Key;

use crate::batch::{Batch, Entry, Progress, Want};
use crate::counters::add;
use crate::device::Core;
use crate::holder::Holder;
use crate::lender::{BATCH_PAGES, PageOutcome};
use crate::loss::Cause;
use crate::next::{go_on, is_dispensable, is_hedgeable, next_operation, retry_patiently};
use crate::request::{Operation, Payload, RequestSlot};
use crate::scratch::{SLOTS, Scratch};
use crate::slabs::{Slab, SlabLocation};

/// How much longer than the deadline a worker may take to report an answer that came just in time.
const GRACE: Duration = Duration::from_millis(50);

/// A wait without a deadline.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86400);

/// An in-flight request to a holder.
struct InFlight<'s> {
    holder: &'s Arc<Holder>,
    operation: Operation,
    slot: usize,
    stage: Stage,
    sent: Instant,
    /// For each page: the index of its entry in the batch, and the copy.
    entries: [(u8, u8); BATCH_PAGES],
    count: usize,
}

impl InFlight<'_> {
    fn entries(&self) -> &[(u8, u8)] {
        &self.entries[..self.count]
    }

    fn is_in_flight(&self) -> bool {
        self.stage == Stage::Sent
    }

    /// Gives it to a worker.
    fn submit(&mut self, scratch: &Scratch) {
        self.holder.submit(&scratch.slots[self.slot]);
        (self.stage, self.sent) = (Stage::Sent, Instant::now());
    }

    /// Whether another request has delivered each of its pages.
    fn is_served(&self, batch: &mut Batch<'_>) -> bool {
        self.entries().iter().all(|&(at, _)| batch.at(usize::from(at)).progress == Progress::Closed)
    }
}

/// How far a request has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is being filled.
    New,
    /// A worker has it.
    Sent,
    /// Its outcomes are taken, or nobody waits for it any more.
    Ended,
}

type Requests<'s> = [Option<InFlight<'s>>; SLOTS];

impl Core {
    /// Sends the requests that can be sent, and takes the answers. Returns false if there was
    /// nothing to send.
    pub fn dispatch(&self, slabs: &[Slab], batch: &mut Batch<'_>, scratch: &mut Scratch) -> bool {
        scratch.wait_for_slot();
        let deadline = Instant::now() + self.settings.request_timeout;
        let mut requests: Requests<'_> = [const { None }; SLOTS];
        self.load(slabs, batch, scratch, deadline, &mut requests);
        if requests[0].is_none() {
            return false;
        }
        self.send(slabs, batch, scratch, &mut requests);
        if self.hedge(slabs, batch, scratch, deadline, &mut requests) {
            self.race(batch, scratch, deadline + GRACE, &mut requests);
        }
        for request in requests.iter_mut().flatten().filter(|it| it.is_in_flight()) {
            if self.collect(request, Some(deadline + GRACE), batch, scratch) {
                request.stage = Stage::Ended;
            }
        }
        for request in requests.iter_mut().flatten().filter(|it| it.is_in_flight()) {
            self.end_late(request, slabs, batch, scratch);
            request.stage = Stage::Ended;
        }
        for entry in batch.iter_mut() {
            let slab = &slabs[self.slab_of(entry.page)];
            retry_patiently(entry, slab);
        }
        true
    }

    /// Executes what needs no waiting, and one request more, on this thread; the others go to workers.
    fn send(
        &self,
        slabs: &[Slab],
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
        requests: &mut Requests<'_>,
    ) {
        for request in requests.iter_mut().flatten() {
            if self.try_execute(request, batch, scratch) {
                request.stage = Stage::Ended;
            }
        }
        // This thread executes one request itself, so a device with one lender wakes no worker. It stays free for a read
        // that another copy can serve too. This thread, not a worker, waits for room in the write-back buffer: workers
        // have pages to read.
        let may_execute = |request: &InFlight<'_>, batch: &mut Batch<'_>| {
            request.stage == Stage::New
                && request.holder.is_prompt(request.operation)
                && !self.has_hedge(request, slabs, batch)
        };
        let own = requests
            .iter()
            .enumerate()
            .filter_map(|(place, request)| Some((place, request.as_ref()?)))
            .filter(|(_, request)| may_execute(request, batch))
            .min_by_key(|(_, request)| request.holder.is_lender())
            .map(|(place, _)| place);
        for (place, request) in requests.iter_mut().enumerate() {
            let Some(request) = request else { continue };
            if request.stage == Stage::New && Some(place) != own {
                request.submit(scratch);
            }
        }
        if let Some(request) = own.and_then(|own| requests[own].as_mut()) {
            let slot = Arc::clone(&scratch.slots[request.slot]);
            let mut payload = slot.payload();
            request.holder.execute(&mut payload);
            self.settle(request, &mut payload, batch, scratch);
            request.stage = Stage::Ended;
        }
    }

    /// Waits for the reads that another copy can serve too, each as long as its holder usually takes. Then asks the
    /// other copies of those that are still in flight. Returns whether there are such.
    fn hedge<'s>(
        &self,
        slabs: &'s [Slab],
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
        deadline: Instant,
        requests: &mut Requests<'s>,
    ) -> bool {
        let mut has_late = false;
        for request in requests.iter_mut().flatten().filter(|it| it.is_in_flight()) {
            if !self.has_hedge(request, slabs, batch) {
                continue;
            }
            let patience = request.sent + request.holder.pulse().latency.patience();
            if self.collect(request, Some(patience.min(deadline)), batch, scratch) {
                request.stage = Stage::Ended;
                continue;
            }
            scratch.slots[request.slot].mark_overdue(request.holder.pulse());
            // The other holder may be the one that stands still: it must not get all slots.
            if !scratch.has_spare_slots() {
                continue;
            }
            has_late = true;
            for &(at, copy) in request.entries() {
                let entry = batch.at(usize::from(at));
                let slab = &slabs[self.slab_of(entry.page)];
                if is_hedgeable(entry, slab, usize::from(copy)) {
                    entry.progress = Progress::Open;
                    add(&self.counters.hedged_pages, 1);
                }
            }
        }
        if has_late {
            self.load(slabs, batch, scratch, deadline, requests);
            for request in requests.iter_mut().flatten().filter(|it| it.stage == Stage::New) {
                request.submit(scratch);
            }
        }
        has_late
    }

    /// Whether a request is a read of pages of which at least one has another copy to ask.
    fn has_hedge(&self, request: &InFlight<'_>, slabs: &[Slab], batch: &mut Batch<'_>) -> bool {
        request.operation == Operation::Get
            && request.entries().iter().any(|&(at, copy)| {
                let entry = batch.at(usize::from(at));
                let slab = &slabs[self.slab_of(entry.page)];
                is_hedgeable(entry, slab, usize::from(copy))
            })
    }

    /// Takes the answers of reads as they come, until each page is there or has no answer to come, or until the deadline.
    /// A request whose pages others have delivered is left alone: its slot becomes free by itself.
    fn race(
        &self,
        batch: &mut Batch<'_>,
        scratch: &mut Scratch,
        deadline: Instant,
        requests: &mut Requests<'_>,
    ) {
        let is_racing =
            |request: &InFlight<'_>| request.is_in_flight() && request.operation == Operation::Get;
        loop {
            let seen = scratch.finished.count();
            for request in requests.iter_mut().flatten().filter(|it| is_racing(it)) {
                if scratch.slots[request.slot].is_free() {
                    let slot = Arc::clone(&scratch.slots[request.slot]);
                    self.settle(request, &mut slot.payload(), batch, scratch);
                    request.stage = Stage::Ended;
                }
            }
            for request in requests.iter_mut().flatten().filter(|it| is_racing(it)) {
                if request.is_served(batch) {
                    scratch.slots[request.slot].mark_overdue(request.holder.pulse());
                    request.stage = Stage::Ended;
                }
            }
            let is_open = requests.iter().flatten().any(is_racing);
            if !is_open || !scratch.finished.wait(seen, Some(deadline)) {
                return;
            }
        }
    }

    /// Fills request slots with what the entries need next.
    fn load<'s>(
        &self,
        slabs: &'s [Slab],
        batch: &mut Batch<'_>,
        scratch: &Scratch,
        deadline: Instant,
        requests: &mut Requests<'s>,
    ) {
        for (at, entry) in batch.iter_mut().enumerate() {
            let slab = &slabs[self.slab_of(entry.page)];
            while let Some((copy, operation)) = next_operation(entry, slab) {
                let Some(place) = slab.live(copy) else { break };
                let Some(request) =
                    find_request(requests, &place.holder, operation, scratch, deadline)
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
    }

    /// The key of a page at a holder.
    pub fn key_of(&self, page: u64, place: &SlabLocation) -> Key {
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
        scratch.slots[request.slot].mark_overdue(request.holder.pulse());
        request.holder.pulse().failed(request.operation != Operation::Get);
        for &(at, copy) in request.entries() {
            let entry = batch.at(usize::from(at));
            if entry.progress != Progress::Closed || request.operation != Operation::Get {
                entry.note_bad(usize::from(copy), Cause::NoAnswer);
            }
            go_on(entry);
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
            // Another copy was faster: the reader has the page.
            if request.operation == Operation::Get && entry.progress == Progress::Closed {
                continue;
            }
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
            if cause.is_none() && matches!(entry.want, Want::Read { .. }) {
                entry.progress = Progress::Closed;
            } else {
                go_on(entry);
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
        if matches!(entry.want, Want::Copy | Want::Mend(_)) {
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

/// The in-flight request to a holder for an operation, or a new one. None if all slots are in use.
fn find_request<'t, 's>(
    requests: &'t mut Requests<'s>,
    holder: &'s Arc<Holder>,
    operation: Operation,
    scratch: &Scratch,
    deadline: Instant,
) -> Option<&'t mut InFlight<'s>> {
    let is_it = |request: &InFlight<'_>| {
        let is_open = request.stage == Stage::New;
        is_open && Arc::ptr_eq(request.holder, holder) && request.operation == operation
    };
    let place = match requests.iter().position(|request| request.as_ref().is_some_and(is_it)) {
        Some(place) => place,
        None => {
            let place = requests.iter().position(Option::is_none)?;
            // A slot whose request has ended is free only if no worker has it.
            let taken = |slot: usize| {
                let mut of_it = requests.iter().flatten().filter(|request| request.slot == slot);
                of_it.any(|request| request.stage != Stage::Ended)
            };
            let slot = (0..SLOTS).find(|&slot| !taken(slot) && scratch.slots[slot].is_free())?;
            scratch.slots[slot].payload().reset(operation, deadline);
            requests[place] = Some(InFlight {
                holder,
                operation,
                slot,
                stage: Stage::New,
                sent: Instant::now(),
                entries: [(0, 0); BATCH_PAGES],
                count: 0,
            });
            place
        }
    };
    requests[place].as_mut()
}

#[cfg(test)]
mod tests;
