//! Values that arrive and leave in parts: what they hold, whom they are billed to, and what is left of them.

use std::sync::Arc;

use spillway_store::{
    Begun, ClientConfig, ClientId, Config, Found, Get, Key, LongGet, LongPut, PAGE_BYTES, PageBuf,
    PoolId, PoolSpec, Put, Refusal, Store, VALUE_BYTES_MAX,
};

const KEY: Key = Key::new(7, 1);
const OTHER: Key = Key::new(7, 2);
const MIB: usize = 1 << 20;
const PAGES_OF_MIB: u64 = (MIB / PAGE_BYTES) as u64;

struct World {
    store: Arc<Store>,
    client: ClientId,
    pool: PoolId,
}

impl World {
    fn new(capacity_bytes: u64, target_pages: u64) -> Self {
        let store = Arc::new(Store::open(Config::embedded(capacity_bytes)).unwrap());
        let config = ClientConfig { target_pages, ..ClientConfig::default() };
        let client = store.add_client(config).unwrap();
        let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
        Self { store, client, pool }
    }

    fn begin(&self, key: Key, length: usize) -> LongPut {
        match self.store.begin_put(self.pool, key, length) {
            Begun::Put(put) => put,
            other => panic!("{other:?}"),
        }
    }

    fn put(&self, key: Key, value: &[u8]) -> Put {
        let mut put = self.begin(key, value.len());
        value.chunks(128 << 10).for_each(|part| put.push(part));
        put.publish()
    }

    fn get(&self, key: Key) -> Option<Vec<u8>> {
        let mut value = vec![0; VALUE_BYTES_MAX];
        match self.store.get(self.pool, key, &mut value).unwrap() {
            Get::Hit(length) => {
                value.truncate(length);
                Some(value)
            }
            _ => None,
        }
    }

    fn long_get(&self, key: Key) -> LongGet {
        let (room, mut scratch) = ((VALUE_BYTES_MAX, PAGE_BYTES), PageBuf::ZERO);
        let found = self.store.get_long(self.pool, key, room, &mut scratch, |_, _| {});
        match found.unwrap() {
            Found::Long(get) => get,
            Found::Other(got) => panic!("{got:?}"),
        }
    }

    fn used_pages(&self) -> u64 {
        self.store.statistics(self.client).unwrap().used_pages
    }

    fn in_flight_bytes(&self) -> u64 {
        let its = self.store.in_flight_bytes_of(self.client).unwrap();
        assert_eq!(its, self.store.in_flight_bytes(), "there is one client");
        its
    }

    /// Has the index and what is known about frames grow to what the test takes.
    fn warmed(self) -> Self {
        let put = (0..8).map(|n| self.put(Key::new(n, 0), &value(MIB + 100, 1)));
        assert!(put.fold(true, |all, put| all & (put == Put::Stored)));
        (0..8).for_each(|n| {
            self.store.flush_object(self.pool, n);
        });
        self
    }

    /// Bytes of frames and cells that hold something, with the index.
    fn held_bytes(&self) -> u64 {
        self.store.memory_bytes() - self.store.free_frame_bytes()
    }
}

fn value(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 253) as u8 ^ seed).collect()
}

#[test]
fn parts_of_any_length_make_the_value() {
    let world = World::new(64 << 20, u64::MAX);
    for length in [4097, 8192, 8191, 100_000, 3 * MIB + 5, VALUE_BYTES_MAX] {
        for part in [1000, 4096, 5000, 131_072] {
            let value = value(length, part as u8);
            let mut put = world.begin(KEY, length);
            value.chunks(part).for_each(|part| put.push(part));
            assert_eq!(put.publish(), Put::Stored, "{length} in parts of {part}");
            assert!(world.get(KEY).unwrap() == value, "{length} in parts of {part}");
            let mut get = world.long_get(KEY);
            assert_eq!((get.length(), get.left()), (length, length));
            let (mut read, mut room) = (Vec::new(), vec![0; part]);
            while get.left() != 0 {
                let given = get.pull(&mut room);
                read.extend_from_slice(&room[..given]);
            }
            assert!(read == value, "{length} read in parts of {part}");
            assert_eq!(get.pull(&mut room), 0);
        }
    }
}

/// Has up to `bytes` of `part` come to where they are to lie; what is left of it.
fn fill<'a>(put: &mut LongPut, part: &'a [u8], bytes: usize) -> &'a [u8] {
    let mut filled = 0;
    for room in put.room() {
        let now = room.len().min(bytes.min(part.len()) - filled);
        room[..now].copy_from_slice(&part[filled..][..now]);
        filled += now;
    }
    put.filled(filled);
    &part[filled..]
}

#[test]
fn parts_that_come_to_where_they_lie_make_the_value() {
    let world = World::new(64 << 20, u64::MAX);
    for length in [4097, 8192, 8191, 64 * 4096, 100_000, 3 * MIB + 5, VALUE_BYTES_MAX] {
        for bytes in [1000, 4096, 5000, 256 << 10, usize::MAX] {
            let value = value(length, bytes as u8);
            let mut put = world.begin(KEY, length);
            let (mut left, mut turn) = (&value[..], 0);
            while !left.is_empty() {
                left = fill(&mut put, left, bytes);
                // Others come by way of a buffer, and some in none of the parts that there was room for.
                turn += 1;
                let (now, rest) = left.split_at((turn % 3 * 3000).min(left.len()));
                put.push(now);
                left = rest;
                assert_eq!(put.missing(), left.len());
            }
            assert_eq!(put.room().count(), 0, "all has come");
            assert_eq!(put.publish(), Put::Stored, "{length} in parts of {bytes}");
            assert!(world.get(KEY).unwrap() == value, "{length} in parts of {bytes}");
        }
    }
}

#[test]
fn there_is_room_for_64_pages_and_no_more_than_is_missing() {
    let world = World::new(64 << 20, u64::MAX);
    let room = |put: &mut LongPut| put.room().map(|part| part.len()).sum::<usize>();
    let mut put = world.begin(KEY, MIB + 7);
    assert_eq!(room(&mut put), 64 * PAGE_BYTES);
    put.push(&[1; 100]);
    assert_eq!(room(&mut put), 64 * PAGE_BYTES - 100);
    put.push(&vec![1; MIB - 64 * PAGE_BYTES - 100]);
    assert_eq!(room(&mut put), 64 * PAGE_BYTES + 7, "the last pages and what is behind them");
    put.filled(64 * PAGE_BYTES + 3);
    assert_eq!((room(&mut put), put.missing()), (4, 4));
}

#[test]
#[should_panic(expected = "more than there was room for")]
fn no_more_comes_than_there_was_room_for() {
    let world = World::new(64 << 20, u64::MAX);
    let mut put = world.begin(KEY, MIB);
    let _ = put.room().count();
    put.filled(64 * PAGE_BYTES + 1);
}

#[test]
fn a_put_with_room_for_more_leaves_nothing() {
    leaves_nothing(|_, mut put| {
        let _ = put.room().count();
        drop(put);
    });
}

#[test]
fn without_memory_there_is_no_room_and_the_value_is_refused() {
    let world = World::new(2 << 20, u64::MAX);
    let mut put = world.begin(KEY, 4 * MIB);
    let mut left = &value(4 * MIB, 1)[..];
    let before = left.len();
    while put.room().next().is_some() {
        left = fill(&mut put, left, usize::MAX);
    }
    assert!(left.len() < before && !left.is_empty());
    put.push(left);
    assert_eq!(put.publish(), Put::Refused(Refusal::NodeFull));
    assert_eq!((world.in_flight_bytes(), world.used_pages()), (0, 0));
    assert_eq!(world.put(KEY, &value(MIB, 1)), Put::Stored, "its memory can be had");
}

/// Puts what came of a put that did not end well beside how it was before.
fn leaves_nothing(end: impl Fn(&World, LongPut)) {
    let world = World::new(64 << 20, u64::MAX).warmed();
    assert_eq!(world.put(KEY, &value(MIB, 1)), Put::Stored);
    assert_eq!(world.put(OTHER, &value(MIB, 1)), Put::Stored);
    assert!(world.store.flush(world.pool, KEY));
    let (held, used) = (world.held_bytes(), world.used_pages());
    for pushed in [0, 1, 5000, 2 * MIB] {
        let mut put = world.begin(KEY, 2 * MIB);
        put.push(&value(pushed, 2));
        assert_eq!(world.in_flight_bytes(), 2 * MIB as u64);
        assert_eq!(world.used_pages(), used + 2 * PAGES_OF_MIB, "billed from the start");
        end(&world, put);
        assert_eq!(world.in_flight_bytes(), 0, "after {pushed} bytes");
        assert_eq!(world.used_pages(), used, "after {pushed} bytes");
        assert_eq!(world.held_bytes(), held, "after {pushed} bytes");
        assert_eq!(world.get(KEY), None);
    }
    assert!(world.get(OTHER).unwrap() == value(MIB, 1));
}

#[test]
fn a_put_that_is_dropped_leaves_nothing() {
    leaves_nothing(|_, put| drop(put));
}

#[test]
fn a_put_that_is_refused_in_the_end_leaves_nothing() {
    leaves_nothing(|world, mut put| {
        put.push(&vec![3; put.missing()]);
        world.store.freeze(world.client).unwrap();
        assert_eq!(put.publish(), Put::Refused(Refusal::Frozen));
        world.store.thaw(world.client).unwrap();
    });
}

#[test]
fn a_put_whose_pool_is_gone_leaves_nothing() {
    let world = World::new(64 << 20, u64::MAX).warmed();
    let held = world.held_bytes();
    let mut put = world.begin(KEY, MIB);
    put.push(&value(MIB, 2));
    world.store.destroy_pool(world.pool).unwrap();
    assert_eq!(put.publish(), Put::Refused(Refusal::NoPool));
    assert_eq!((world.in_flight_bytes(), world.used_pages()), (0, 0));
    assert_eq!(world.held_bytes(), held);
}

#[test]
fn a_put_that_finds_no_memory_for_its_map_leaves_nothing() {
    let world = World::new(2 << 20, u64::MAX);
    let put = |number: &u32| {
        world.store.put(world.pool, Key::new(1, *number), &value(PAGE_BYTES, 1)) == Put::Stored
    };
    let full = (0..1000).take_while(put).count() as u32;
    // Single frames are free, and there is none for a span of cells.
    (0..full)
        .step_by(8)
        .for_each(|number| assert!(world.store.flush(world.pool, Key::new(1, number))));
    let held = world.held_bytes();
    let begun = world.store.begin_put(world.pool, KEY, 2 * PAGE_BYTES + 4000);
    assert!(matches!(begun, Begun::Refused(Refusal::NodeFull)), "{begun:?}");
    assert_eq!((world.held_bytes(), world.in_flight_bytes()), (held, 0));
    assert_eq!(world.store.statistics(world.client).unwrap().puts_refused_node_full, 2);
}

/// Values that come at the same time share chunks. When some are refused, all chunks may be half full.
#[test]
fn a_value_whose_pages_have_all_come_never_fails_for_its_map() {
    let world = World::new(8 << 20, u64::MAX);
    let mut put = world.begin(KEY, MIB + 300);
    put.push(&value(MIB, 1));
    let small = |number: &u32| {
        world.store.put(world.pool, Key::new(1, *number), &value(PAGE_BYTES, 1)) == Put::Stored
    };
    let full = (0..10_000).take_while(small).count() as u32;
    (0..full).step_by(8).for_each(|n| assert!(world.store.flush(world.pool, Key::new(1, n))));
    // Single frames are free, and there is none for a span of cells.
    put.push(&value(MIB + 300, 1)[MIB..]);
    assert_eq!(put.publish(), Put::Stored);
    assert!(world.get(KEY).unwrap() == value(MIB + 300, 1));
}

#[test]
fn what_outlives_its_client_touches_nobody_elses_account() {
    let world = World::new(64 << 20, u64::MAX);
    assert_eq!(world.put(OTHER, &value(MIB, 1)), Put::Stored);
    let get = world.long_get(OTHER);
    let mut put = world.begin(KEY, MIB);
    put.push(&value(5000, 2));
    world.store.remove_client(world.client).unwrap();
    let successor = world.store.add_client(ClientConfig::default()).unwrap();
    let account = || {
        let used = world.store.statistics(successor).unwrap().used_pages;
        (used, world.store.in_flight_bytes_of(successor).unwrap())
    };
    assert_eq!(account(), (0, 0));
    drop((put, get));
    assert_eq!(account(), (0, 0));
    assert!(world.held_bytes() < MIB as u64 / 2, "{} bytes are held", world.held_bytes());
}

#[test]
fn an_overwrite_is_billed_once() {
    let world = World::new(64 << 20, 4 * PAGES_OF_MIB);
    assert_eq!(world.put(KEY, &value(3 * MIB, 1)), Put::Stored);
    assert_eq!(world.used_pages(), 3 * PAGES_OF_MIB);
    // Longer, shorter, of the same length; and the last fits only because it takes the place of one.
    for mib in [4, 2, 2, 4, 4] {
        assert_eq!(world.put(KEY, &value(mib * MIB, mib as u8)), Put::Stored, "{mib} MiB");
        assert_eq!(world.used_pages(), mib as u64 * PAGES_OF_MIB);
        assert!(world.get(KEY).unwrap() == value(mib * MIB, mib as u8));
    }
    // What it was to replace has gone meanwhile.
    let mut put = world.begin(KEY, 4 * MIB);
    assert_eq!(world.used_pages(), 4 * PAGES_OF_MIB);
    assert!(world.store.flush(world.pool, KEY));
    put.push(&value(4 * MIB, 9));
    assert_eq!(put.publish(), Put::Stored);
    assert_eq!(world.used_pages(), 4 * PAGES_OF_MIB);
    // A client above its target may still replace what it has.
    world.store.set_target(world.client, 1).unwrap();
    assert_eq!(world.put(KEY, &value(4 * MIB, 5)), Put::Stored);
}

#[test]
fn of_two_that_come_for_one_key_the_last_is_billed() {
    let world = World::new(64 << 20, u64::MAX);
    let mut puts = [(1, 2 * MIB), (2, MIB), (3, 3 * MIB)].map(|(seed, length)| {
        let mut put = world.begin(KEY, length);
        put.push(&value(length, seed));
        (put, value(length, seed))
    });
    assert_eq!(world.used_pages(), 6 * PAGES_OF_MIB);
    puts.reverse();
    for (put, value) in puts {
        assert_eq!(put.publish(), Put::Stored);
        assert!(world.get(KEY).unwrap() == value);
        let still_coming = world.in_flight_bytes() / PAGE_BYTES as u64;
        let held = (value.len() / PAGE_BYTES) as u64;
        assert_eq!(world.used_pages(), held + still_coming);
    }
    assert_eq!((world.used_pages(), world.in_flight_bytes()), (2 * PAGES_OF_MIB, 0));
}

#[test]
fn what_is_on_its_way_counts_against_the_target() {
    let world = World::new(64 << 20, 3 * PAGES_OF_MIB);
    let first = world.begin(KEY, 2 * MIB);
    assert!(matches!(world.store.begin_put(world.pool, OTHER, 2 * MIB), Begun::Later));
    let small = world.store.put(world.pool, Key::new(1, 1), &[5; PAGE_BYTES]);
    assert_eq!(small, Put::Stored, "there is room for a page");
    // The rest of the target is taken: a page is refused while the long value is on its way.
    let second = world.begin(OTHER, MIB - PAGE_BYTES);
    let small = world.store.put(world.pool, Key::new(1, 2), &[5; PAGE_BYTES]);
    assert_eq!(small, Put::Refused(Refusal::AtTarget));
    drop((first, second));
    let begun = world.store.begin_put(world.pool, OTHER, 3 * MIB);
    assert!(matches!(begun, Begun::Refused(Refusal::AtTarget)), "nothing is on its way any more");
    let refused = world.store.statistics(world.client).unwrap().puts_refused_at_target;
    assert_eq!(refused, 2);
    // What is on its way out has its pages already, and frees none in the end.
    assert_eq!(world.put(KEY, &value(2 * MIB, 1)), Put::Stored);
    let leaving = world.long_get(KEY);
    let begun = world.store.begin_put(world.pool, OTHER, 2 * MIB);
    assert!(matches!(begun, Begun::Refused(Refusal::AtTarget)), "{begun:?}");
    drop(leaving);
    assert!(world.store.flush(world.pool, KEY));
    world.begin(OTHER, 2 * MIB);
    // Another client has a target of its own.
    let other = world.store.add_client(ClientConfig::default()).unwrap();
    let pool = world.store.create_pool(other, PoolSpec::PERSISTENT).unwrap();
    assert!(matches!(world.store.begin_put(pool, KEY, 16 * MIB), Begun::Put(_)));
}

#[test]
fn memory_stays_within_the_capacity_whatever_is_on_its_way() {
    const CAPACITY: u64 = 16 << 20;
    let world = World::new(CAPACITY, u64::MAX);
    let mut puts: Vec<_> = (0..6).map(|n| world.begin(Key::new(n, 0), 4 * MIB)).collect();
    let part = value(128 << 10, 3);
    for _ in 0..4 * MIB / part.len() {
        for put in &mut puts {
            put.push(&part);
            assert!(world.store.memory_bytes() <= CAPACITY);
        }
    }
    let ends: Vec<_> = puts.into_iter().map(LongPut::publish).collect();
    let stored = ends.iter().filter(|end| **end == Put::Stored).count();
    assert!(stored >= 3, "{ends:?}");
    let refused = ends.iter().filter(|end| **end == Put::Refused(Refusal::NodeFull)).count();
    assert_eq!(stored + refused, ends.len(), "{ends:?}");
    assert_eq!(world.used_pages(), stored as u64 * 4 * PAGES_OF_MIB);
    let counted = world.store.statistics(world.client).unwrap();
    assert_eq!((counted.puts, counted.puts_refused_node_full), (6, refused as u64));
    // All that was refused was given back.
    let freed = (0..6).find(|&object| world.store.flush_object(world.pool, object) != 0);
    assert!(freed.is_some());
    assert_eq!(world.put(KEY, &value(4 * MIB, 1)), Put::Stored);
}

#[test]
fn ephemeral_values_give_way_to_what_arrives() {
    let world = World::new(16 << 20, u64::MAX);
    let ephemeral = world.store.create_pool(world.client, PoolSpec::EPHEMERAL).unwrap();
    for number in 0..4096 {
        let put = world.store.put(ephemeral, Key::new(1, number), &value(4095, number as u8));
        assert_eq!(put, Put::Stored);
    }
    assert_eq!(world.put(KEY, &value(8 * MIB, 1)), Put::Stored);
    assert!(world.get(KEY).unwrap() == value(8 * MIB, 1));
}

#[test]
fn a_value_that_leaves_stays_as_it_was() {
    let world = World::new(64 << 20, u64::MAX).warmed();
    let held = world.held_bytes();
    assert_eq!(world.put(KEY, &value(2 * MIB + 100, 1)), Put::Stored);
    let mut get = world.long_get(KEY);
    let mut read = vec![0; 2 * MIB + 100];
    assert_eq!(get.pull(&mut read[..5000]), 5000);
    assert_eq!(world.put(KEY, &value(MIB, 2)), Put::Stored);
    assert!(world.store.flush(world.pool, KEY));
    assert_eq!(world.in_flight_bytes(), 2 * MIB as u64 + PAGE_BYTES as u64);
    assert_eq!(world.used_pages(), 0);
    assert_eq!(get.pull(&mut read[5000..]), 2 * MIB + 100 - 5000);
    assert!(read == value(2 * MIB + 100, 1));
    drop(get);
    assert_eq!((world.in_flight_bytes(), world.held_bytes()), (0, held));
}

#[test]
fn one_of_those_that_take_a_long_value_gets_it() {
    let world = World::new(64 << 20, u64::MAX);
    let take = |pool| {
        let room = (VALUE_BYTES_MAX, PAGE_BYTES);
        let (mut shown, mut scratch) = (0, PageBuf::ZERO);
        let found = world.store.take_long(pool, KEY, room, &mut scratch, |_, part| {
            shown += part.len();
        });
        (found.unwrap(), shown)
    };
    let ephemeral = world.store.create_pool(world.client, PoolSpec::EPHEMERAL).unwrap();
    for pool in [world.pool, ephemeral] {
        let mut put = match world.store.begin_put(pool, KEY, MIB) {
            Begun::Put(put) => put,
            other => panic!("{other:?}"),
        };
        put.push(&value(MIB, 4));
        assert_eq!(put.publish(), Put::Stored);
        let (Found::Long(mut get), 0) = take(pool) else { panic!("no long value") };
        assert!(!world.store.exists(pool, KEY));
        assert!(matches!(take(pool), (Found::Other(Get::Miss), 0)));
        let mut read = vec![0; MIB];
        assert_eq!(get.pull(&mut read), MIB);
        assert!(read == value(MIB, 4));
        drop(get);
        // Short ones are shown.
        assert_eq!(world.store.put(pool, KEY, &[1; 100]), Put::Stored);
        assert!(matches!(take(pool), (Found::Other(Get::Hit(100)), 100)));
        assert!(!world.store.exists(pool, KEY));
        assert_eq!((world.used_pages(), world.in_flight_bytes()), (0, 0));
    }
}

#[test]
fn lengths_that_are_not_stored_are_refused_at_once() {
    let world = World::new(64 << 20, u64::MAX);
    assert_eq!(world.put(KEY, &value(MIB, 1)), Put::Stored);
    let begun = world.store.begin_put(world.pool, KEY, VALUE_BYTES_MAX + 1);
    assert!(matches!(begun, Begun::Refused(Refusal::Length)));
    assert_eq!(world.get(KEY), None, "a refused put leaves nothing");
    let reserved =
        world.store.create_reserved_pool(world.client, PoolSpec::PERSISTENT, 16).unwrap();
    let begun = world.store.begin_put(reserved, KEY, MIB);
    assert!(matches!(begun, Begun::Refused(Refusal::Length)));
    assert_eq!((world.used_pages(), world.in_flight_bytes()), (0, 0));
}

#[test]
fn long_values_find_room_among_many_short_ones_that_may_be_dropped() {
    let store = Store::open(Config::embedded(16 << 20)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let pool = store.create_pool(client, PoolSpec::EPHEMERAL).unwrap();
    let key = |n: u64| Key::new(n / 64, n as u32 % 64);
    for number in 0..100_000 {
        assert_eq!(store.put(pool, key(number), &[7; 50]), Put::Stored, "short value {number}");
    }
    for number in 0..40 {
        let stored = store.put(pool, key(200_000 + number), &vec![8; MIB]);
        assert_eq!(stored, Put::Stored, "long value {number}");
    }
}
