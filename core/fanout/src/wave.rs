//! Carries to the holders what the entries of a round need next, to all at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_types::Key;

use crate::device::Core;
use crate::holder::Holder;
use crate::lender::{BATCH_PAGES, Carried};
use crate::loss::Cause;
use crate::lot::{Cargo, Errand, Lot};
use crate::round::{Entry, Progress, Round, Want};
use crate::scratch::{LOTS, Scratch};
use crate::slabs::{COPIES, Place, Slab, TARGET};

/// A worker whose lender answers just at the deadline may take so much longer to say so.
const GRACE: Duration = Duration::from_millis(50);

/// Longer than anybody waits.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86400);

/// A lot on its way to a holder.
struct Trip<'s> {
    holder: &'s Arc<Holder>,
    errand: Errand,
    lot: usize,
    /// For whom: place of the entry, and the copy.
    legs: [(u8, u8); BATCH_PAGES],
    count: usize,
}

impl Trip<'_> {
    fn legs(&self) -> &[(u8, u8)] {
        &self.legs[..self.count]
    }
}

type Trips<'s> = [Option<Trip<'s>>; LOTS];

impl Core {
    /// Sends what can be sent, and takes the answers; false when there was nothing.
    pub fn wave(&self, slabs: &[Slab], round: &mut Round<'_>, scratch: &mut Scratch) -> bool {
        if scratch.lots.iter().all(|lot| !lot.is_free()) {
            // All are with holders that did not answer in time; they come back when those calls end.
            scratch.lots[0].wait(None);
        }
        let deadline = Instant::now() + self.settings.request_timeout;
        let trips = self.load(slabs, round, scratch, deadline);
        if trips[0].is_none() {
            return false;
        }
        let mut carried = [false; LOTS];
        for (place, trip) in trips.iter().flatten().enumerate() {
            carried[place] = self.carry_now(trip, round, scratch);
        }
        // This thread carries one itself, and so a device of one lender wakes nobody. It is this thread that waits for room in the
        // buffer before the file: workers have pages to read.
        let own = trips
            .iter()
            .flatten()
            .enumerate()
            .filter(|(place, trip)| !carried[*place] && trip.holder.is_prompt(trip.errand))
            .min_by_key(|(_, trip)| trip.holder.is_lender())
            .map(|(place, _)| place);
        let mut posted = [false; LOTS];
        for (place, trip) in trips.iter().flatten().enumerate() {
            if Some(place) != own && !carried[place] {
                trip.holder.post(&scratch.lots[trip.lot]);
                posted[place] = true;
            }
        }
        if let Some(trip) = own.and_then(|own| trips[own].as_ref()) {
            let lot = Arc::clone(&scratch.lots[trip.lot]);
            let mut cargo = lot.cargo();
            trip.holder.carry(&mut cargo);
            self.settle(trip, &mut cargo, round, scratch);
        }
        let mut late = [false; LOTS];
        for place in (0..LOTS).filter(|place| posted[*place]) {
            let Some(trip) = &trips[place] else { continue };
            late[place] = !self.collect(trip, Some(deadline + GRACE), round, scratch);
        }
        for place in (0..LOTS).filter(|place| late[*place]) {
            let Some(trip) = &trips[place] else { continue };
            self.end_late(trip, slabs, round, scratch);
        }
        for entry in round.iter_mut() {
            let slab = &slabs[self.slab_of(entry.page)];
            be_patient(entry, slab);
        }
        true
    }

    /// Puts what the entries need next into lots.
    fn load<'s>(
        &self,
        slabs: &'s [Slab],
        round: &mut Round<'_>,
        scratch: &Scratch,
        deadline: Instant,
    ) -> Trips<'s> {
        let mut trips: Trips<'s> = [const { None }; LOTS];
        for (at, entry) in round.iter_mut().enumerate() {
            let slab = &slabs[self.slab_of(entry.page)];
            while let Some((copy, errand)) = next_leg(entry, slab) {
                let Some(place) = slab.live(copy) else { break };
                let Some(trip) = find_trip(&mut trips, &place.holder, errand, scratch, deadline)
                else {
                    break;
                };
                let key = self.key_of(entry.page, place);
                let mut cargo = scratch.lots[trip.lot].cargo();
                let room = cargo.push(key);
                if errand == Errand::Put {
                    room.0 = scratch.sealed[at].0;
                    if entry.is_patient {
                        cargo.deadline = deadline + NEVER;
                    }
                }
                drop(cargo);
                trip.legs[trip.count] = (at as u8, copy as u8);
                trip.count += 1;
                entry.sent |= 1 << copy;
                if errand == Errand::Get {
                    entry.progress = Progress::Awaited;
                }
            }
        }
        trips
    }

    /// Where a page lies with a holder.
    fn key_of(&self, page: u64, place: &Place) -> Key {
        let pages = self.pages_per_slab();
        let number = u64::from(place.slab) * pages + page % pages;
        Key::new(number >> 32, number as u32)
    }

    /// Carries out what needs no waiting; whether it did.
    fn carry_now(&self, trip: &Trip<'_>, round: &mut Round<'_>, scratch: &mut Scratch) -> bool {
        let lot = Arc::clone(&scratch.lots[trip.lot]);
        let mut cargo = lot.cargo();
        let carried = trip.holder.carry_now(&mut cargo);
        if carried {
            self.settle(trip, &mut cargo, round, scratch);
        }
        carried
    }

    /// Takes a lot's outcomes, if it is back by the deadline; whether it is.
    fn collect(
        &self,
        trip: &Trip<'_>,
        deadline: Option<Instant>,
        round: &mut Round<'_>,
        scratch: &mut Scratch,
    ) -> bool {
        let lot: Arc<Lot> = Arc::clone(&scratch.lots[trip.lot]);
        let back = lot.wait(deadline);
        if back {
            self.settle(trip, &mut lot.cargo(), round, scratch);
        }
        back
    }

    /// Ends a trip that is late. Where another copy serves all of it, nobody waits any longer: the lot comes back by itself.
    fn end_late(
        &self,
        trip: &Trip<'_>,
        slabs: &[Slab],
        round: &mut Round<'_>,
        scratch: &mut Scratch,
    ) {
        let dispensable = trip.legs().iter().all(|&(at, copy)| {
            let entry = round.at(usize::from(at));
            let slab = &slabs[self.slab_of(entry.page)];
            is_dispensable(entry, slab, usize::from(copy))
        });
        if !dispensable {
            self.collect(trip, None, round, scratch);
            return;
        }
        for &(at, copy) in trip.legs() {
            let entry = round.at(usize::from(at));
            entry.note_bad(usize::from(copy), Cause::NoAnswer);
            if entry.progress == Progress::Awaited {
                entry.progress = Progress::Open;
            }
        }
    }

    /// Notes what came of each page of a lot.
    fn settle(
        &self,
        trip: &Trip<'_>,
        cargo: &mut Cargo,
        round: &mut Round<'_>,
        scratch: &mut Scratch,
    ) {
        for (leg, &(at, copy)) in trip.legs().iter().enumerate() {
            let (at, copy) = (usize::from(at), usize::from(copy));
            let entry = round.at(at);
            let cause = match cargo.outcomes[leg] {
                Carried::Done if trip.errand != Errand::Get => None,
                Carried::Done => self.unpack(entry, at, cargo, leg, scratch).err(),
                Carried::Refused => Some(Cause::Refused),
                Carried::Missing => Some(Cause::Missing),
                Carried::Lost => Some(Cause::NoAnswer),
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

    /// Opens a page that came, and gives it to whom it is for.
    fn unpack(
        &self,
        entry: &mut Entry<'_>,
        at: usize,
        cargo: &mut Cargo,
        leg: usize,
        scratch: &mut Scratch,
    ) -> Result<(), Cause> {
        let page = &mut cargo.pages[leg];
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

/// The next that an entry needs: something of a copy. Notes when there is nothing any more.
fn next_leg(entry: &mut Entry<'_>, slab: &Slab) -> Option<(usize, Errand)> {
    if entry.progress != Progress::Open {
        return None;
    }
    let unsent = |copy: &usize| entry.sent & 1 << copy == 0;
    let live = |copy: &usize| slab.live(*copy).is_some();
    match entry.want {
        Want::Copy if entry.fetched => {
            let next = Some(TARGET).filter(unsent).filter(live);
            next.map(|copy| (copy, Errand::Put)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Read { .. } | Want::Copy => {
            let next = (0..COPIES).filter(unsent).find(live);
            next.map(|copy| (copy, Errand::Get)).or_else(|| close(entry, Progress::Failed))
        }
        Want::Write(_) => {
            let next = (0..=TARGET).filter(unsent).find(live);
            next.map(|copy| (copy, Errand::Put)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Discard => {
            let flushes =
                |copy: &usize| slab.live(*copy).is_some_and(|place| place.holder.is_lender());
            let next = (0..=TARGET).filter(unsent).find(flushes);
            next.map(|copy| (copy, Errand::Flush)).or_else(|| close(entry, Progress::Closed))
        }
    }
}

/// A write that no copy took, since there was no room before the file in time, is put there once more, for as long as it takes:
/// the device stands still while its disk does. A file that fails says so at once.
fn be_patient(entry: &mut Entry<'_>, slab: &Slab) {
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

const fn close(entry: &mut Entry<'_>, progress: Progress) -> Option<(usize, Errand)> {
    entry.progress = progress;
    None
}

/// Whether an entry is served without the answer of a copy.
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

/// The trip to a holder for an errand, a new one perhaps. None when all lots are in use.
fn find_trip<'t, 's>(
    trips: &'t mut Trips<'s>,
    holder: &'s Arc<Holder>,
    errand: Errand,
    scratch: &Scratch,
    deadline: Instant,
) -> Option<&'t mut Trip<'s>> {
    let is_it = |trip: &Trip<'_>| Arc::ptr_eq(trip.holder, holder) && trip.errand == errand;
    let place = match trips.iter().position(|trip| trip.as_ref().is_some_and(is_it)) {
        Some(place) => place,
        None => {
            let place = trips.iter().position(Option::is_none)?;
            let taken = |lot: usize| trips.iter().flatten().any(|trip| trip.lot == lot);
            let lot = (0..LOTS).find(|&lot| !taken(lot) && scratch.lots[lot].is_free())?;
            scratch.lots[lot].cargo().begin(errand, deadline);
            trips[place] =
                Some(Trip { holder, errand, lot, legs: [(0, 0); BATCH_PAGES], count: 0 });
            place
        }
    };
    trips[place].as_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread;

    use spillway_block::Device;

    use super::*;
    use crate::behind::tests::Fake;
    use crate::{FanOut, Lender, Page, Settings};

    /// A lender that stores pages until it is dead; then it does not answer.
    #[derive(Debug)]
    struct Mortal {
        pages: Mutex<Vec<Page>>,
        dead: AtomicBool,
    }

    impl Mortal {
        fn answer(&self, outcomes: &mut [Carried], deadline: Instant) {
            outcomes.fill(Carried::Done);
            if self.dead.load(Ordering::SeqCst) {
                thread::sleep(deadline.saturating_duration_since(Instant::now()));
                outcomes.fill(Carried::Lost);
            }
        }
    }

    impl Lender for Mortal {
        fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried], deadline: Instant) {
            for (key, page) in keys.iter().zip(pages) {
                self.pages.lock().unwrap()[key.index as usize].0 = page.0;
            }
            self.answer(outcomes, deadline);
        }

        fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [Carried], end: Instant) {
            for (key, page) in keys.iter().zip(pages) {
                page.0 = self.pages.lock().unwrap()[key.index as usize].0;
            }
            self.answer(outcomes, end);
        }

        fn flush(&self, _: &[Key], outcomes: &mut [Carried], deadline: Instant) {
            self.answer(outcomes, deadline);
        }
    }

    #[test]
    fn a_lender_that_dies_while_the_file_has_no_room_costs_time_and_no_page() {
        const SLABS: u32 = 8;
        // What the buffer before the file has room for.
        const BUFFER_PAGES: u64 = 1024;
        let fake = Fake::new();
        let file = Holder::pages(Box::new(Arc::clone(&fake))).unwrap();
        let lender = Arc::new(Mortal {
            pages: Mutex::new(vec![Page([0; 4096]); 256 * SLABS as usize]),
            dead: AtomicBool::new(false),
        });
        let holder = Holder::lender(0, lender.clone()).unwrap();
        let place = |holder: &Arc<Holder>, slab| Some(Place { holder: holder.clone(), slab });
        // The fake file ends within the fifth slab.
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
