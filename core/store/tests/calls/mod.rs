//! Calls of a store that must succeed, and pages.

use spillway_store::{
    ClientConfig, ClientId, Config, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Store,
};
use spillway_test_support::random;

pub const MIB: u64 = 1 << 20;

pub fn embedded(bytes: u64) -> Store {
    Store::open(Config::embedded(bytes)).expect("open")
}

pub fn client(store: &Store) -> ClientId {
    store.add_client(ClientConfig::default()).expect("client")
}

pub fn pool(store: &Store, client: ClientId, spec: PoolSpec) -> PoolId {
    store.create_pool(client, spec).expect("pool")
}

pub fn get(store: &Store, pool: PoolId, key: Key) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    match store.get(pool, key, &mut value).expect("get") {
        Get::Hit(length) => {
            value.truncate(length);
            Some(value)
        }
        Get::Miss => None,
        Get::Short(length) => panic!("a value of {length} bytes"),
    }
}

/// A page that nothing shrinks.
pub fn noise(seed: u64) -> Vec<u8> {
    random::noise(seed, PAGE_BYTES)
}
