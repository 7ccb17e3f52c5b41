//! What is taken back of a client above its target, and what is read past the statistics.

use spillway_store::{
    ClientConfig, Config, Error, Get, Key, PageBuf, PoolSpec, Put, Scratch, Store,
};

fn page(n: u32) -> PageBuf {
    let mut page = PageBuf::ZERO;
    page.0.chunks_exact_mut(4).zip(0_u32..).for_each(|(word, at)| {
        word.copy_from_slice(&(at.wrapping_mul(0x9e37_79b9) ^ n).to_le_bytes());
    });
    page
}

#[test]
fn ephemeral_pages_go_first_and_no_more_than_the_excess() {
    let store = Store::open(Config::embedded(8 << 20)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let kept = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    let dropped = store.create_pool(client, PoolSpec::EPHEMERAL).unwrap();
    for n in 0..100 {
        for pool in [kept, dropped] {
            assert_eq!(store.put(pool, Key::new(0, n), &page(n).0), Put::Stored);
        }
    }
    assert_eq!(store.evict_beyond_target(client, 50).unwrap(), 0, "it has no target");
    store.set_target(client, 150).unwrap();
    assert_eq!(store.evict_beyond_target(client, 20).unwrap(), 20);
    assert_eq!(store.reclaim(client, 100, &mut Scratch::new()).unwrap(), 30);
    assert_eq!(store.statistics(client).unwrap().used_pages, 150);
    store.set_target(client, 0).unwrap();
    assert_eq!(store.evict_beyond_target(client, 1000).unwrap(), 50, "persistent pages stay");
    let mut found = PageBuf::ZERO;
    for n in 0..100 {
        assert_eq!(store.get(kept, Key::new(0, n), &mut found.0).unwrap(), Get::Hit(4096));
        assert!(found.0 == page(n).0);
    }
}

#[test]
fn short_values_go_in_the_order_of_their_last_use() {
    // Large enough for several shards, each of which has an order of its own.
    let store = Store::open(Config::embedded(1 << 30)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let pool = store.create_pool(client, PoolSpec::EPHEMERAL).unwrap();
    let (key, mut found) = (|n: u32| Key::new(0, n), PageBuf::ZERO);
    for n in (0..2000).chain((1..2000).step_by(2)) {
        assert_eq!(store.put(pool, key(n), &[7; 300]), Put::Stored);
    }
    store.set_target(client, 1000).unwrap();
    assert_eq!(store.evict_beyond_target(client, 5000).unwrap(), 1000);
    for n in 0..2000 {
        let expected = if n % 2 == 1 { Get::Hit(300) } else { Get::Miss };
        assert_eq!(store.get(pool, key(n), &mut found.0).unwrap(), expected, "{n}");
    }
}

#[test]
fn a_peek_is_not_counted() {
    let store = Store::open(Config::embedded(8 << 20)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    assert_eq!(store.put(pool, Key::new(1, 2), &page(3).0), Put::Stored);
    let mut found = PageBuf::ZERO;
    assert!(store.peek(pool, Key::new(1, 2), &mut found).unwrap());
    assert!(found.0 == page(3).0);
    assert!(!store.peek(pool, Key::new(1, 3), &mut found).unwrap());
    assert_eq!(store.put(pool, Key::new(1, 4), b"short"), Put::Stored);
    assert!(matches!(store.peek(pool, Key::new(1, 4), &mut found), Err(Error::NotAPage(5))));
    assert_eq!(store.statistics(client).unwrap().gets, 0);
}
