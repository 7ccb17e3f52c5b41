//! Kills the daemon at any step that changes a file, while guests grow and shrink. Compares the pool with a model of
//! QEMU and its guest, over random orders.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::{pread, pwrite};

use crate::{GuestFile, Pool, Settings};

thread_local! {
    /// Steps left before the daemon is killed.
    static STEPS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The panic value that stands for a kill.
struct Killed;

/// Call it before each step that changes a file.
pub fn step() {
    match STEPS.get() {
        None => {}
        Some(0) => panic::resume_unwind(Box::new(Killed)),
        Some(left) => STEPS.set(Some(left - 1)),
    }
}

const SECTION: u64 = 4 << 20;
const CAPACITY: u64 = 8;
const BOUND: u64 = 12;
const GUEST: &str = "vm";
/// More steps than any single operation of the pool takes.
const STEPS_MAX: u64 = 24;

/// An order, and the number of steps after which the daemon is killed.
#[derive(Clone, Copy, Debug)]
struct Order {
    what: What,
    killed_after: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The guest plugs some of the reserved memory, lowest first, before it is brought to rest.
    Grow { sections: u64, plugs: u64 },
    /// It unplugs some sections, from this index among those that it has.
    Shrink { sections: usize, from: usize },
    /// Makes this much ready.
    Ready { sections: u64 },
}

struct World {
    settings: Settings,
    path: PathBuf,
    pool: Option<Pool>,
    plugged: BTreeSet<u64>,
    kills: u64,
}

impl World {
    fn new(name: &str) -> Self {
        let dir = PathBuf::from(format!("/dev/shm/spillway-crash-{name}-{}", std::process::id()));
        let settings = Settings {
            dir,
            capacity_bytes: CAPACITY * SECTION,
            section_bytes: SECTION,
            group: None,
        };
        let pool = Pool::open(&settings).unwrap();
        let path = pool.create(GUEST, GuestFile::Device(1), BOUND * SECTION).unwrap();
        Self { settings, path, pool: Some(pool), plugged: BTreeSet::new(), kills: 0 }
    }

    fn size(&self) -> u64 {
        self.plugged.len() as u64 * SECTION
    }

    /// Runs an operation of the daemon. If it is killed meanwhile, only the file's state remains.
    fn daemon<T>(&mut self, killed_after: u64, act: impl FnOnce(&Pool) -> T) -> Option<T> {
        let pool = self.pool.take().unwrap();
        STEPS.set(Some(killed_after));
        let done = panic::catch_unwind(AssertUnwindSafe(|| act(&pool)));
        STEPS.set(None);
        match done {
            Ok(done) => {
                self.pool = Some(pool);
                Some(done)
            }
            Err(why) => {
                assert!(why.is::<Killed>(), "{:?}", why.downcast_ref::<String>());
                self.kills += 1;
                drop(pool);
                self.pool = Some(Pool::open(&self.settings).unwrap());
                None
            }
        }
    }

    /// The guest rests: the daemon settles, and settles again if it was killed meanwhile.
    fn rest(&mut self, killed_after: u64) {
        let size = self.size();
        let settle = |pool: &Pool| pool.settle_device(GUEST, 1, size).unwrap().set_aside_bytes;
        let set_aside = self.daemon(killed_after, settle);
        let set_aside = set_aside.or_else(|| self.daemon(u64::MAX, settle));
        assert_eq!(set_aside, Some(size), "set aside for nobody");
        self.check();
    }

    fn take(&mut self, order: Order) {
        let Order { what, killed_after } = order;
        match what {
            What::Grow { sections, plugs } => {
                let reserve = |pool: &Pool| pool.reserve(GUEST, 1, sections * SECTION).is_ok();
                // Otherwise the guest is not asked to grow.
                if self.daemon(killed_after, reserve) == Some(true) {
                    self.plug(plugs.min(sections));
                }
                self.check();
            }
            What::Shrink { sections, from } => {
                let going: Vec<_> =
                    self.plugged.iter().copied().skip(from).take(sections).collect();
                for section in going {
                    self.punch(section);
                    self.plugged.remove(&section);
                }
                self.check();
            }
            What::Ready { sections } => {
                let size = self.size();
                let keep = |pool: &Pool| {
                    while pool.keep_ready(GUEST, 1, size, sections * SECTION).unwrap() {}
                };
                // After a kill, this memory stays reserved until the guest rests.
                let _ = self.daemon(killed_after, keep);
                self.check();
            }
        }
        self.rest(killed_after / 2);
    }

    /// Plugs the lowest blocks that the guest lacks, like Linux.
    fn plug(&mut self, sections: u64) {
        for _ in 0..sections {
            let lowest = (0..BOUND).find(|section| !self.plugged.contains(section)).unwrap();
            // QEMU touches all of it.
            let file = open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let written = vec![lowest as u8 + 1; SECTION as usize];
            assert_eq!(pwrite(&file, &written, lowest * SECTION).unwrap(), written.len());
            self.plugged.insert(lowest);
            self.check();
        }
    }

    /// Punches an unplugged section, like QEMU.
    fn punch(&self, section: u64) {
        let file = open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, mode, section * SECTION, SECTION).unwrap();
    }

    /// Checks that the file holds no more than is counted, that no more is counted than the capacity, and that the
    /// guest keeps its memory.
    fn check(&self) {
        let usage = self.pool.as_ref().unwrap().usage();
        let device = usage.guests[GUEST].devices[&1];
        let file = open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let held = rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
        let counted = device.set_aside_bytes + device.ready_bytes;
        assert!(held <= counted, "{held} bytes are allocated, {counted} count");
        assert!(counted <= usage.capacity_bytes && self.size() <= device.set_aside_bytes);
        for &section in &self.plugged {
            let intact = |at| {
                let mut byte = [0];
                pread(&file, &mut byte, section * SECTION + at).unwrap();
                byte == [section as u8 + 1]
            };
            let places = [0, SECTION / 2 - 1, SECTION / 2, SECTION - 1];
            assert!(places.into_iter().all(intact), "section {section} has lost memory");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.settings.dir);
    }
}

fn orders() -> impl Strategy<Value = Vec<Order>> {
    let what = prop_oneof![
        4 => (1..6u64, 0..6u64).prop_map(|(sections, plugs)| What::Grow { sections, plugs }),
        3 => (1..4usize, 0..4usize).prop_map(|(sections, from)| What::Shrink { sections, from }),
        1 => (0..4u64).prop_map(|sections| What::Ready { sections }),
    ];
    // Most orders complete.
    let killed_after = prop_oneof![0..STEPS_MAX, STEPS_MAX..3 * STEPS_MAX];
    let order = (what, killed_after).prop_map(|(what, killed_after)| Order { what, killed_after });
    prop::collection::vec(order, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whenever_it_is_killed_pool_and_guest_agree(orders in orders()) {
        let mut world = World::new("any");
        for order in orders {
            world.take(order);
        }
    }
}

#[test]
fn a_reservation_that_is_killed_at_any_step_leaves_nothing_where_no_guest_plugs() {
    let whole = |what| Order { what, killed_after: u64::MAX };
    let mut kills = 0;
    for killed_after in 0..10 {
        let mut world = World::new("each");
        world.take(whole(What::Grow { sections: 4, plugs: 4 }));
        world.take(Order { what: What::Grow { sections: 3, plugs: 1 }, killed_after });
        // Below the earlier reservation, so that the guest plugs there next.
        for _ in 0..3 {
            world.take(whole(What::Shrink { sections: 1, from: 1 }));
            world.take(whole(What::Grow { sections: 2, plugs: 2 }));
            world.take(whole(What::Shrink { sections: 1, from: 4 }));
        }
        kills += world.kills;
    }
    assert!(kills > 6, "killed at each of the six units, and as the guest rests: {kills}");
}
