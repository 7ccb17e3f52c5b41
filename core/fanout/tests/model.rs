//! The device against an array of bytes, with random requests, moves and faults.

mod support;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use spillway_block::Device;
use spillway_fanout::{Error, FanOut, SlabLocation, Standing};
use support::{Fault, Host, PAGES_PER_SLAB, SLAB_BYTES, device, host, place};

const SLABS: u32 = 3;
const HOSTS: usize = 4;
const BYTES: u64 = SLABS as u64 * SLAB_BYTES;
/// Requests go to the first pages of each slab, so that they meet.
const PAGES: u64 = 6;
const LONG: Duration = Duration::from_secs(30);

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
        1 => (0..HOSTS).prop_map(Step::Mend),
    ]
}

struct World {
    device: FanOut,
    hosts: Vec<Host>,
    model: Vec<u8>,
    /// Pages of which a write failed: reading one may fail.
    doubtful: Vec<bool>,
    /// Whoever was ever at fault.
    broken: Vec<bool>,
    /// A copy was given up on purpose after somebody was at fault.
    thin: bool,
}

impl World {
    fn new() -> Self {
        let hosts: Vec<_> = (0..HOSTS as u64).map(host).collect();
        let slabs = (0..SLABS)
            .map(|slab| {
                let first = slab as usize % HOSTS;
                [place(&hosts[first], slab), place(&hosts[(first + 1) % HOSTS], slab)]
            })
            .collect();
        Self {
            device: device(slabs, LONG),
            hosts,
            model: vec![0; BYTES as usize],
            doubtful: vec![false; (BYTES / 4096) as usize],
            broken: vec![false; HOSTS],
            thin: false,
        }
    }

    /// Whether every slab has had a sound copy all the time.
    fn is_safe(&self) -> bool {
        !self.thin && self.broken.iter().filter(|broken| **broken).count() <= 1
    }

    fn pages(at: u64, bytes: u64) -> std::ops::Range<usize> {
        (at / 4096) as usize..(at + bytes).div_ceil(4096) as usize
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
        match *step {
            Step::Write(at, bytes, value) => {
                let done = self.device.write(at, &vec![value; bytes as usize]).is_ok();
                prop_assert!(done || !self.is_safe() || self.is_doubtful(at, bytes), "write");
                self.changed(at, bytes, value, done);
            }
            Step::Zero(at, bytes) => {
                let done = self.device.write_zeroes(at, bytes).is_ok();
                prop_assert!(done || !self.is_safe() || self.is_doubtful(at, bytes), "zero");
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
                self.thin |= self.broken.contains(&true);
                self.replenish(host);
            }
            Step::Break(host, fault) => {
                self.hosts[host].fake.set(fault);
                self.broken[host] = true;
            }
            Step::Mend(host) => self.hosts[host].fake.set(Fault::None),
        }
        Ok(())
    }

    fn is_doubtful(&self, at: u64, bytes: u64) -> bool {
        self.doubtful[Self::pages(at, bytes)].contains(&true)
    }

    /// Never wrong bytes; and none missing as long as one copy was sound all the time.
    fn check(&self, at: u64, bytes: u64) -> Result<(), TestCaseError> {
        for page in Self::pages(at, bytes) {
            let start = at.max(page as u64 * 4096);
            let end = (at + bytes).min((page as u64 + 1) * 4096);
            let mut read = vec![0; (end - start) as usize];
            match self.device.read(start, &mut read) {
                Ok(()) if self.doubtful[page] => {}
                Ok(()) => {
                    prop_assert!(read == self.model[start as usize..end as usize], "page {page}");
                }
                Err(_) => prop_assert!(!self.is_safe() || self.doubtful[page], "page {page} lost"),
            }
        }
        Ok(())
    }

    fn move_slab(&self, slab: u32, copy: usize, to: usize) -> Result<(), TestCaseError> {
        let there = SlabLocation { holder: self.hosts[to].holder.clone(), slab };
        let done = self.device.place(slab, copy, there);
        let sound = self.is_safe() && !self.broken[to];
        match done {
            Ok(()) | Err(Error::SamePlace(_)) => {}
            Err(error) => prop_assert!(!sound, "{error}"),
        }
        Ok(())
    }

    /// Gives each slab a second copy again, but not with `host`.
    fn replenish(&self, host: usize) {
        for slab in 0..SLABS {
            let places = self.device.places(slab).unwrap();
            let Some(copy) = places.iter().position(Option::is_none) else { continue };
            for to in (0..HOSTS).filter(|to| *to != host) {
                let there = SlabLocation { holder: self.hosts[to].holder.clone(), slab };
                if self.device.place(slab, copy, there).is_ok() {
                    break;
                }
            }
        }
    }

    /// Nothing reaches a host that was forgotten, as long as nothing is placed there again.
    fn forget(&mut self, host: usize) {
        let holder = &self.hosts[host].holder;
        let elsewhere = |its: &Standing| !its.is_lost && !Arc::ptr_eq(&its.place.holder, holder);
        let stays = |slab| self.device.places(slab).unwrap().iter().flatten().any(elsewhere);
        // With the last copy of a slab its pages go.
        self.thin |= !(0..SLABS).all(stays);
        self.device.forget(holder);
        let fake = self.hosts[host].fake.clone();
        fake.fenced.store(true, std::sync::atomic::Ordering::SeqCst);
        for slab in 0..u64::from(SLABS) {
            let at = slab * SLAB_BYTES;
            let _ = self.device.write(at + 4096 * (PAGES_PER_SLAB - 1), &[1; 4096]);
            let _ = self.device.read(at + 4096 * (PAGES_PER_SLAB - 1), &mut [0; 4096]);
        }
        assert!(!fake.touched_behind_fence.load(std::sync::atomic::Ordering::SeqCst));
        fake.fenced.store(false, std::sync::atomic::Ordering::SeqCst);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_device_is_an_array_of_bytes(steps in proptest::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step)?;
        }
        for slab in 0..u64::from(SLABS) {
            world.check(slab * SLAB_BYTES, (PAGES + 3) * 4096)?;
        }
    }
}
