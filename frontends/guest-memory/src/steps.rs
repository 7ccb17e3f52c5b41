//! The work on a page, step by step, without I/O.
//!
//! A manager may be killed between any two steps, and its successor begins with [`recover`]. What holds
//! after each step:
//!
//! - *What the guest's memory has is the truth.* A far copy counts only where the memory has nothing.
//! - A page leaves in this order: writers are held up, the contents are read, put far, the map says
//!   where, the memory is punched, writers go on.
//! - A page comes back in this order: fetched, placed, the map says near, the far copy is forgotten.
//!
//! So at no point is there less than one good copy, and where there are two the memory's is the newer or
//! both are equal.

use crate::{PageLocation, Run};

/// What became of a page that was to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It is there now, and whoever waited goes on.
    Done,
    /// Something is there already.
    There,
    /// Not now: an event waits to be read.
    Later,
    /// The guest is gone, or that part of its memory is.
    Gone,
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The page came from far.
    Fetched,
    /// It was given its first contents.
    First,
    /// It could not be had back.
    Lost,
    /// It was there already, or its part of the guest is gone; whoever waited looks again.
    There,
    /// It could not be placed now; whoever waited looks again.
    Later,
}

/// What the steps are done on: the guest's memory, the map, the tiers.
pub trait World {
    /// Why the manager can't go on at all.
    type Fatal;
    /// The bytes of one unit.
    type Page: ?Sized;
    /// Room for the contents of a run.
    type Pages: ?Sized;

    /// What the map says of a unit.
    fn place(&self, unit: u64) -> PageLocation;
    /// Writes it to the map.
    fn set_place(&self, unit: u64, place: PageLocation) -> Result<(), Self::Fatal>;
    /// What the map is to say of a unit whose contents the guest gives up.
    fn emptied(&self) -> PageLocation;
    /// Holds writers to the run up; false when that can't be done now, and nothing was.
    fn protect(&self, run: Run) -> Result<bool, Self::Fatal>;
    /// Lets writers through, and wakes who waits for the run.
    fn release(&self, run: Run) -> Result<(), Self::Fatal>;
    /// Wakes who waits for the run; they look again.
    fn wake(&self, run: Run) -> Result<(), Self::Fatal>;
    /// Reads what the memory has; false when that failed.
    fn read(&self, run: Run, pages: &mut Self::Pages) -> Result<bool, Self::Fatal>;
    /// Puts pages far. `places` says where, or near for one that no tier took.
    fn put(
        &self,
        run: Run,
        pages: &mut Self::Pages,
        places: &mut [PageLocation],
    ) -> Result<(), Self::Fatal>;
    /// Takes contents out of the memory; false when they are still there.
    fn punch(&self, run: Run) -> Result<bool, Self::Fatal>;
    /// Fetches a far page; false when it is lost.
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
    /// Places a page where there is none.
    fn fill(&self, unit: u64, page: &Self::Page) -> Result<Filled, Self::Fatal>;
    /// Has whoever touches the unit get SIGBUS.
    fn poison(&self, unit: u64) -> Result<(), Self::Fatal>;
    /// A far copy that nobody needs.
    fn forget(&self, unit: u64, place: PageLocation) -> Result<(), Self::Fatal>;
    /// A page that only this manager may bring in is in the memory, and not by it.
    fn foreign(&self, unit: u64) -> Self::Fatal;
    /// The next run of units that the memory has contents of, from a unit on.
    fn present(&self, from: u64) -> Result<Option<Run>, Self::Fatal>;
    /// The run whose removal was read of the kernel, and not followed to its end.
    fn noted(&self) -> Vec<Run>;
    /// It has been.
    fn clear_note(&self) -> Result<(), Self::Fatal>;
    /// Forgets far copies that the map names nowhere.
    fn forget_strays(&self) -> Result<(), Self::Fatal>;
    /// Lets all writers of the guest through, and wakes all who wait.
    fn release_all(&self) -> Result<(), Self::Fatal>;
}

/// Takes a run out of the guest's memory: how many pages left, and how many no tier took; `None` when that can't be
/// done now. Nobody else works on its units meanwhile.
///
/// # Errors
/// What the world can't go on after.
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
            // Of contents that the guest's memory had replaced.
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
    // Writers that were held up find their pages gone and fault anew.
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

/// Answers a fault on a missing page. Nobody else works on the unit meanwhile.
///
/// # Errors
/// What the world can't go on after.
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

/// Follows the removal that was read of the kernel, if one was: `wait` returns when nobody works on the run's units any
/// more, and nobody begins to before this has ended.
///
/// # Errors
/// What the world can't go on after.
pub fn follow_removal<W: World>(world: &W, wait: impl Fn(Run)) -> Result<(), W::Fatal> {
    for run in world.noted() {
        wait(run);
        remove(world, run)?;
    }
    world.clear_note()
}

/// The guest gives a run's contents up.
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

/// Makes good what a manager that was killed left half done. Nobody else works on the guest meanwhile.
///
/// # Errors
/// What the world can't go on after.
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
