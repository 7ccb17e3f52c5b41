//! Rules of a page store, case by case: those that need more than one client or pool, and bugs that other
//! implementations shipped. The random ones are in `rules.rs`.

mod calls;

use calls::{MIB, client, embedded, get, noise, pool};
use spillway_store::{
    ClientConfig, Config, Dedup, Error, Flushed, Get, Key, Lifetime, PAGE_BYTES, PoolId, PoolSpec,
    PoolSpecError, Put, Refusal, Sharing, Store, VALUE_BYTES_MAX,
};

const UUID: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;

#[test]
fn p02_every_failed_overwrite_drops_the_old_value() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let key = Key::new(1, 1);
    let store_one = || assert_eq!(store.put(pool, key, b"old"), Put::Stored);
    let gone = || {
        assert_eq!(get(&store, pool, key), None, "a stale value");
        assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
    };

    store_one();
    let long = vec![1; VALUE_BYTES_MAX + 1];
    assert_eq!(store.put(pool, key, &long), Put::Refused(Refusal::Length));
    gone();
    store_one();
    assert_eq!(store.put(pool, key, &[]), Put::Refused(Refusal::Length));
    gone();
    store_one();
    store.set_target(client, 2).expect("target");
    assert_eq!(store.put(pool, key, &noise(1).repeat(3)), Put::Refused(Refusal::AtTarget));
    gone();
    store.set_target(client, u64::MAX).expect("target");
    store_one();
    assert_eq!(store.put(pool, key, &noise(1).repeat(500)), Put::Refused(Refusal::NodeFull));
    gone();
    store_one();
    store.freeze(client).expect("freeze");
    assert_eq!(store.put(pool, key, b"new"), Put::Refused(Refusal::Frozen));
    gone();

    let statistics = store.statistics(client).expect("statistics");
    assert_eq!(statistics.puts, 10);
    assert_eq!(statistics.puts_stored, 5);
    assert_eq!(statistics.puts_refused_at_target, 1);
    assert_eq!(statistics.puts_refused_node_full, 1);
    assert_eq!(statistics.puts_refused_other, 3);
    assert_eq!(statistics.flushed_pages, 5);
}

#[test]
fn p04_a_get_that_cannot_copy_out_does_not_consume() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::EPHEMERAL);
    let key = Key::new(1, 1);
    for value in [vec![7; 100], noise(1), noise(2).repeat(3), vec![0; PAGE_BYTES]] {
        assert_eq!(store.put(pool, key, &value), Put::Stored);
        let mut short = vec![0; value.len() - 1];
        let answer = store.get(pool, key, &mut short).expect("get");
        assert_eq!(answer, Get::Short(value.len()));
        assert_eq!(get(&store, pool, key), Some(value));
        assert_eq!(get(&store, pool, key), None);
    }
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
}

#[test]
fn p04_a_shared_ephemeral_get_keeps_the_value_and_makes_it_most_recent() {
    let store = embedded(MIB);
    let client = client(&store);
    store.authorise(client, UUID).expect("authorise");
    let pool = pool(&store, client, PoolSpec::shared_ephemeral(UUID));
    let keys: Vec<Key> = (0..600).map(|index| Key::new(1, index)).collect();
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(store.put(pool, *key, &noise(number as u64)), Put::Stored);
        // The first page is read again and again, so it is never the coldest.
        assert_eq!(get(&store, pool, keys[0]), Some(noise(0)), "after {number} puts");
    }
    assert!(store.statistics(client).expect("statistics").evicted_pages > 300);
    assert!(!store.exists(pool, keys[1]), "the coldest went first");
}

#[test]
fn p07_a_pool_goes_with_all_its_values_wherever_they_are() {
    let store = embedded(4 * MIB);
    let client = client(&store);
    let [stays, goes] = [0, 1].map(|_| pool(&store, client, PoolSpec::PERSISTENT));
    let put = |pool, object| assert_eq!(store.put(pool, Key::new(object, 0), b"x"), Put::Stored);
    // Behind so many values of another that they are not looked at in one go.
    (0..4000).for_each(|object| put(stays, object));
    (0..100).for_each(|object| put(goes, object));
    store.destroy_pool(goes).expect("destroy");
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 4000);
}

#[test]
fn p08_the_coldest_goes_first_when_the_coarse_clock_goes_round() {
    const YOUNGEST: u32 = 50;
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::EPHEMERAL);
    let key = |index| Key::new(u64::from(index), 0);
    for index in 0..(1 << 16) + 400 {
        assert_eq!(store.put(pool, key(index), &noise(1)), Put::Stored);
        if index >= 1 << 16 {
            assert!(
                (index - YOUNGEST..index).all(|index| store.exists(pool, key(index))),
                "{index}"
            );
        }
    }
}

#[test]
fn p08_eviction_takes_ephemeral_pages_only() {
    let store = embedded(2 * MIB);
    let client = client(&store);
    let kept = pool(&store, client, PoolSpec::PERSISTENT);
    let dropped = pool(&store, client, PoolSpec::EPHEMERAL);
    for index in 0..150 {
        assert_eq!(store.put(kept, Key::new(1, index), &noise(u64::from(index))), Put::Stored);
    }
    for index in 0..2000 {
        let put = store.put(dropped, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored, "there is always something to drop");
    }
    for index in 0..150 {
        assert_eq!(get(&store, kept, Key::new(1, index)), Some(noise(u64::from(index))));
    }
    // Persistent pages push the ephemeral ones out to the last, and then are refused.
    let mut index = 150;
    while store.put(kept, Key::new(1, index), &noise(u64::from(index))) == Put::Stored {
        index += 1;
    }
    assert_eq!(store.statistics(client).expect("statistics").used_pages, u64::from(index));
}

#[test]
fn p08_a_client_over_its_share_pays_first_and_else_the_coldest_goes() {
    let store = embedded(4 * MIB);
    let (greedy, modest) = (client(&store), client(&store));
    let greedy_pool = pool(&store, greedy, PoolSpec::EPHEMERAL);
    let modest_pool = pool(&store, modest, PoolSpec::EPHEMERAL);
    let evicted = |client| store.statistics(client).expect("statistics").evicted_pages;
    for index in 0..100 {
        let put = store.put(modest_pool, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored);
    }
    for index in 0..3000 {
        let put = store.put(greedy_pool, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored);
    }
    assert!(evicted(greedy) > 2000);
    assert_eq!(evicted(modest), 0, "colder, but its owner is within its share");
    // The modest client grows within its share: the coldest of all go, its own old ones first.
    for index in 100..200 {
        let put = store.put(modest_pool, Key::new(1, index), &noise(u64::from(index)));
        assert_eq!(put, Put::Stored);
    }
    assert!(evicted(modest) > 0);
    assert!(!store.exists(modest_pool, Key::new(1, 0)));
    assert!(store.exists(modest_pool, Key::new(1, 199)));
}

#[test]
fn p09_a_frozen_client_reads_and_flushes() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let keys = [1, 2].map(|index| Key::new(1, index));
    for key in keys {
        assert_eq!(store.put(pool, key, b"value"), Put::Stored);
    }
    store.freeze(client).expect("freeze");
    assert_eq!(get(&store, pool, keys[0]), Some(b"value".to_vec()));
    assert!(store.flush(pool, keys[0]));
    assert_eq!(store.put(pool, keys[0], b"new"), Put::Refused(Refusal::Frozen));
    store.thaw(client).expect("thaw");
    assert_eq!(store.put(pool, keys[0], b"new"), Put::Stored);
    assert_eq!(get(&store, pool, keys[1]), Some(b"value".to_vec()));
}

#[test]
fn p10_destroying_a_pool_during_migration_is_logged_and_leaks_nothing() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    assert_eq!(store.put(pool, Key::new(1, 1), &noise(1)), Put::Stored);
    store.freeze(client).expect("freeze");
    store.destroy_pool(pool).expect("destroy");
    assert_eq!(store.take_flush_log(client).expect("log"), [Flushed::Pool(pool)]);
    assert!(matches!(store.export(pool, |_, _| ()), Err(Error::NoPool)));
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
}

#[test]
fn p11_joining_needs_authorisation_and_the_last_leaver_frees() {
    let store = embedded(MIB);
    let (first, second, stranger) = (client(&store), client(&store), client(&store));
    let spec = PoolSpec::shared_persistent(UUID);
    assert!(matches!(store.create_pool(stranger, spec), Err(Error::Unauthorised(UUID))));
    for member in [first, second] {
        store.authorise(member, UUID).expect("authorise");
    }
    assert!(matches!(store.join_pool(second, UUID), Err(Error::NoSharedPool(UUID))));
    let ours = pool(&store, first, spec);
    let theirs = store.join_pool(second, UUID).expect("join");
    assert_eq!(store.join_pool(second, UUID).expect("again"), theirs, "joining twice");
    assert_eq!(pool(&store, first, spec), ours, "creating twice");
    assert!(matches!(store.join_pool(stranger, UUID), Err(Error::Unauthorised(UUID))));
    let other = PoolSpec { lifetime: Lifetime::Ephemeral, sharing: Sharing::Shared { uuid: UUID } };
    assert!(matches!(store.create_pool(first, other), Err(Error::Lifetime(UUID))));

    assert_eq!(store.put(ours, Key::new(1, 1), &noise(1)), Put::Stored);
    assert_eq!(store.put(theirs, Key::new(1, 2), &noise(2)), Put::Stored);
    assert_eq!(get(&store, theirs, Key::new(1, 1)), Some(noise(1)), "one pool for both");
    let used = |client| store.statistics(client).expect("statistics").used_pages;
    assert_eq!((used(first), used(second)), (1, 1), "each pays for what it stored");
    // A rewrite by the other member moves the bill.
    assert_eq!(store.put(theirs, Key::new(1, 1), &noise(3)), Put::Stored);
    assert_eq!((used(first), used(second)), (0, 2));

    assert!(matches!(store.destroy_pool(ours), Err(Error::WrongSharing)));
    store.leave_pool(theirs).expect("leave");
    assert!(matches!(store.get(theirs, Key::new(1, 2), &mut [0; 4096]), Err(Error::NoPool)));
    assert_eq!(get(&store, ours, Key::new(1, 2)), Some(noise(2)), "P5: leaving frees nothing");
    assert_eq!((used(first), used(second)), (2, 0));
    store.leave_pool(ours).expect("leave");
    assert_eq!(used(first), 0);
    let fresh = pool(&store, first, spec);
    assert_eq!(get(&store, fresh, Key::new(1, 2)), None, "the last leaver freed it");
}

#[test]
fn p12_unknown_versions_flags_and_page_sizes_are_rejected() {
    let version = 1 << 24;
    assert_eq!(PoolSpec::from_flags(version, 0), Ok(PoolSpec::EPHEMERAL));
    assert_eq!(PoolSpec::from_flags(version | 1, 0), Ok(PoolSpec::PERSISTENT));
    let shared = PoolSpec::shared_persistent(UUID);
    assert_eq!(PoolSpec::from_flags(version | 3, UUID), Ok(shared));
    assert_eq!(PoolSpec::from_flags(0, 0), Err(PoolSpecError::Version(0)));
    assert_eq!(PoolSpec::from_flags(2 << 24, 0), Err(PoolSpecError::Version(2)));
    assert_eq!(PoolSpec::from_flags(version | 4, 0), Err(PoolSpecError::Flags(4)));
    assert_eq!(PoolSpec::from_flags(version | 1 << 9, 0), Err(PoolSpecError::Flags(1 << 9)));
    assert_eq!(PoolSpec::from_flags(version | 9 << 4, 0), Err(PoolSpecError::PageSize(21)));
}

#[test]
fn p13_flushing_what_is_absent_changes_nothing() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let before = store.statistics(client).expect("statistics");
    assert!(!store.flush(pool, Key::new(1, 1)));
    assert_eq!(store.flush_object(pool, 9), 0);
    assert_eq!(store.statistics(client).expect("statistics"), before);
}

#[test]
fn p13_gets_are_hits_and_misses() {
    let store = embedded(MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    for index in 0..5 {
        assert_eq!(store.put(pool, Key::new(1, index), b"value"), Put::Stored);
    }
    for index in 0..8 {
        assert_eq!(get(&store, pool, Key::new(1, index)).is_some(), index < 5);
    }
    let statistics = store.statistics(client).expect("statistics");
    assert_eq!((statistics.gets, statistics.hits, statistics.misses), (8, 5, 3));
}

#[test]
fn p13_the_target_is_exact() {
    let store = embedded(8 * MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    store.set_target(client, 10).expect("target");
    for index in 0..20 {
        let expected = if index < 10 { Put::Stored } else { Put::Refused(Refusal::AtTarget) };
        assert_eq!(store.put(pool, Key::new(1, index), &noise(u64::from(index))), expected);
    }
    // At the target a rewrite goes through; below it after a cut, too: it takes nothing.
    store.set_target(client, 5).expect("target");
    assert_eq!(store.put(pool, Key::new(1, 3), &noise(77)), Put::Stored);
    assert_eq!(get(&store, pool, Key::new(1, 3)), Some(noise(77)));
    let statistics = store.statistics(client).expect("statistics");
    assert_eq!((statistics.used_pages, statistics.debt_pages()), (10, 5));
}

#[test]
fn p14_equal_pages_share_a_frame_within_a_domain_only() {
    let config = Config { dedup: Dedup::PerClient, ..Config::embedded(16 * MIB) };
    let store = Store::open(config).expect("open");
    let member = |domain| {
        let config = ClientConfig { domain, ..ClientConfig::default() };
        let client = store.add_client(config).expect("client");
        pool(&store, client, PoolSpec::PERSISTENT)
    };
    let alone = member(None);
    let (left, right, other) = (member(Some(1)), member(Some(1)), member(Some(2)));
    let fill = |pool: PoolId| {
        let before = store.memory_bytes();
        for index in 0..1000 {
            let page = noise(u64::from(index % 500));
            assert_eq!(store.put(pool, Key::new(1, index), &page), Put::Stored);
        }
        (store.memory_bytes() - before) / PAGE_BYTES as u64
    };
    assert!((500..800).contains(&fill(alone)), "half of its pages are equal");
    assert!((450..800).contains(&fill(left)), "nothing is shared across domains");
    assert!(fill(right) < 100, "all is shared within one");
    assert!((450..800).contains(&fill(other)), "nor with whoever else has a domain");
    for pool in [left, alone, right, other] {
        for index in 0..1000 {
            let page = noise(u64::from(index % 500));
            assert_eq!(get(&store, pool, Key::new(1, index)), Some(page));
            assert!(store.flush(pool, Key::new(1, index)), "the others keep theirs");
        }
    }
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}

#[test]
fn p14_more_equal_pages_than_one_frame_has_owners_are_all_right() {
    let config = Config { dedup: Dedup::PerClient, ..Config::embedded(16 * MIB) };
    let store = Store::open(config).expect("open");
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let (page, other) = (noise(1), noise(2));
    let keys = || (0..60_000).map(|index| Key::new(1, index));
    for key in keys() {
        assert_eq!(store.put(pool, key, &page), Put::Stored);
    }
    assert!(store.memory_bytes() < 2 * MIB, "{} bytes", store.memory_bytes());
    // What one of them loses shows in the others when its frame is another page's.
    for key in keys() {
        assert_eq!(get(&store, pool, key).as_ref(), Some(&page), "{key:?}");
        assert_eq!(store.put(pool, key, &other), Put::Stored);
    }
    assert!(keys().all(|key| get(&store, pool, key).as_ref() == Some(&other)));
    assert!(keys().all(|key| store.flush(pool, key)));
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}

#[test]
fn a_removed_client_leaves_nothing_and_its_ids_are_dead() {
    let store = embedded(4 * MIB);
    let (gone, stays) = (client(&store), client(&store));
    let private = pool(&store, gone, PoolSpec::PERSISTENT);
    for member in [gone, stays] {
        store.authorise(member, UUID).expect("authorise");
    }
    let shared = pool(&store, gone, PoolSpec::shared_persistent(UUID));
    let kept = store.join_pool(stays, UUID).expect("join");
    assert_eq!(store.put(private, Key::new(1, 1), b"private"), Put::Stored);
    assert_eq!(store.put(shared, Key::new(1, 1), b"shared"), Put::Stored);
    store.remove_client(gone).expect("remove");
    assert!(matches!(store.statistics(gone), Err(Error::NoClient)));
    let next = client(&store);
    assert_ne!(next, gone);
    assert_eq!(store.put(private, Key::new(1, 1), b"x"), Put::Refused(Refusal::NoPool));
    assert_eq!(get(&store, kept, Key::new(1, 1)), Some(b"shared".to_vec()));
    assert_eq!(store.statistics(next).expect("statistics").used_pages, 0);
}

#[test]
fn a_page_put_in_two_steps_is_there_after_the_second() {
    let store = embedded(8 * MIB);
    let client = client(&store);
    let pool = pool(&store, client, PoolSpec::PERSISTENT);
    let (key, page) = (Key::new(1, 1), noise(1));
    let fill = |key, page: &[u8]| {
        let page: [u8; PAGE_BYTES] = page.try_into().expect("a page");
        store.fill_page(pool, key, |frame| *frame = page)
    };
    assert_eq!(store.put(pool, key, &noise(0)), Put::Stored);
    let free = store.free_frame_bytes();
    let filled = fill(key, &page).expect("room");
    assert_eq!(get(&store, pool, key), Some(noise(0)), "it is not there yet");
    drop(filled);
    assert_eq!(store.free_frame_bytes(), free, "its frame went with it");
    assert_eq!(fill(key, &page).expect("room").publish(), Put::Stored);
    assert_eq!(get(&store, pool, key), Some(page.clone()));
    assert_eq!(store.free_frame_bytes(), free, "the old page went");
    assert_eq!(fill(key, &[7; PAGE_BYTES]).expect("room").publish(), Put::Stored);
    assert_eq!(get(&store, pool, key), Some(vec![7; PAGE_BYTES]));
    assert_eq!(
        store.free_frame_bytes(),
        free + PAGE_BYTES as u64,
        "a page of one word takes no frame"
    );

    // The target is checked when a page is published.
    store.set_target(client, 2).expect("a target");
    let two = [2, 3].map(|index| fill(Key::new(1, index), &noise(9)).expect("room"));
    assert_eq!(two.map(|filled| filled.publish()), [Put::Stored, Put::Refused(Refusal::AtTarget)]);
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 2);
    assert!(fill(Key::new(1, 4), &page).is_none(), "at its target");
    store.destroy_pool(pool).expect("a pool");
    assert!(fill(key, &page).is_none(), "no pool");
}
