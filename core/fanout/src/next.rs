//! What an entry of a batch needs next: of which copy, and whether it can do without an answer.

use crate::batch::{COPY_BITS, Entry, Progress, Want};
use crate::request::Operation;
use crate::slabs::{COPIES, Slab, SlabLocation, TARGET};

/// The next operation that an entry needs, and on which copy. If there is none, this closes the
/// entry.
pub fn next_operation(entry: &mut Entry<'_>, slab: &Slab) -> Option<(usize, Operation)> {
    if entry.progress != Progress::Open {
        return None;
    }
    let unsent = |copy: &usize| entry.sent & 1 << copy == 0;
    let live = |copy: &usize| slab.live(*copy).is_some();
    let target = match entry.want {
        Want::Mend(copy) => copy,
        _ => TARGET,
    };
    match entry.want {
        Want::Mend(copy) if entry.seal.is_none() => {
            let next = Some(copy).filter(unsent).filter(live);
            next.map(|copy| (copy, Operation::Flush)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Copy | Want::Mend(_) if entry.fetched => {
            let next = Some(target).filter(unsent).filter(live);
            next.map(|copy| (copy, Operation::Put)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Read { .. } | Want::Copy | Want::Mend(_) => {
            let next = next_source(entry, slab);
            if next.is_none() && entry.sent != entry.good | entry.bad {
                return close(entry, Progress::Awaited);
            }
            next.map(|copy| (copy, Operation::Get)).or_else(|| close(entry, Progress::Failed))
        }
        Want::Write(_) => {
            let asked = |copy: &usize| (entry.sent | entry.skipped) & 1 << copy == 0 && live(copy);
            let is_in_flight = entry.sent & COPY_BITS & !(entry.good | entry.bad) != 0;
            let has_it = |copy: &usize| entry.good & 1 << copy != 0 && live(copy);
            if !is_in_flight && !(0..COPIES).any(|copy| asked(&copy) || has_it(&copy)) {
                // No other copy took it, or none is in use any more.
                entry.skipped = 0;
            }
            let asked = |copy: &usize| (entry.sent | entry.skipped) & 1 << copy == 0;
            let next = (0..=TARGET).filter(asked).find(live);
            if next.is_none() && entry.skipped != 0 && entry.good & COPY_BITS == 0 {
                // The others have not answered yet.
                return None;
            }
            next.map(|copy| (copy, Operation::Put)).or_else(|| close(entry, Progress::Closed))
        }
        Want::Discard => {
            let flushes = |copy: &usize| {
                let is_lender = |place: &SlabLocation| place.holder.is_lender();
                entry.skipped & 1 << copy == 0 && slab.live(*copy).is_some_and(is_lender)
            };
            let next = (0..=TARGET).filter(unsent).find(flushes);
            next.map(|copy| (copy, Operation::Flush)).or_else(|| close(entry, Progress::Closed))
        }
    }
}

/// Retries a write that no copy took because the write-back buffer had no room in time: once more,
/// without a deadline. So the device stalls while its disk does. A file that fails reports that at
/// once.
pub fn retry_patiently(entry: &mut Entry<'_>, slab: &Slab) {
    let live = |copy: &usize| slab.live(*copy).is_some();
    let all_sent = (0..COPIES).filter(live).all(|copy| entry.sent & 1 << copy != 0);
    let stored = entry.good & COPY_BITS != 0;
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

/// Lets an entry whose request has ended without success go on with its next one, unless another one is in flight for
/// it.
pub const fn go_on(entry: &mut Entry<'_>) {
    if matches!(entry.progress, Progress::Awaited) && entry.sent == entry.good | entry.bad {
        entry.progress = Progress::Open;
    }
}

/// The copy that a page is read from next.
fn next_source(entry: &Entry<'_>, slab: &Slab) -> Option<usize> {
    let copies = (0..COPIES).map(|turn| (entry.first + turn) % COPIES);
    let is_readable = |copy: &usize| (entry.sent | entry.behind) & 1 << copy == 0;
    copies.filter(is_readable).find(|copy| slab.live(*copy).is_some())
}

/// Whether another copy can be asked while a read of this copy is in flight.
pub fn is_hedgeable(entry: &Entry<'_>, slab: &Slab, copy: usize) -> bool {
    matches!(entry.want, Want::Read { .. })
        && entry.progress == Progress::Awaited
        && entry.sent == 1 << copy
        && next_source(entry, slab).is_some()
}

const fn close(entry: &mut Entry<'_>, progress: Progress) -> Option<(usize, Operation)> {
    entry.progress = progress;
    None
}

/// Whether an entry can be served without the answer of a copy.
pub fn is_dispensable(entry: &Entry<'_>, slab: &Slab, copy: usize) -> bool {
    let is_other = |other: &usize| *other != copy && slab.live(*other).is_some();
    match entry.want {
        Want::Write(_) => entry.good & COPY_BITS != 0,
        Want::Copy | Want::Mend(_) if entry.fetched => true,
        Want::Mend(_) if entry.seal.is_none() => true,
        Want::Discard => copy == TARGET || (0..COPIES).any(|other| is_other(&other)),
        // A copy that was asked before, or that can be asked now.
        Want::Read { .. } | Want::Copy | Want::Mend(_) => {
            entry.progress == Progress::Closed
                || (0..COPIES)
                    .filter(is_other)
                    .any(|other| (entry.behind | entry.bad) & 1 << other == 0)
        }
    }
}
