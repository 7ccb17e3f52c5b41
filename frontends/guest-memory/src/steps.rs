//! The work on a page, step by step, without I/O.
//!
//! A manager may be killed between any two steps, and its successor begins with [`recover`]. These
//! invariants hold after each step:
//!
//! - *The guest's memory is authoritative.* A far copy counts only if the memory has no page there.
//! - A page leaves in this order: block writers, read the contents, store them far, record the
//!   place in the map, punch the memory, release writers.
//! - A page comes back in this order: fetch it, place it, mark it near in the map, remove the far
//!   copy.
//!
//! So there is always at least one good copy. If there are two, they are equal or the one in memory is
//! newer.

use crate::{PageLocation, Run};

/// The result of placing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It was placed, and waiting threads continue.
    Done,
    /// A page is present already.
    There,
    /// Not now: an event is unread.
    Later,
    /// The guest is gone, or that part of its memory is.
    Gone,
}

/// The result of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The page came from far.
    Fetched,
    /// The page got its initial contents.
    First,
    /// The page is lost.
    Lost,
    /// The page was there already, or its part of the guest is gone; waiting threads retry.
    There,
    /// The page could not be placed now; waiting threads retry.
    Later,
}

/// The objects on which the steps act: the guest's memory, the map, the tiers.
pub trait World {
    /// The reason why the manager can't continue at all.
    type Fatal;
    /// The bytes of one unit.
    type Page: ?Sized;
    /// A buffer for the contents of a run.
    type Pages: ?Sized;

    /// The map's entry of a unit.
    fn place(&self, unit: u64) -> PageLocation;
    /// Sets the map's entry of a unit.
    fn set_place(&self, unit: u64, place: PageLocation) -> Result<(), Self::Fatal>;
    /// The map's entry for a unit whose contents the guest discards.
    fn emptied(&self) -> PageLocation;
    /// Blocks writers to the run; false if that is impossible now, with nothing changed.
    fn protect(&self, run: Run) -> Result<bool, Self::Fatal>;
    /// Releases writers, and wakes threads that wait for the run.
    fn release(&self, run: Run) -> Result<(), Self::Fatal>;
    /// Wakes threads that wait for the run; they retry.
    fn wake(&self, run: Run) -> Result<(), Self::Fatal>;
    /// Reads the memory's contents; false if that failed.
    fn read(&self, run: Run, pages: &mut Self::Pages) -> Result<bool, Self::Fatal>;
    /// Copies pages to the tiers, and writes their places to `places`. The entry of a page that no tier accepted stays
    /// near.
    fn put(
        &self,
        run: Run,
        pages: &mut Self::Pages,
        places: &mut [PageLocation],
    ) -> Result<(), Self::Fatal>;
    /// Punches contents out of the memory; false if they are still there.
    fn punch(&self, run: Run) -> Result<bool, Self::Fatal>;
    /// Fetches a far page; false if it is lost.
    fn fetch(
        &self,
        unit: u64,
        place: PageLocation,
        page: &mut Self::Page,
    ) -> Result<bool, Self::Fatal>;
    /// The contents of a page that is not far.
    fn first(
        &self,
        unit: u64,
        place: PageLocation,
        page: &mut Self::Page,
    ) -> Result<bool, Self::Fatal>;
    /// Places a page at an empty address.
    fn fill(&self, unit: u64, page: &Self::Page) -> Result<Filled, Self::Fatal>;
    /// Makes touching the unit a SIGBUS.
    fn poison(&self, unit: u64) -> Result<(), Self::Fatal>;
    /// Removes a stale far copy.
    fn forget(&self, unit: u64, place: PageLocation) -> Result<(), Self::Fatal>;
    /// Reports a page in the memory that only this manager may place, but did not.
    fn foreign(&self, unit: u64) -> Self::Fatal;
    /// The next run of units with contents in the memory, at or after the unit `from`.
    fn present(&self, from: u64) -> Result<Option<Run>, Self::Fatal>;
    /// The run whose removal was read from the kernel but not fully processed.
    fn noted(&self) -> Vec<Run>;
    /// Marks the removal as processed.
    fn clear_note(&self) -> Result<(), Self::Fatal>;
    /// Removes far copies that the map does not name.
    fn forget_strays(&self) -> Result<(), Self::Fatal>;
    /// Releases all writers of the guest, and wakes all waiting threads.
    fn release_all(&self) -> Result<(), Self::Fatal>;
}

/// Evicts a run from the guest's memory. Returns how many pages left, and how many no tier accepted; `None` if eviction
/// is impossible now. The caller has claimed the run's units.
///
/// # Errors
/// A fatal error of the world.
pub fn evict<W: World>(
    world: &W,
    run: Run,
    pages: &mut W::Pages,
    places: &mut [PageLocation],
) -> Result<Option<(u64, u64)>, W::Fatal> {
    if !world.protect(run)? {
        return Ok(None);
    }
    let places = &mut places[..run.count as usize];
    places.fill(PageLocation::Near);
    if !world.read(run, pages)? {
        world.release(run)?;
        return Ok(None);
    }
    world.put(run, pages, places)?;
    for (unit, &place) in run.units().zip(&*places) {
        if place.is_far() {
            let before = world.place(unit);
            world.set_place(unit, place)?;
            // The old copy is of contents that the guest's memory has replaced.
            if before.is_far() && before != place {
                world.forget(unit, before)?;
            }
        }
    }
    let mut left = 0;
    for (part, far) in parts(run, places) {
        if far && world.punch(part)? {
            left += part.count;
            continue;
        }
        for unit in part.units().filter(|_| far) {
            let place = world.place(unit);
            world.set_place(unit, PageLocation::Near)?;
            world.forget(unit, place)?;
        }
        world.release(part)?;
    }
    // Blocked writers find their pages gone and fault again.
    world.wake(run)?;
    let refused = places.iter().filter(|place| !place.is_far()).count() as u64;
    Ok(Some((left, refused)))
}

/// Cuts a run where its places change between far and near.
fn parts(run: Run, places: &[PageLocation]) -> impl Iterator<Item = (Run, bool)> {
    let mut at = 0;
    places.chunk_by(|one, other| one.is_far() == other.is_far()).map(move |chunk| {
        let part = Run { first: run.first + at, count: chunk.len() as u64 };
        at += part.count;
        (part, chunk[0].is_far())
    })
}

/// Answers a fault on a missing page. The caller has claimed the unit.
///
/// # Errors
/// A fatal error of the world.
pub fn bring_in<W: World>(world: &W, unit: u64, page: &mut W::Page) -> Result<Answered, W::Fatal> {
    let place = world.place(unit);
    let far = place.is_far();
    let had = if far { world.fetch(unit, place, page)? } else { world.first(unit, place, page)? };
    if !had {
        world.poison(unit)?;
        return Ok(Answered::Lost);
    }
    match world.fill(unit, page)? {
        Filled::Done if far => {
            world.set_place(unit, PageLocation::Near)?;
            world.forget(unit, place)?;
            Ok(Answered::Fetched)
        }
        Filled::Done => Ok(Answered::First),
        Filled::There if far => Err(world.foreign(unit)),
        Filled::There => world.wake(Run::one(unit)).map(|()| Answered::There),
        Filled::Later => world.wake(Run::one(unit)).map(|()| Answered::Later),
        Filled::Gone => Ok(Answered::There),
    }
}

/// Processes the removal that was read from the kernel, if any. `wait` must return when no thread works on the run's
/// units; none may start until this function returns.
///
/// # Errors
/// A fatal error of the world.
pub fn follow_removal<W: World>(world: &W, wait: impl Fn(Run)) -> Result<(), W::Fatal> {
    for run in world.noted() {
        wait(run);
        remove(world, run)?;
    }
    world.clear_note()
}

/// Discards a run's contents on the guest's request.
fn remove<W: World>(world: &W, run: Run) -> Result<(), W::Fatal> {
    for unit in run.units() {
        let place = world.place(unit);
        if place != world.emptied() {
            world.set_place(unit, world.emptied())?;
        }
        if place.is_far() {
            world.forget(unit, place)?;
        }
    }
    Ok(())
}

/// Completes what a killed manager left unfinished. No other thread works on the guest meanwhile.
///
/// # Errors
/// A fatal error of the world.
pub fn recover<W: World>(world: &W) -> Result<(), W::Fatal> {
    follow_removal(world, |_| ())?;
    let mut from = 0;
    while let Some(run) = world.present(from)? {
        for unit in run.units() {
            let place = world.place(unit);
            if place.is_far() {
                world.set_place(unit, PageLocation::Near)?;
                world.forget(unit, place)?;
            }
        }
        from = run.end();
    }
    world.forget_strays()?;
    world.release_all()
}
