//! The tiers of a guest: the store, a blade for refused pages, when a page is safe, and remains of killed managers.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillway_guest_memory::{Blade, Far, Map, Mark, PageLocation, Run};
use spillway_store::{ClientConfig, Config, Key, PoolId, PoolSpec, Store};
use spillway_test_support::pages::incompressible;
use spillway_tiers::PageBuf;
use spillway_tiers::blade::{Carried, Carrier, Parcel, Seal, Wanted};
use spillway_types::PAGE_BYTES;

/// A blade in this process.
#[derive(Debug, Default)]
struct Memory {
    values: Mutex<HashMap<Key, Vec<u8>>>,
    down: AtomicBool,
    refuses: AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct Way(Arc<Memory>);

impl Way {
    fn kept(&self) -> usize {
        self.0.values.lock().unwrap().len()
    }
}

impl Carrier for Way {
    fn put(&self, parcels: &[Parcel<'_>], outcomes: &mut [Carried]) {
        for (parcel, outcome) in parcels.iter().zip(outcomes) {
            *outcome = if self.is_down() {
                Carried::Lost
            } else if self.0.refuses.load(Ordering::Relaxed) {
                Carried::Refused
            } else {
                let mut values = self.0.values.lock().unwrap();
                let before = values.insert(parcel.key, parcel.value.to_vec());
                assert!(before.is_none(), "a key was used twice");
                Carried::Done
            };
        }
    }

    fn get(&self, wanted: &mut [Wanted<'_>], _: bool) {
        for wanted in wanted {
            wanted.outcome = match self.0.values.lock().unwrap().get(&wanted.key) {
                _ if self.is_down() => Carried::Lost,
                Some(value) if value.len() == wanted.room.len() => {
                    wanted.room.copy_from_slice(value);
                    Carried::Done
                }
                _ => Carried::Missing,
            };
        }
    }

    fn flush(&self, keys: &[Key]) -> Carried {
        keys.iter().for_each(|key| {
            self.0.values.lock().unwrap().remove(key);
        });
        Carried::Done
    }

    fn flush_object(&self, _: u64) -> bool {
        true
    }

    fn end_run(&self) -> bool {
        true
    }

    fn is_down(&self) -> bool {
        self.0.down.load(Ordering::Relaxed)
    }

    fn down_ns(&self) -> u64 {
        0
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn tend(&self) {}

    fn forget_connections(&self) {}

    fn descriptors(&self) -> Vec<u64> {
        Vec::new()
    }

    fn reopen(&self, _: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        Ok(())
    }
}

const UNITS: u64 = 64;

fn store(bytes: u64) -> (Store, PoolId) {
    let store = Store::open(Config::embedded(bytes)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    (store, pool)
}

fn blade(ways: &[&Way]) -> Blade {
    let carrier = |way: &&Way| Box::new(Way::clone(way)) as Box<dyn Carrier>;
    Blade::new(Seal::encrypted(&[7; 32]), ways.iter().map(carrier).collect())
}

/// The content of a page. Every second page can't be compressed.
fn page(unit: u64) -> PageBuf {
    let mut page = PageBuf([unit as u8; PAGE_BYTES]);
    if unit.is_multiple_of(2) {
        page = PageBuf(incompressible(unit));
    }
    page.0[1] = 1;
    page
}

fn put_all(far: &Far, map: &Map) -> Vec<PageLocation> {
    let run = Run { first: 0, count: UNITS };
    let pages: Vec<PageBuf> = run.units().map(page).collect();
    let mut places = vec![PageLocation::Near; UNITS as usize];
    far.put(map, run, &pages, &mut places);
    run.units().zip(&places).for_each(|(unit, &place)| map.set_place(unit, place));
    places
}

fn comes_back(far: &Far, map: &Map, unit: u64) -> bool {
    let mut found = PageBuf::ZERO;
    far.fetch(unit, map.place(unit), &mut found.0) && found.0 == page(unit).0
}

#[test]
fn pages_go_to_the_store_and_what_it_refuses_to_the_blade() {
    let map = Map::new(UNITS).unwrap();
    let way = Way::default();
    let far = Far::new(Some(store(1 << 20)), Some(blade(&[&way])));
    let places = put_all(&far, &map);
    assert!(places.iter().all(|place| place.is_far()));
    // A store that is almost full.
    let (small, pool) = store(1 << 20);
    for number in 0_u32.. {
        let mut other = page(u64::from(number) * 2 + 1000);
        other.0[0] = 3;
        if small.put(pool, Key::new(9, number), &other.0) != spillway_store::Put::Stored {
            break;
        }
    }
    let map = Map::new(UNITS).unwrap();
    let far = Far::new(Some((small, pool)), Some(blade(&[&way])));
    let places = put_all(&far, &map);
    assert!(places.iter().any(|place| matches!(place, PageLocation::Blade { .. })));
    assert!((0..UNITS).all(|unit| comes_back(&far, &map, unit)));
    let packed = |unit: u64| match places[unit as usize] {
        PageLocation::Blade { length, .. } => usize::from(length) < PAGE_BYTES,
        _ => unit % 2 == 1,
    };
    assert!((0..UNITS).all(|unit| packed(unit) == (unit % 2 == 1)));
    // Without store and blade, all pages stay near.
    assert!(put_all(&Far::default(), &map).iter().all(|place| *place == PageLocation::Near));
}

#[test]
fn a_page_is_safe_on_both_or_on_one_while_the_other_is_down() {
    let (first, mirror) = (Way::default(), Way::default());
    let map = Map::new(UNITS).unwrap();
    let far = Far::new(None, Some(blade(&[&first, &mirror])));
    assert!(put_all(&far, &map).iter().all(|place| place.is_far()));
    assert_eq!((first.kept(), mirror.kept()), (UNITS as usize, UNITS as usize));
    first.0.down.store(true, Ordering::Relaxed);
    assert!(!far.is_down());
    assert!((0..UNITS).all(|unit| comes_back(&far, &map, unit)), "from the mirror");
    assert!(put_all(&far, &map).iter().all(|place| place.is_far()));
    mirror.0.refuses.store(true, Ordering::Relaxed);
    assert!(
        put_all(&far, &map).iter().all(|place| *place == PageLocation::Near),
        "nobody has them"
    );
    first.0.down.store(false, Ordering::Relaxed);
    assert!(
        put_all(&far, &map).iter().all(|place| *place == PageLocation::Near),
        "one has them alone"
    );
    mirror.0.down.store(true, Ordering::Relaxed);
    first.0.down.store(true, Ordering::Relaxed);
    assert!(far.is_down());
}

#[test]
fn a_page_that_only_a_silent_blade_has_is_waited_for() {
    let (first, mirror) = (Way::default(), Way::default());
    let map = Map::new(UNITS).unwrap();
    let patient = blade(&[&first, &mirror]).with_loss_timeout(Duration::from_secs(20));
    let far = Far::new(None, Some(patient));
    put_all(&far, &map);
    let down = |way: &Way, down| way.0.down.store(down, Ordering::Relaxed);
    down(&first, true);
    down(&mirror, true);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| (0..UNITS).all(|unit| comes_back(&far, &map, unit)));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!reading.is_finished());
        down(&first, false);
        assert!(reading.join().unwrap());
    });
}

#[test]
fn a_damaged_page_is_taken_from_the_mirror_or_not_at_all() {
    let (first, mirror) = (Way::default(), Way::default());
    let map = Map::new(UNITS).unwrap();
    let far = Far::new(None, Some(blade(&[&first, &mirror])));
    put_all(&far, &map);
    let damage = |way: &Way| {
        way.0.values.lock().unwrap().values_mut().for_each(|value| value[3] ^= 1);
    };
    damage(&first);
    assert!((0..UNITS).all(|unit| comes_back(&far, &map, unit)));
    damage(&mirror);
    let mut found = PageBuf::ZERO;
    assert!(!far.fetch(0, map.place(0), &mut found.0));
}

#[test]
fn what_a_killed_manager_left_is_forgotten_and_nothing_else() {
    let way = Way::default();
    let map = Map::new(UNITS).unwrap();
    let (shelf, pool) = store(8 << 20);
    let far = Far::new(Some((shelf, pool)), None);
    put_all(&far, &map);
    for unit in (0..UNITS).step_by(4) {
        map.set_place(unit, PageLocation::Near);
    }
    far.forget_strays(&map);
    for unit in 0..UNITS {
        let named = map.place(unit) == PageLocation::Store;
        assert_eq!(comes_back(&far, &map, unit), named);
        assert_eq!(far.fetch(unit, PageLocation::Store, &mut [0; PAGE_BYTES]), named, "{unit}");
    }

    let map = Map::new(UNITS).unwrap();
    let far = Far::new(None, Some(blade(&[&way])));
    put_all(&far, &map);
    // The last batch is the second half. Of it, only the pages that the map names stay.
    assert_eq!(map.mark(Mark::PendingHandle), UNITS / 2);
    for unit in UNITS - 8..UNITS {
        map.set_place(unit, PageLocation::Near);
    }
    far.forget_strays(&map);
    far.tend();
    assert_eq!(way.kept() as u64, UNITS - 8);
    assert!((0..UNITS - 8).all(|unit| comes_back(&far, &map, unit)));
    far.forget(0, map.place(0));
    assert_eq!(way.kept() as u64, UNITS - 8, "later");
    far.tend();
    assert_eq!(way.kept() as u64, UNITS - 9);
}
