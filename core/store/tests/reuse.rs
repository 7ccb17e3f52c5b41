//! What a store learns of how soon pages are wanted back.

use spillway_reuse::bucket;
use spillway_store::{ClientConfig, Config, Curve, Get, Key, PoolId, PoolSpec, Put, Store};
use spillway_types::ClientId;

const PAGE: [u8; 4096] = [7; 4096];

struct Watched {
    store: Store,
    client: ClientId,
    pool: PoolId,
}

impl Watched {
    fn new(target_pages: u64, spec: PoolSpec) -> Self {
        let store = Store::open(Config::embedded(64 << 20)).unwrap();
        let client = store.add_client(ClientConfig { target_pages, ..ClientConfig::default() });
        let client = client.unwrap();
        let pool = store.create_pool(client, spec).unwrap();
        Self { store, client, pool }
    }

    fn put(&self, number: u64) {
        let _: Put = self.store.put(self.pool, Key::new(number / 64, number as u32 % 64), &PAGE);
    }

    fn get(&self, number: u64) -> Get {
        let mut page = PAGE;
        self.store.get(self.pool, Key::new(number / 64, number as u32 % 64), &mut page).unwrap()
    }

    fn curve(&self) -> Option<Curve> {
        self.store.reuse(self.client).unwrap()
    }
}

#[test]
fn nobody_is_watched_unless_asked() {
    let watched = Watched::new(u64::MAX, PoolSpec::PERSISTENT);
    watched.put(1);
    assert!(watched.curve().is_none());
    watched.store.set_sampling(watched.client, true).unwrap();
    assert_eq!(watched.curve().unwrap().live_pages, 0, "what was before is not known");
    watched.put(1);
    watched.store.set_sampling(watched.client, true).unwrap();
    assert_eq!(watched.curve().unwrap().live_pages, 1, "asking again changes nothing");
    watched.store.set_sampling(watched.client, false).unwrap();
    assert!(watched.curve().is_none());
    assert!(watched.store.set_sampling(ClientId(77), true).is_err());
}

#[test]
fn refused_puts_and_misses_tell_as_much() {
    // Most of 1000 pages are refused, and all are wanted back in their order.
    let watched = Watched::new(100, PoolSpec::PERSISTENT);
    watched.store.set_sampling(watched.client, true).unwrap();
    for round in 0..5 {
        for number in 0..1000 {
            if round > 0 {
                let hit = watched.get(number) != Get::Miss;
                assert_eq!(hit, number < 100);
            }
            watched.put(number);
        }
    }
    let curve = watched.curve().unwrap();
    assert_eq!(curve.cold, 0.0);
    let within = |pages| curve.gets[..=bucket(pages)].iter().sum::<f32>() / curve.weight();
    assert!(within(850) < 0.01 && within(1100) > 0.99, "{}", within(1000));
    assert_eq!(curve.live_pages, 1000);
}

#[test]
fn pages_that_were_taken_or_flushed_are_gone() {
    let watched = Watched::new(u64::MAX, PoolSpec::EPHEMERAL);
    watched.store.set_sampling(watched.client, true).unwrap();
    (0..300).for_each(|number| watched.put(number));
    // A get of a private ephemeral pool takes.
    (0..100).for_each(|number| assert_ne!(watched.get(number), Get::Miss));
    assert_eq!(watched.curve().unwrap().live_pages, 200);
    assert!(watched.store.flush(watched.pool, Key::new(2, 0)));
    assert_eq!(watched.curve().unwrap().live_pages, 199);
    watched.store.flush_object(watched.pool, 3);
    assert_eq!(watched.curve().unwrap().live_pages, 199 - 64);
    watched.store.destroy_pool(watched.pool).unwrap();
    assert_eq!(watched.curve().unwrap().live_pages, 0);
}

#[test]
fn a_page_put_in_two_steps_is_heard_of_once() {
    let watched = Watched::new(u64::MAX, PoolSpec::PERSISTENT);
    watched.store.set_sampling(watched.client, true).unwrap();
    for number in 0..10_u32 {
        let filled = watched.store.fill_page(watched.pool, Key::new(0, number), |page| {
            page.fill(number as u8);
            page[0] = 99;
        });
        assert_eq!(filled.unwrap().publish(), Put::Stored);
    }
    assert_eq!(watched.curve().unwrap().live_pages, 10);
}

/// Another client that gets the number of one that has gone begins anew.
#[test]
fn a_sampler_is_its_clients_own() {
    let watched = Watched::new(u64::MAX, PoolSpec::PERSISTENT);
    watched.store.set_sampling(watched.client, true).unwrap();
    watched.put(1);
    watched.store.remove_client(watched.client).unwrap();
    let other = watched.store.add_client(ClientConfig::default()).unwrap();
    assert!(watched.store.reuse(other).unwrap().is_none());
    watched.store.set_sampling(other, true).unwrap();
    assert_eq!(watched.store.reuse(other).unwrap().unwrap().live_pages, 0);
}
