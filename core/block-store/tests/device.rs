//! The guarantees of a block device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use spillway_block::{BlockSize, Device, Error, Extent, Geometry, fresh_uuid};
use spillway_block_store::BlockDevice;
use spillway_store::{ClientConfig, Config, Store};
use spillway_types::{ClientId, Key, PoolSpec};

const MIB: u64 = 1 << 20;

fn store(capacity_bytes: u64) -> (Arc<Store>, ClientId) {
    let store = Store::open(Config::embedded(capacity_bytes)).unwrap();
    let client = store.add_client(ClientConfig::default()).unwrap();
    (Arc::new(store), client)
}

fn geometry(bytes: u64) -> Geometry {
    Geometry { bytes, block_size: BlockSize::B512, uuid: fresh_uuid().unwrap() }
}

fn device(bytes: u64) -> (Arc<Store>, BlockDevice) {
    let (store, client) = store(4 * bytes + 8 * MIB);
    let device = BlockDevice::create(store.clone(), client, geometry(bytes)).unwrap();
    (store, device)
}

/// Bytes of frames in use and of the index.
fn used_bytes(store: &Store) -> u64 {
    store.memory_bytes() - store.free_frame_bytes()
}

#[test]
fn never_written_is_zeros_and_takes_no_memory() {
    let (store, device) = device(64 * MIB);
    let before = used_bytes(&store);
    let mut data = vec![0xee; MIB as usize];
    device.read(17 * MIB - 5, &mut data).unwrap();
    assert!(data.iter().all(|&byte| byte == 0));
    assert_eq!(used_bytes(&store), before);
}

#[test]
fn deallocated_memory_is_given_back() {
    let (store, device) = device(64 * MIB);
    let empty = used_bytes(&store);
    let more = || used_bytes(&store) - empty;
    let data: Vec<u8> = (0..64 * MIB).map(|at| (at % 251) as u8).collect();
    device.write(0, &data).unwrap();
    assert_eq!(more(), 64 * MIB);
    device.deallocate(8 * MIB - 1, 48 * MIB + 2).unwrap();
    assert_eq!(more(), 16 * MIB);
    let mut back = vec![0; data.len()];
    device.read(0, &mut back).unwrap();
    assert_eq!(back[..8 << 20], data[..8 << 20]);
    assert!(back[8 << 20..56 << 20].iter().all(|&byte| byte == 0));
    assert_eq!(back[56 << 20..], data[56 << 20..]);
    device.deallocate(0, 64 * MIB).unwrap();
    assert_eq!(more(), 0);
    assert!(device.compare(0, &vec![0; 64 << 20]).unwrap());
}

#[test]
fn the_end_is_the_end() {
    let (_, device) = device(MIB);
    let mut page = [0; 4096];
    for offset in [MIB - 4095, MIB, u64::MAX - 5] {
        assert!(matches!(device.read(offset, &mut page), Err(Error::Range)));
        assert!(matches!(device.write(offset, &page), Err(Error::Range)));
        assert!(matches!(device.compare(offset, &page), Err(Error::Range)));
        assert!(matches!(device.deallocate(offset, 4096), Err(Error::Range)));
        assert!(matches!(device.write_zeroes(offset, 4096), Err(Error::Range)));
        assert!(matches!(device.status(offset, 4096, &mut []), Err(Error::Range)));
    }
    device.write(MIB - 4096, &page).unwrap();
    device.read(MIB, &mut []).unwrap();
}

/// The store never refuses a write to a reserved device: not at the client's target, not when other clients have
/// filled the store, and not while several threads overwrite every page.
#[test]
fn writes_are_never_refused() {
    let (store, client) = store(24 * MIB);
    let device = BlockDevice::create(store.clone(), client, geometry(8 * MIB)).unwrap();
    assert!(BlockDevice::create(store.clone(), client, geometry(32 * MIB)).is_err(), "no room");
    store.set_target(client, 0).unwrap();
    let greedy = store.add_client(ClientConfig::default()).unwrap();
    let pool = store.create_pool(greedy, PoolSpec::PERSISTENT).unwrap();
    let fill = |index: u32| [index.to_ne_bytes(); 1024].concat().into_iter().rev();
    let page = |index: u32| fill(index).enumerate().map(|(at, byte)| byte ^ at as u8);
    let full = (0..).find(|&index| {
        let page: Vec<u8> = page(index).collect();
        store.put(pool, Key::new(0, index), &page) != spillway_types::Put::Stored
    });
    assert!(full.is_some_and(|pages| pages < 16 << 8));
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..4 {
                    for number in (thread..2048).step_by(4) {
                        let page: Vec<u8> = page(number + round).collect();
                        device.write(u64::from(number) * 4096, &page).unwrap();
                        assert!(device.compare(u64::from(number) * 4096, &page).unwrap());
                    }
                }
            });
        }
    });
}

#[test]
fn sizes_are_whole_pages() {
    let (store, client) = store(8 * MIB);
    for bytes in [0, 512, 4097] {
        let made = BlockDevice::create(store.clone(), client, geometry(bytes));
        assert!(matches!(made, Err(spillway_block_store::Error::Size(size)) if size == bytes));
    }
}

#[test]
fn a_device_that_is_gone_says_so() {
    let (store, device) = device(MIB);
    device.flush().unwrap();
    store.destroy_pool(device.pool()).unwrap();
    assert!(device.flush().is_err());
    assert!(device.read(0, &mut [0; 4096]).is_err());
    assert!(device.write(0, &[1; 4096]).is_err());
    assert!(device.write(5, &[1; 6]).is_err());
}

#[test]
fn a_foreign_value_in_the_pool_is_an_error() {
    let (store, client) = store(8 * MIB);
    let pool = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    let device = BlockDevice::open(store.clone(), pool, geometry(MIB)).unwrap();
    let _ = store.put(pool, Key::new(0, 0), &[7; 100]);
    let _ = store.put(pool, Key::new(0, 1), &[7; 8192]);
    for page in [0, 4096] {
        assert!(device.read(page, &mut [0; 4096]).is_err());
        assert!(device.read(page + 8, &mut [0; 16]).is_err());
        assert!(device.write(page + 8, &[0; 16]).is_err());
        device.write(page, &[3; 4096]).unwrap();
        assert!(device.compare(page, &[3; 4096]).unwrap());
    }
}

/// Threads that write neighbouring parts of the same pages lose no writes to each other.
#[test]
fn parts_of_a_page_are_written_apart() {
    const WRITERS: usize = 4;
    const PAGES: u64 = 8;
    let (_, device) = device(MIB);
    let slice = 4096 / WRITERS;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let device = &device;
            scope.spawn(move || {
                for round in 1..400_u64 {
                    let page = round % PAGES;
                    let offset = page * 4096 + (writer * slice) as u64;
                    let mine = vec![(round % 255) as u8 + 1; slice];
                    device.write(offset, &mine).unwrap();
                    let mut back = vec![0; slice];
                    device.read(offset, &mut back).unwrap();
                    assert_eq!(back, mine, "writer {writer}, round {round}");
                }
            });
        }
    });
}

/// A write of a whole page is not lost to concurrent writes of the page's first bytes.
#[test]
fn a_whole_page_is_not_lost_to_a_part() {
    const PART_WRITES: u32 = 100_000;
    let (_, device) = device(MIB);
    let done = AtomicBool::new(false);
    let check = |round: u32| {
        let fill = if round % 16 == 15 { 0 } else { round as u8 };
        if fill == 0 {
            device.write_zeroes(0, 4096).unwrap();
        } else {
            device.write(0, &[fill; 4096]).unwrap();
        }
        // Long enough for a partial write that has already read the page to write it back.
        (0..8).all(|_| {
            let mut back = [0; 4096];
            device.read(0, &mut back).unwrap();
            back[512..] == [fill; 3584]
        })
    };
    let lost = std::thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            let finished = || done.load(Ordering::Relaxed);
            (0..).take_while(|_| !finished()).find(|&round| !check(round))
        });
        for _ in 0..PART_WRITES {
            device.write(0, &[0xaa; 512]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        rounds.join().unwrap()
    });
    assert_eq!(lost, None, "the page of this round was lost");
}

#[test]
fn uuids_are_random_of_version_4() {
    let (one, two) = (fresh_uuid().unwrap(), fresh_uuid().unwrap());
    assert_ne!(one, two);
    for uuid in [one, two] {
        assert_eq!(uuid >> 76 & 0xf, 4);
        assert_eq!(uuid >> 62 & 3, 2);
    }
}

/// One change to a device.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: u64, fill: u8 },
    Zero { offset: u64, bytes: u64 },
    Deallocate { offset: u64, bytes: u64 },
}

const MODEL_BYTES: u64 = 12 * MIB;

/// Ranges near the bounds of pages, and some anywhere.
fn range() -> impl Strategy<Value = (u64, u64)> {
    let anchor = prop_oneof![
        Just(0),
        Just(MODEL_BYTES),
        (0..MODEL_BYTES / 4096).prop_map(|page| page * 4096),
    ];
    let bytes = prop_oneof![
        0..9000_u64,
        (0..4_u64).prop_map(|n| n * 4096),
        0..MODEL_BYTES,
        Just(MODEL_BYTES)
    ];
    (anchor, -5000..5000_i64, bytes).prop_map(|(anchor, shift, bytes)| {
        let shift = if shift % 3 == 0 { 0 } else { shift };
        let offset = anchor.saturating_add_signed(shift).min(MODEL_BYTES - 1);
        (offset, bytes.min(MODEL_BYTES - offset))
    })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (range(), any::<u8>()).prop_map(|((offset, bytes), fill)| Change::Write {
            offset,
            bytes,
            fill
        }),
        range().prop_map(|(offset, bytes)| Change::Zero { offset, bytes }),
        range().prop_map(|(offset, bytes)| Change::Deallocate { offset, bytes }),
    ]
}

fn carry_out(device: &BlockDevice, model: &mut [u8], change: &Change) {
    let inside = |offset: u64, bytes: u64| offset as usize..(offset + bytes) as usize;
    match *change {
        Change::Write { offset, bytes, fill } => {
            let data: Vec<u8> = (0..bytes).map(|at| fill.wrapping_add(at as u8)).collect();
            device.write(offset, &data).unwrap();
            assert!(device.compare(offset, &data).unwrap());
            model[inside(offset, bytes)].copy_from_slice(&data);
        }
        Change::Zero { offset, bytes } => {
            device.write_zeroes(offset, bytes).unwrap();
            model[inside(offset, bytes)].fill(0);
        }
        Change::Deallocate { offset, bytes } => {
            device.deallocate(offset, bytes).unwrap();
            let first = offset.next_multiple_of(4096);
            let end = ((offset + bytes) / 4096 * 4096).max(first);
            model[inside(first, end - first)].fill(0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The device behaves like an array of bytes.
    #[test]
    fn behaves_as_an_array(
        changes in prop::collection::vec(change(), 1..12),
        (offset, bytes) in range(),
    ) {
        let (_, device) = device(MODEL_BYTES);
        let mut model = vec![0; MODEL_BYTES as usize];
        for change in &changes {
            carry_out(&device, &mut model, change);
        }
        let mut back = vec![0xee; MODEL_BYTES as usize];
        device.read(0, &mut back).unwrap();
        prop_assert!(back == model);
        let range = offset as usize..(offset + bytes) as usize;
        let mut part = vec![0xee; bytes as usize];
        device.read(offset, &mut part).unwrap();
        prop_assert!(part == model[range.clone()]);
        if let Some(last) = part.last_mut() {
            *last ^= 1;
            prop_assert!(!device.compare(offset, &part).unwrap());
        }

        // Extents that are not stored are zeros. Extents alternate and cover the range.
        let mut extents = [Extent::default(); 64];
        let filled = device.status(offset, bytes, &mut extents).unwrap();
        let mut at = offset;
        for pair in extents[..filled].windows(2) {
            prop_assert_ne!(pair[0].stored, pair[1].stored);
        }
        for extent in &extents[..filled] {
            let inside = at as usize..(at + extent.bytes) as usize;
            prop_assert!(extent.stored || model[inside].iter().all(|&byte| byte == 0));
            at += extent.bytes;
        }
        prop_assert!(at == offset + bytes || filled == extents.len());
    }
}
