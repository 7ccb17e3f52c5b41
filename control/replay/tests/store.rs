//! The page-accurate node compared with the store itself.

use proptest::prelude::*;
use spillway_replay::node::Node;
use spillway_store::{ClientConfig, Config, Get, Key, PoolSpec, Store};

const KEYS: u32 = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(usize, u32),
    Get(usize, u32),
    Flush(usize, u32),
    Target(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..2_usize;
    prop_oneof![
        4 => (client.clone(), 0..KEYS).prop_map(|(client, key)| Step::Put(client, key)),
        3 => (client.clone(), 0..KEYS).prop_map(|(client, key)| Step::Get(client, key)),
        2 => (client.clone(), 0..KEYS).prop_map(|(client, key)| Step::Flush(client, key)),
        1 => (client, 0..30_u64).prop_map(|(client, pages)| Step::Target(client, pages)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same requests get the same answers and the same counters, as long as memory suffices.
    #[test]
    fn the_node_answers_as_the_store_does(steps in prop::collection::vec(step(), 0..600)) {
        let store = Store::open(Config::embedded(64 << 20)).unwrap();
        let mut node = Node::new(u64::MAX, &[KEYS; 2]);
        let clients = [0, 1].map(|client| {
            node.set_target(client, 20);
            let config = ClientConfig { target_pages: 20, ..ClientConfig::default() };
            let id = store.add_client(config).unwrap();
            (id, store.create_pool(id, PoolSpec::PERSISTENT).unwrap())
        });
        // A page of equal words, which takes no frame.
        let mut page = [0; 4096];
        for step in steps {
            match step {
                Step::Put(client, key) => {
                    let put = store.put(clients[client].1, Key::new(0, key), &page);
                    prop_assert_eq!(put == spillway_store::Put::Stored, node.put(client, key));
                }
                Step::Get(client, key) => {
                    let got = store.get(clients[client].1, Key::new(0, key), &mut page).unwrap();
                    prop_assert_eq!(got != Get::Miss, node.get(client, key));
                }
                Step::Flush(client, key) => {
                    let had = store.flush(clients[client].1, Key::new(0, key));
                    prop_assert_eq!(had, node.flush(client, key));
                }
                Step::Target(client, pages) => {
                    store.set_target(clients[client].0, pages).unwrap();
                    node.set_target(client, pages);
                }
            }
        }
        for (client, (id, _)) in clients.iter().enumerate() {
            prop_assert_eq!(store.statistics(*id).unwrap(), node.statistics(client));
        }
    }
}

#[test]
fn a_full_node_refuses_and_reclaims_what_was_read_first() {
    let mut node = Node::new(4, &[10, 10]);
    (0..2).for_each(|client| node.set_target(client, u64::MAX));
    for key in 0..4 {
        assert!(node.put(0, key));
    }
    assert!(!node.put(1, 0));
    assert_eq!(node.statistics(1).puts_refused_node_full, 1);
    assert!(node.get(0, 2));
    node.set_target(0, 2);
    node.reclaim(0, 1);
    assert!(!node.get(0, 2), "it was read back before");
    node.reclaim(0, 10);
    assert!(!node.get(0, 0), "then the oldest");
    assert!(node.get(0, 1) && node.get(0, 3));
    assert!(node.put(1, 0));
    node.flush_all(0);
    assert_eq!((node.statistics(0).used_pages, node.statistics(0).flushed_pages), (0, 2));
}
