//! Calls of a store that must succeed, and pages.

use spillway_store::{
    ClientConfig, ClientId, Config, Get, Key, PAGE_BYTES, PoolId, PoolSpec, Store,
};

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
    let mut state = seed << 1 | 1;
    let word = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ state >> 29).to_ne_bytes()
    };
    (0..PAGE_BYTES / 8).flat_map(word).collect()
}
