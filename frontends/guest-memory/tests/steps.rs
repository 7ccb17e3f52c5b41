//! The steps against a model of guest, kernel and store. The manager is killed before any step and the guest writes
//! between any two, but every byte is always what the guest wrote last.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use proptest::prelude::*;
use spillway_guest_memory::steps::{self, Answered, Filled, World};
use spillway_guest_memory::{PageLocation, Run};

const UNITS: u64 = 6;

/// The reason why a manager of the model ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed,
    Foreign,
}

/// A page of the model.
#[derive(Clone, Debug)]
struct Unit {
    /// The value that the guest must read.
    truth: u64,
    /// The value in the memory file, if it has the page.
    near: Option<u64>,
    protected: bool,
    poisoned: bool,
}

#[derive(Clone, Copy, Debug)]
enum Tiers {
    /// One copy for each page, as in the store.
    Store,
    /// A new key for each copy, as on the blade.
    Blade,
    /// Either, in turn.
    Both,
}

/// The state that outlives a manager, and the plan for the present one.
struct Model {
    units: RefCell<Vec<Unit>>,
    map: RefCell<Vec<PageLocation>>,
    store: RefCell<HashMap<u64, u64>>,
    blade: RefCell<HashMap<u64, u64>>,
    handles: Cell<u64>,
    pending: Cell<(u64, u64)>,
    note: Cell<Option<Run>>,
    /// Initial contents of pages.
    source: Option<u64>,
    tiers: Tiers,
    /// Steps until the manager is killed.
    left: Cell<u64>,
    /// The guest's next writes, one between two steps.
    writes: RefCell<Vec<(u64, u64)>>,
    /// One in this many puts is refused; 0 for none.
    refuses: u64,
    puts: Cell<u64>,
    /// One in this many punches fails; 0 for none.
    stubborn: u64,
    punches: Cell<u64>,
}

impl Model {
    fn new(tiers: Tiers, source: Option<u64>, refuses: u64, stubborn: u64) -> Self {
        let unit =
            Unit { truth: source.unwrap_or(0), near: None, protected: false, poisoned: false };
        Self {
            units: RefCell::new(vec![unit; UNITS as usize]),
            map: RefCell::new(vec![PageLocation::Near; UNITS as usize]),
            store: RefCell::default(),
            blade: RefCell::default(),
            handles: Cell::new(0),
            pending: Cell::new((0, 0)),
            note: Cell::new(None),
            source,
            tiers,
            left: Cell::new(u64::MAX),
            writes: RefCell::default(),
            refuses,
            puts: Cell::new(0),
            stubborn,
            punches: Cell::new(0),
        }
    }

    /// Begins a step: the guest may write before it, and the manager may be killed.
    fn step(&self) -> Result<(), End> {
        if let Some((unit, value)) = self.writes.borrow_mut().pop() {
            self.guest_writes(unit % UNITS, value);
        }
        self.check();
        match self.left.get() {
            0 => Err(End::Killed),
            left => {
                self.left.set(left - 1);
                Ok(())
            }
        }
    }

    /// The guest writes, unless it is blocked. Returns whether it wrote.
    fn guest_writes(&self, unit: u64, value: u64) -> bool {
        let unit = &mut self.units.borrow_mut()[unit as usize];
        let free = unit.near.is_some() && !unit.protected;
        if free {
            (unit.near, unit.truth) = (Some(value), value);
        }
        free
    }

    /// Checks that the guest reads what it wrote last.
    fn check(&self) {
        for (at, unit) in self.units.borrow().iter().enumerate() {
            assert!(!unit.poisoned, "unit {at} was lost");
            if let Some(near) = unit.near {
                assert_eq!(near, unit.truth, "unit {at} reads wrong");
            }
        }
    }

    /// The guest removes a page: the kernel sends the manager a message, and then drops the contents.
    fn guest_removes(&self, unit: u64) {
        self.note.set(Some(Run::one(unit)));
        let unit = &mut self.units.borrow_mut()[unit as usize];
        (unit.truth, unit.near) = (0, None);
    }

    /// A new manager recovers. Checks that the guest can read and write every page, and that no stray copy remains.
    fn settles(&self) {
        self.left.set(u64::MAX);
        self.writes.borrow_mut().clear();
        steps::recover(self).unwrap();
        let far = |place: &PageLocation| place.is_far();
        let kept = self.store.borrow().len() + self.blade.borrow().len();
        let named = self.map.borrow().iter().filter(|place| far(place)).count();
        assert_eq!(kept, named, "no copy that nobody names");
        for unit in 0..UNITS {
            if self.units.borrow()[unit as usize].near.is_none() {
                let answered = steps::bring_in(self, unit, &mut 0).unwrap();
                assert!(matches!(answered, Answered::First | Answered::Fetched));
            }
            assert!(self.guest_writes(unit, unit + 1000), "unit {unit} is held up for good");
            assert!(!far(&self.place(unit)));
        }
        self.check();
        assert!(self.store.borrow().is_empty() && self.blade.borrow().is_empty());
        assert_eq!(self.note.get(), None);
    }

    fn stored(&self, place: PageLocation, unit: u64) -> Option<u64> {
        match place {
            PageLocation::Store => self.store.borrow().get(&unit).copied(),
            PageLocation::Blade { handle, .. } => self.blade.borrow().get(&handle).copied(),
            _ => None,
        }
    }
}

impl World for Model {
    type Fatal = End;
    type Page = u64;
    type Pages = Vec<u64>;

    fn place(&self, unit: u64) -> PageLocation {
        self.map.borrow()[unit as usize]
    }

    fn set_place(&self, unit: u64, place: PageLocation) -> Result<(), End> {
        self.step()?;
        self.map.borrow_mut()[unit as usize] = place;
        Ok(())
    }

    fn emptied(&self) -> PageLocation {
        if self.source.is_some() { PageLocation::Emptied } else { PageLocation::Near }
    }

    fn protect(&self, run: Run) -> Result<bool, End> {
        self.step()?;
        run.units().for_each(|unit| self.units.borrow_mut()[unit as usize].protected = true);
        Ok(true)
    }

    fn release(&self, run: Run) -> Result<(), End> {
        self.step()?;
        run.units().for_each(|unit| self.units.borrow_mut()[unit as usize].protected = false);
        Ok(())
    }

    fn wake(&self, _: Run) -> Result<(), End> {
        self.step()
    }

    fn read(&self, run: Run, pages: &mut Vec<u64>) -> Result<bool, End> {
        pages.clear();
        for unit in run.units() {
            self.step()?;
            // A hole reads as zeros.
            pages.push(self.units.borrow()[unit as usize].near.unwrap_or(0));
        }
        Ok(true)
    }

    fn put(&self, run: Run, pages: &mut Vec<u64>, places: &mut [PageLocation]) -> Result<(), End> {
        for ((unit, &value), place) in run.units().zip(&*pages).zip(places) {
            self.step()?;
            self.puts.set(self.puts.get() + 1);
            if self.refuses != 0 && self.puts.get().is_multiple_of(self.refuses) {
                self.store.borrow_mut().remove(&unit);
                continue;
            }
            let on_blade = match self.tiers {
                Tiers::Store => false,
                Tiers::Blade => true,
                Tiers::Both => self.puts.get().is_multiple_of(2),
            };
            if on_blade {
                let handle = self.handles.get();
                self.handles.set(handle + 1);
                let (first, count) = self.pending.get();
                // The first page of a batch begins a new list.
                let begins = unit == run.first;
                self.pending.set(if begins { (handle, 1) } else { (first, count + 1) });
                self.step()?;
                assert_eq!(self.blade.borrow_mut().insert(handle, value), None, "used twice");
                *place = PageLocation::Blade { handle, length: 8 };
            } else {
                self.store.borrow_mut().insert(unit, value);
                *place = PageLocation::Store;
            }
        }
        Ok(())
    }

    fn punch(&self, run: Run) -> Result<bool, End> {
        self.step()?;
        self.punches.set(self.punches.get() + 1);
        if self.stubborn != 0 && self.punches.get().is_multiple_of(self.stubborn) {
            return Ok(false);
        }
        for unit in run.units() {
            let unit = &mut self.units.borrow_mut()[unit as usize];
            assert!(unit.protected, "punched while the guest may write");
            unit.near = None;
        }
        Ok(true)
    }

    fn fetch(&self, unit: u64, place: PageLocation, page: &mut u64) -> Result<bool, End> {
        self.step()?;
        let found = self.stored(place, unit);
        *page = found.unwrap_or(*page);
        Ok(found.is_some())
    }

    fn first(&self, _: u64, place: PageLocation, page: &mut u64) -> Result<bool, End> {
        self.step()?;
        *page = self.source.filter(|_| place == PageLocation::Near).unwrap_or(0);
        Ok(true)
    }

    fn fill(&self, unit: u64, page: &u64) -> Result<Filled, End> {
        self.step()?;
        let unit = &mut self.units.borrow_mut()[unit as usize];
        if unit.near.is_some() {
            return Ok(Filled::There);
        }
        // A new page is not protected, even if the punched one was.
        (unit.near, unit.protected) = (Some(*page), false);
        Ok(Filled::Done)
    }

    fn poison(&self, unit: u64) -> Result<(), End> {
        self.units.borrow_mut()[unit as usize].poisoned = true;
        Ok(())
    }

    fn forget(&self, unit: u64, place: PageLocation) -> Result<(), End> {
        self.step()?;
        match place {
            PageLocation::Store => self.store.borrow_mut().remove(&unit),
            PageLocation::Blade { handle, .. } => self.blade.borrow_mut().remove(&handle),
            _ => None,
        };
        Ok(())
    }

    fn foreign(&self, _: u64) -> End {
        End::Foreign
    }

    fn present(&self, from: u64) -> Result<Option<Run>, End> {
        let there = |unit: &u64| self.units.borrow()[*unit as usize].near.is_some();
        let first = (from..UNITS).find(there);
        Ok(first.map(|first| Run { first, count: (first..UNITS).take_while(there).count() as u64 }))
    }

    fn noted(&self) -> Vec<Run> {
        self.note.get().into_iter().collect()
    }

    fn clear_note(&self) -> Result<(), End> {
        self.step()?;
        self.note.set(None);
        Ok(())
    }

    fn forget_strays(&self) -> Result<(), End> {
        self.step()?;
        self.store.borrow_mut().retain(|unit, _| self.place(*unit) == PageLocation::Store);
        let (first, count) = self.pending.get();
        let named =
            |handle: u64| self.map.borrow().contains(&PageLocation::Blade { handle, length: 8 });
        // On a real blade, a copy whose removal a kill prevented stays until the pool is destroyed.
        self.blade
            .borrow_mut()
            .retain(|&handle, _| !(first..first + count).contains(&handle) || named(handle));
        self.blade.borrow_mut().retain(|&handle, _| named(handle));
        Ok(())
    }

    fn release_all(&self) -> Result<(), End> {
        self.step()?;
        self.units.borrow_mut().iter_mut().for_each(|unit| unit.protected = false);
        Ok(())
    }
}

/// An action of the guest or the manager.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Touch(u64),
    Write(u64, u64),
    Evict(u64, u64),
    Remove(u64),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let unit = 0..UNITS;
    let deed = prop_oneof![
        3 => unit.clone().prop_map(Deed::Touch),
        3 => (unit.clone(), 1..1000_u64).prop_map(|(unit, value)| Deed::Write(unit, value)),
        4 => (unit.clone(), 1..=UNITS).prop_map(|(unit, count)| Deed::Evict(unit, count)),
        1 => unit.prop_map(Deed::Remove),
    ];
    prop::collection::vec(deed, 1..24)
}

fn models() -> impl Strategy<Value = (Tiers, Option<u64>, u64, u64)> {
    let tiers = prop_oneof![Just(Tiers::Store), Just(Tiers::Blade), Just(Tiers::Both)];
    (tiers, prop::option::of(1..9_u64), 0..5_u64, 0..5_u64)
}

/// The guest touches a page, and the manager answers its fault.
fn touch(model: &Model, unit: u64) -> Result<(), End> {
    if model.units.borrow()[unit as usize].near.is_none() {
        steps::bring_in(model, unit, &mut 0)?;
    }
    Ok(())
}

fn do_it(model: &Model, deed: Deed) -> Result<(), End> {
    match deed {
        Deed::Touch(unit) => touch(model, unit),
        Deed::Write(unit, value) => {
            touch(model, unit)?;
            if !model.guest_writes(unit, value) {
                // The write faults on the protection.
                model.release(Run::one(unit))?;
            }
            Ok(())
        }
        Deed::Evict(from, most) => {
            let Some(run) = model.present(from)? else { return Ok(()) };
            let run = Run { count: run.count.min(most), ..run };
            let mut places = vec![PageLocation::Store; UNITS as usize];
            steps::evict(model, run, &mut Vec::new(), &mut places).map(|_| ())
        }
        Deed::Remove(unit) => {
            model.guest_removes(unit);
            steps::follow_removal(model, |_| ())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Several managers, one after the other, each killed at a random step.
    #[test]
    fn no_byte_is_wrong_wherever_managers_are_killed(
        (tiers, source, refuses, stubborn) in models(),
        lives in prop::collection::vec((deeds(), 0..60_u64), 1..5),
        writes in prop::collection::vec((0..UNITS, 1..1000_u64), 0..60),
    ) {
        let model = Model::new(tiers, source, refuses, stubborn);
        *model.writes.borrow_mut() = writes;
        for (deeds, kill) in lives {
            model.left.set(u64::MAX);
            steps::recover(&model).unwrap();
            model.left.set(kill);
            for deed in deeds {
                match do_it(&model, deed) {
                    Ok(()) => model.check(),
                    Err(end) => {
                        prop_assert_eq!(end, End::Killed);
                        break;
                    }
                }
            }
        }
        model.settles();
    }
}

/// Writes, evictions, removals and recovery, with a kill before each step.
#[test]
fn a_death_before_each_step_of_each_way_loses_nothing() {
    for tiers in [Tiers::Store, Tiers::Blade, Tiers::Both] {
        for source in [None, Some(7)] {
            for kill in 0..80 {
                for again in [0, 1, 3, 8, u64::MAX] {
                    let model = Model::new(tiers, source, 0, 0);
                    for unit in 0..UNITS {
                        do_it(&model, Deed::Write(unit, unit + 50)).unwrap();
                    }
                    model.left.set(kill);
                    let deeds = [
                        Deed::Evict(0, 4),
                        Deed::Touch(1),
                        Deed::Write(2, 77),
                        Deed::Remove(3),
                        Deed::Remove(5),
                        Deed::Evict(0, UNITS),
                        Deed::Touch(2),
                    ];
                    let _ = deeds.into_iter().try_for_each(|deed| do_it(&model, deed));
                    model.left.set(again);
                    let _ = steps::recover(&model);
                    model.settles();
                }
            }
        }
    }
}

#[test]
fn a_page_that_somebody_else_brought_in_is_not_served() {
    let model = Model::new(Tiers::Store, None, 0, 0);
    do_it(&model, Deed::Write(0, 5)).unwrap();
    do_it(&model, Deed::Evict(0, 1)).unwrap();
    model.units.borrow_mut()[0].near = Some(5);
    assert_eq!(steps::bring_in(&model, 0, &mut 0), Err(End::Foreign));
}

#[test]
fn what_leaves_and_what_is_refused_is_counted() {
    let model = Model::new(Tiers::Store, None, 3, 0);
    for unit in 0..UNITS {
        do_it(&model, Deed::Write(unit, unit + 1)).unwrap();
    }
    let run = Run { first: 0, count: UNITS };
    let mut places = vec![PageLocation::Near; UNITS as usize];
    assert_eq!(steps::evict(&model, run, &mut Vec::new(), &mut places), Ok(Some((4, 2))));
    assert!(model.guest_writes(2, 9), "a page that was refused is let go");
    assert!(!model.guest_writes(1, 9), "a page that left is not there");
}

#[test]
fn a_page_that_is_lost_is_poisoned() {
    let model = Model::new(Tiers::Store, None, 0, 0);
    do_it(&model, Deed::Write(0, 5)).unwrap();
    do_it(&model, Deed::Evict(0, 1)).unwrap();
    model.store.borrow_mut().clear();
    assert_eq!(steps::bring_in(&model, 0, &mut 0), Ok(Answered::Lost));
    assert!(model.units.borrow()[0].poisoned);
}
