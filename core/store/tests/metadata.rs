//! What the store takes beside the bytes of the values: exact accounting, nothing is timed.
//!
//! Same-filled pages take no frame, so a million of them show what the index takes. What a frame
//! takes besides is the difference between raw pages and the bytes in them.

use spillway_store::{ClientConfig, Config, Dedup, Key, PAGE_BYTES, PoolId, PoolSpec, Put, Store};

const GIB: u64 = 1 << 30;
const METADATA_MAX: f64 = 32.0;
/// Raw pages that are really stored; 512 MiB.
const COUNT: u32 = 1 << 17;

fn open(dedup: Dedup, capacity_bytes: u64) -> (Store, PoolId) {
    let store = Store::open(Config { dedup, ..Config::embedded(capacity_bytes) }).expect("open");
    let client = store.add_client(ClientConfig::default()).expect("client");
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).expect("pool");
    (store, pool)
}

fn index_bytes(count: u32, key: impl Fn(u32) -> Key) -> f64 {
    let (store, pool) = open(Dedup::Off, 2 * GIB);
    let page = [7; PAGE_BYTES];
    for number in 0..count {
        assert_eq!(store.put(pool, key(number), &page), Put::Stored);
    }
    store.memory_bytes() as f64 / f64::from(count)
}

/// Bytes a page beside its 4096, of pages that all differ.
fn frame_bytes(dedup: Dedup) -> f64 {
    let (store, pool) = open(dedup, 530 << 20);
    let mut page = [1; PAGE_BYTES];
    for number in 0..COUNT {
        page[..4].copy_from_slice(&u32::to_ne_bytes(number));
        assert_eq!(store.put(pool, Key::new(0, number), &page), Put::Stored);
    }
    // Chunks that are partly filled are frames for later, not metadata.
    let frames = u64::from(COUNT) * PAGE_BYTES as u64 + store.free_frame_bytes();
    (store.memory_bytes() - frames) as f64 / f64::from(COUNT)
}

#[test]
fn a_dense_million_takes_at_most_32_bytes_a_page_in_all() {
    let dense = |number| Key::new(0, number);
    let index = index_bytes(1 << 20, dense);
    let frame = frame_bytes(Dedup::Off) - index_bytes(COUNT, dense);
    let dedup = frame_bytes(Dedup::PerClient) - frame_bytes(Dedup::Off);
    println!("index {index:.2}, frame {frame:.2}, dedup {dedup:.2} bytes a page");
    assert!(index <= 9.0, "{index} bytes of index a page");
    assert!(index + frame <= 26.5, "{frame} bytes a frame");
    assert!(index + frame + dedup <= METADATA_MAX, "{dedup} bytes for dedup");
}

#[test]
fn a_million_objects_of_a_page_take_what_the_documentation_says() {
    let index = index_bytes(1 << 20, |number| Key::new(u64::from(number), 0));
    println!("index {index:.2} bytes a page, one page per object");
    assert!(index <= 40.0, "{index} bytes of index a page");
}
