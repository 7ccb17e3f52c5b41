//! The device against an array of bytes, with random requests, moves and faults.
//!
//! A page may be missing only if each copy of its slab in use lies with a host that is at fault at that time, or if a
//! change of this very page failed. So a copy that stays in use without a page that was acknowledged shows.
//!
//! The device either gives up a copy whose holder does not answer at once, or keeps it and brings it up to date. Then a
//! copy that is behind does not have a page, and no copy is behind for long whose holder and whose other copy's are sound.

mod support;

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use spillway_block::Device;
use spillway_fanout::{Error, FanOut, Settings, SlabLocation, Standing};
use spillway_test_support::wait;
use support::{Fault, Host, PAGES_PER_SLAB, SLAB_BYTES, host, place, settings};

const SLABS: u32 = 3;
const HOSTS: usize = 4;
const BYTES: u64 = SLABS as u64 * SLAB_BYTES;
/// Requests go to the first pages of each slab, so that they meet.
const PAGES: u64 = 6;
const LONG: Duration = Duration::from_secs(30);
/// Most changes of each kind in a race.
const TURNS: u8 = 40;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Read(u64, u64),
    Discard(u64, u64),
    Zero(u64, u64),
    Move(u32, usize, usize),
    Forget(usize),
    Break(usize, Fault),
    Mend(usize),
    Race(Race),
}

/// A range of bytes near the start of a slab.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let page = 0..PAGES;
    let bytes = prop_oneof![Just(4096_u64), Just(8192), 1..10_000_u64];
    let start = prop_oneof![Just(0_u64), 0..4096_u64];
    (0..u64::from(SLABS), page, start, bytes).prop_map(|(slab, page, start, bytes)| {
        let offset = slab * SLAB_BYTES + page * 4096 + start;
        (offset, bytes.min(BYTES - offset))
    })
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::LostAnswers),
        Just(Fault::Dead),
        Just(Fault::Forging),
        Just(Fault::Replaying),
        Just(Fault::MixingUp),
        Just(Fault::Emptied),
        Just(Fault::Full),
    ]
}

/// Pages near the start of a slab.
fn some_pages() -> impl Strategy<Value = Range<u64>> {
    (0..PAGES, 1..4_u64).prop_map(|(first, count)| first..first + count)
}

fn race() -> impl Strategy<Value = Race> {
    let moves = proptest::option::of((0..2_usize, 0..HOSTS));
    (0..SLABS, some_pages(), 1..=255_u8, some_pages(), moves).prop_map(
        |(slab, write, value, discard, moves)| Race { slab, write, value, discard, moves },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), 1..=255_u8).prop_map(|((at, bytes), value)| Step::Write(at, bytes, value)),
        6 => range().prop_map(|(at, bytes)| Step::Read(at, bytes)),
        1 => range().prop_map(|(at, bytes)| Step::Discard(at, bytes)),
        1 => range().prop_map(|(at, bytes)| Step::Zero(at, bytes)),
        2 => (0..SLABS, 0..2_usize, 0..HOSTS)
            .prop_map(|(slab, copy, host)| Step::Move(slab, copy, host)),
        1 => (0..HOSTS).prop_map(Step::Forget),
        1 => (0..HOSTS, fault()).prop_map(|(host, fault)| Step::Break(host, fault)),
        2 => (0..HOSTS).prop_map(Step::Mend),
        2 => race().prop_map(Step::Race),
    ]
}

/// A race: a write, a discard and perhaps a move at the same time. Ranges are of pages.
#[derive(Clone, Debug)]
struct Race {
    slab: u32,
    write: Range<u64>,
    value: u8,
    discard: Range<u64>,
    /// The copy that moves, and the host that it moves to.
    moves: Option<(usize, usize)>,
}

struct World {
    device: FanOut,
    hosts: Vec<Host>,
    model: Vec<u8>,
    /// Pages of which a write failed, or whose copies were all gone or wrong once: reading one may fail.
    doubtful: Vec<bool>,
    /// Whoever was ever at fault.
    broken: Vec<bool>,
    /// The next unused slab of each host: none is used twice.
    next_slab: [u32; HOSTS],
}

impl World {
    /// All pages are written.
    fn new(stall_max: Duration) -> Self {
        let hosts: Vec<_> = (0..HOSTS as u64).map(host).collect();
        let slabs = (0..SLABS)
            .map(|slab| {
                let first = slab as usize % HOSTS;
                [place(&hosts[first], slab), place(&hosts[(first + 1) % HOSTS], slab)]
            })
            .collect();
        let settings = Settings { stall_max, ..settings(LONG) };
        let device = FanOut::open(settings, 1, slabs, |_| {}).unwrap();
        device.write(0, &vec![9; BYTES as usize]).unwrap();
        Self {
            device,
            hosts,
            model: vec![9; BYTES as usize],
            doubtful: vec![false; (BYTES / 4096) as usize],
            broken: vec![false; HOSTS],
            next_slab: [SLABS; HOSTS],
        }
    }

    fn pages(at: u64, bytes: u64) -> Range<usize> {
        (at / 4096) as usize..(at + bytes).div_ceil(4096) as usize
    }

    fn slabs_of(at: u64, bytes: u64) -> RangeInclusive<u32> {
        (at / SLAB_BYTES) as u32..=((at + bytes - 1) / SLAB_BYTES) as u32
    }

    fn pages_of(slab: u32) -> Range<usize> {
        let first = u64::from(slab) * PAGES_PER_SLAB;
        first as usize..(first + PAGES_PER_SLAB) as usize
    }

    fn number(&self, place: &SlabLocation) -> usize {
        let its = |host: &Host| Arc::ptr_eq(&host.holder, &place.holder);
        self.hosts.iter().position(its).unwrap()
    }

    /// The hosts of the copies in use of a slab.
    fn live(&self, slab: u32) -> Vec<usize> {
        self.copies(slab).into_iter().map(|(host, _)| host).collect()
    }

    /// The same, each with how many pages its copy has missed.
    fn copies(&self, slab: u32) -> Vec<(usize, u32)> {
        let places = self.device.places(slab).unwrap();
        let live = places.iter().flatten().filter(|it| !it.is_lost);
        live.map(|it| (self.number(&it.place), it.behind_pages)).collect()
    }

    /// Whether each slab has a copy in use, with all its pages, whose host is so.
    fn have(&self, mut slabs: RangeInclusive<u32>, is_so: impl Fn(Fault) -> bool) -> bool {
        let is_it =
            |(host, behind): &(usize, u32)| *behind == 0 && is_so(self.hosts[*host].fake.fault());
        slabs.all(|slab| self.copies(slab).iter().any(is_it))
    }

    /// Waits until the copies of slabs whose hosts are all sound have all pages.
    fn settle(&self) {
        for slab in 0..SLABS {
            let is_sound = |host: usize| self.hosts[host].fake.fault() == Fault::None;
            if self.live(slab).into_iter().all(is_sound) {
                let has_all = || self.copies(slab).iter().all(|(_, behind)| *behind == 0);
                wait::until("copies that are up to date", has_all);
            }
        }
    }

    /// After a change that failed: its pages may fail, or hold any mixture page by page.
    fn changed(&mut self, at: u64, bytes: u64, value: u8, done: bool) {
        if done {
            self.model[at as usize..(at + bytes) as usize].fill(value);
            for page in Self::pages(at, bytes) {
                let whole = at <= page as u64 * 4096 && (page as u64 + 1) * 4096 <= at + bytes;
                self.doubtful[page] &= !whole;
            }
        } else {
            self.doubtful[Self::pages(at, bytes)].fill(true);
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.settle();
        let before: Vec<_> = (0..SLABS).map(|slab| !self.live(slab).is_empty()).collect();
        match *step {
            Step::Write(at, bytes, value) => self.write(at, bytes, value)?,
            Step::Zero(at, bytes) => {
                let may_fail = !self.can_change(at, bytes, false);
                let done = self.device.write_zeroes(at, bytes).is_ok();
                prop_assert!(done || may_fail, "zero");
                self.changed(at, bytes, 0, done);
            }
            Step::Discard(at, bytes) => {
                self.device.deallocate(at, bytes).unwrap();
                let (first, end) = (at.div_ceil(4096), (at + bytes) / 4096);
                if first < end {
                    self.changed(first * 4096, (end - first) * 4096, 0, true);
                }
            }
            Step::Read(at, bytes) => self.check(at, bytes)?,
            Step::Move(slab, copy, to) => self.move_slab(slab, copy, to)?,
            Step::Forget(host) => {
                self.forget(host);
                self.replenish(host);
            }
            Step::Break(host, fault) => {
                self.hosts[host].fake.set(fault);
                self.broken[host] = true;
            }
            Step::Mend(host) => self.hosts[host].fake.set(Fault::None),
            Step::Race(ref race) => self.race(race)?,
        }
        self.check_copies(step, &before)
    }

    /// Whether a change must succeed. A part of a page is read first, from a host that may then be given up.
    fn can_change(&self, at: u64, bytes: u64, is_whole: bool) -> bool {
        let is_sound = |fault| match fault {
            Fault::None => true,
            Fault::Emptied | Fault::Forging | Fault::Replaying | Fault::MixingUp => is_whole,
            _ => false,
        };
        self.have(Self::slabs_of(at, bytes), is_sound) && !self.is_doubtful(at, bytes)
    }

    fn is_doubtful(&self, at: u64, bytes: u64) -> bool {
        self.doubtful[Self::pages(at, bytes)].contains(&true)
    }

    fn write(&mut self, at: u64, bytes: u64, value: u8) -> Result<(), TestCaseError> {
        let is_whole = at.is_multiple_of(4096) && bytes.is_multiple_of(4096);
        let may_fail = !self.can_change(at, bytes, is_whole);
        let done = self.device.write(at, &vec![value; bytes as usize]).is_ok();
        prop_assert!(done || may_fail, "write");
        self.changed(at, bytes, value, done);
        let is_deaf = |host: usize| {
            use Fault::{Dead, Full, LostAnswers};
            matches!(self.hosts[host].fake.fault(), Dead | Full | LostAnswers)
        };
        let in_use = Self::slabs_of(at, bytes).flat_map(|slab| self.copies(slab));
        let deaf = in_use.into_iter().find(|(host, behind)| done && *behind == 0 && is_deaf(*host));
        prop_assert!(deaf.is_none(), "a copy that did not take a write is in use: {deaf:?}");
        Ok(())
    }

    /// Never wrong bytes; and none missing as long as the host of a copy in use is sound.
    fn check(&self, at: u64, bytes: u64) -> Result<(), TestCaseError> {
        for page in Self::pages(at, bytes) {
            let start = at.max(page as u64 * 4096);
            let end = (at + bytes).min((page as u64 + 1) * 4096);
            let is_sound = |fault| matches!(fault, Fault::None | Fault::Full);
            let may_fail = !self.have(Self::slabs_of(start, 1), is_sound);
            let mut read = vec![0; (end - start) as usize];
            match self.device.read(start, &mut read) {
                Ok(()) if self.doubtful[page] => {}
                Ok(()) => {
                    prop_assert!(read == self.model[start as usize..end as usize], "page {page}");
                }
                Err(_) => prop_assert!(may_fail || self.doubtful[page], "page {page} lost"),
            }
        }
        Ok(())
    }

    /// A copy is given up only with a host that was at fault, and never the last one.
    fn check_copies(&self, step: &Step, before: &[bool]) -> Result<(), TestCaseError> {
        for slab in 0..SLABS {
            let places = self.device.places(slab).unwrap();
            for lost in places.iter().flatten().filter(|it| it.is_lost) {
                let host = self.number(&lost.place);
                prop_assert!(self.broken[host], "the copy of slab {slab} with {host} was given up");
            }
            let is_gone = before[slab as usize] && self.live(slab).is_empty();
            prop_assert!(!is_gone || matches!(step, Step::Forget(_)), "slab {slab} has no copy");
        }
        Ok(())
    }

    /// A place that was never used before.
    fn fresh(&mut self, host: usize) -> SlabLocation {
        let slab = self.next_slab[host];
        self.next_slab[host] += 1;
        SlabLocation { holder: self.hosts[host].holder.clone(), slab }
    }

    fn move_slab(&mut self, slab: u32, copy: usize, to: usize) -> Result<(), TestCaseError> {
        let is_there = self.live(slab).contains(&to);
        let has_source = self.have(slab..=slab, |fault| matches!(fault, Fault::None | Fault::Full));
        let is_sound = self.hosts[to].fake.fault() == Fault::None;
        // Pages that no host gives are left out, and are lost.
        if !has_source {
            self.doubtful[Self::pages_of(slab)].fill(true);
        }
        let there = self.fresh(to);
        match self.device.place(slab, copy, there) {
            Ok(()) => prop_assert!(!is_there, "two copies with {to}"),
            Err(Error::SamePlace(_)) => prop_assert!(is_there, "no copy is with {to}"),
            Err(error) => prop_assert!(!is_sound || !has_source, "{error}"),
        }
        Ok(())
    }

    /// Gives each slab a second copy again, but not with `host`.
    fn replenish(&mut self, host: usize) {
        for slab in 0..SLABS {
            let places = self.device.places(slab).unwrap();
            let lacks = |it: &Option<Standing>| it.as_ref().is_none_or(|it| it.is_lost);
            let Some(copy) = places.iter().position(lacks) else { continue };
            let sound = |fault| matches!(fault, Fault::None | Fault::Full);
            if !self.have(slab..=slab, sound) {
                self.doubtful[Self::pages_of(slab)].fill(true);
            }
            for to in (0..HOSTS).filter(|to| *to != host) {
                let there = self.fresh(to);
                if self.device.place(slab, copy, there).is_ok() {
                    break;
                }
            }
        }
    }

    /// Nothing reaches a host that was forgotten, as long as nothing is placed there again.
    fn forget(&mut self, host: usize) {
        for slab in 0..SLABS {
            let lacks = |&(other, behind): &(usize, u32)| other != host && behind != 0;
            if self.live(slab).contains(&host) && self.copies(slab).iter().any(lacks) {
                self.doubtful[Self::pages_of(slab)].fill(true);
            }
        }
        let holder = self.hosts[host].holder.clone();
        self.device.forget(&holder);
        for slab in 0..SLABS {
            // With the last copy of a slab its pages go.
            if self.live(slab).is_empty() {
                self.doubtful[Self::pages_of(slab)].fill(true);
            }
        }
        let fake = self.hosts[host].fake.clone();
        fake.fenced.store(true, SeqCst);
        for slab in 0..u64::from(SLABS) {
            let at = slab * SLAB_BYTES;
            let _ = self.device.write(at + 4096 * (PAGES_PER_SLAB - 1), &[1; 4096]);
            let _ = self.device.read(at + 4096 * (PAGES_PER_SLAB - 1), &mut [0; 4096]);
        }
        assert!(!fake.touched_behind_fence.load(SeqCst));
        fake.fenced.store(false, SeqCst);
    }

    /// Pages that are written, read and discarded at the same time are as one of the last changes has them, and stay so.
    fn race(&mut self, race: &Race) -> Result<(), TestCaseError> {
        let Race { slab, ref write, value, ref discard, moves } = *race;
        let start = |pages: &Range<u64>| u64::from(slab) * SLAB_BYTES + pages.start * 4096;
        let bytes = |pages: &Range<u64>| (pages.end - pages.start) * 4096;
        let is_sound = |fault| fault == Fault::None;
        let moves_well = moves.is_none_or(|(_, to)| is_sound(self.hosts[to].fake.fault()));
        let was_doubtful = self.is_doubtful(start(discard), bytes(discard));
        let is_safe = moves_well && self.have(slab..=slab, is_sound);
        let moves = moves.map(|(copy, to)| (copy, self.fresh(to)));
        let (device, is_over) = (&self.device, &AtomicBool::new(false));
        let turns = |turn: &u8| *turn < 8 || !is_over.load(SeqCst);
        let (written, read) = thread::scope(|scope| {
            let writes = scope.spawn(move || {
                let content = |turn: u8| vec![value ^ turn; bytes(write) as usize];
                // Each turn also writes a page that no other does, so that no later write hides what became of it.
                let done = |turn: u8| {
                    device.write(start(&trail(turn)), &[value; 4096]).is_ok()
                        && device.write(start(write), &content(turn)).is_ok()
                };
                (0..TURNS).take_while(turns).map(|turn| (turn, done(turn))).collect::<Vec<_>>()
            });
            let reads = scope.spawn(move || {
                let mut room = vec![0; bytes(discard) as usize];
                (0..TURNS).take_while(turns).all(|_| device.read(start(discard), &mut room).is_ok())
            });
            scope.spawn(move || {
                for _ in (0..TURNS).take_while(turns) {
                    device.deallocate(start(discard), bytes(discard)).unwrap();
                }
            });
            if let Some((copy, there)) = moves {
                let _ = device.place(slab, copy, there);
            }
            is_over.store(true, SeqCst);
            (writes.join().unwrap(), reads.join().unwrap())
        });
        let done = written.iter().all(|(_, done)| *done);
        prop_assert!(done || !is_safe, "write in a race");
        // A host that was at fault and has not been asked since is left out, and its copy given up for the other one.
        let is_safe = is_safe && self.have(slab..=slab, is_sound);
        prop_assert!(read || !is_safe || was_doubtful, "read in a race");
        for (turn, done) in &written {
            let at = start(&trail(*turn));
            self.changed(at, 4096, value, *done);
            // A move leaves out a page that its only host does not give, though it was just written.
            self.doubtful[(at / 4096) as usize] |= !is_safe;
            self.check(at, 4096)?;
        }
        let last = written.last().map_or(value, |(turn, _)| value ^ turn);
        if !is_safe {
            self.doubtful[Self::pages_of(slab)].fill(true);
        }
        self.changed(start(discard), bytes(discard), 0, true);
        for page in write.clone() {
            let at = u64::from(slab) * SLAB_BYTES + page * 4096;
            let mut room = [0; 4096];
            let result = self.device.read(at, &mut room);
            if result.is_ok() && room == [0; 4096] && discard.contains(&page) {
                self.changed(at, 4096, 0, true);
            } else if result.is_ok() && done {
                prop_assert!(room == [last; 4096], "page {page} after a race");
                self.changed(at, 4096, last, true);
            } else {
                prop_assert!(!is_safe, "page {page} lost in a race");
                self.changed(at, 4096, 0, false);
            }
        }
        Ok(())
    }
}

/// The page that a turn of a race writes alone.
const fn trail(turn: u8) -> Range<u64> {
    let page = PAGES + 10 + turn as u64;
    page..page + 1
}

fn run(steps: &[Step], stall_max: Duration) -> Result<(), TestCaseError> {
    let mut world = World::new(stall_max);
    for step in steps {
        world.run(step)?;
    }
    for slab in 0..u64::from(SLABS) {
        world.check(slab * SLAB_BYTES, (PAGES + 3) * 4096)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_device_is_an_array_of_bytes(steps in proptest::collection::vec(step(), 1..80)) {
        run(&steps, Duration::ZERO)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn copies_whose_holders_stall_are_brought_up_to_date(steps in proptest::collection::vec(step(), 1..80)) {
        run(&steps, LONG)?;
    }
}
