//! Equal values of a sharing domain in one frame or cell, however they came there.

use std::sync::Arc;

use spillway_store::{
    Backing, Begun, ClientConfig, Config, Dedup, DiskConfig, Get, Key, PAGE_BYTES, Packer, PoolId,
    PoolSpec, Put, Scratch, SharedMemory, Store,
};
use spillway_test_support::random::noise;

const MIB: u64 = 1 << 20;
const COUNT: u32 = 1000;

/// Much larger than what is put, so that no bucket of the table of cells is full by chance.
fn config() -> Config {
    Config { dedup: Dedup::PerClient, ..Config::embedded(64 * MIB) }
}

fn member(store: &Store, domain: Option<u32>) -> PoolId {
    let config = ClientConfig { domain, ..ClientConfig::default() };
    let client = store.add_client(config).expect("client");
    store.create_pool(client, PoolSpec::PERSISTENT).expect("pool")
}

/// A page of which LZ4 leaves a little more than half.
fn packs(number: u32) -> Vec<u8> {
    let mut page = noise(number, PAGE_BYTES / 2);
    page.resize(PAGE_BYTES, 0);
    page
}

const fn key(number: u32) -> Key {
    Key::new(1, number)
}

/// Puts values, and gives the bytes of memory that they take.
fn fill(store: &Store, pool: PoolId, value: impl Fn(u32) -> Vec<u8>) -> u64 {
    let taken = || store.memory_bytes() - store.free_frame_bytes();
    let before = taken();
    let mut scratch = Scratch::new();
    for number in 0..COUNT {
        let put = store.put_compressed(pool, key(number), &value(number), &mut scratch);
        assert_eq!(put, Put::Stored, "{number}");
    }
    taken() - before
}

#[track_caller]
fn must_hold(store: &Store, pool: PoolId, value: impl Fn(u32) -> Vec<u8>) {
    let mut got = vec![0; 64 << 10];
    for number in 0..COUNT {
        let value = value(number);
        let hit = store.get(pool, key(number), &mut got).expect("get");
        assert_eq!(hit, Get::Hit(value.len()), "{number}");
        assert!(got[..value.len()] == value, "another value for {number}");
    }
}

fn flush(store: &Store, pool: PoolId) {
    (0..COUNT).for_each(|number| assert!(store.flush(pool, key(number)), "{number}"));
}

/// Looks at all values once, from the first to the last.
fn scan(store: &Store) -> SharedMemory {
    let mut packer = Packer::new();
    while store.scan_for_equals(100, &mut packer) >= 100 {}
    store.shared_memory().expect("it shares")
}

/// Of values that take so many bytes each: fills the pools of two members of a domain, one of another, and two of none. Only the second of the domain shares
/// with anybody, and each keeps what it has when others flush theirs. Those of no domain come first: what the store numbers is numbered alike then.
#[track_caller]
fn check_sharing(each_bytes: u64, value: impl Fn(u32) -> Vec<u8> + Copy) {
    let bytes = each_bytes * u64::from(COUNT);
    let store = Store::open(config()).expect("open");
    let [alone, also_alone] = [(); 2].map(|()| member(&store, None));
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let other = member(&store, Some(2));
    assert!(fill(&store, left, value) > bytes);
    let more = fill(&store, right, value);
    assert!(more < bytes / 4, "{more} bytes for what others have, which takes {bytes}");
    for pool in [other, alone, also_alone] {
        let more = fill(&store, pool, value);
        assert!(more > bytes * 3 / 4, "{more} bytes of {bytes}: shared across domains");
    }
    for (at, pool) in [left, other, right, alone, also_alone].into_iter().enumerate() {
        must_hold(&store, pool, value);
        flush(&store, pool);
        if at == 0 {
            must_hold(&store, right, value);
        }
    }
    store.trim();
    assert_eq!(store.compressed_pages(), 0);
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}

#[test]
fn packed_pages_share_cells() {
    check_sharing(PAGE_BYTES as u64 / 2, packs);
}

#[test]
fn values_of_a_quarter_of_a_kilobyte_and_more_share_cells() {
    check_sharing(1500, |number| noise(number, 1500));
    check_sharing(256, |number| noise(number, 256));
    let store = Store::open(config()).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let short = |number| noise(number, 255);
    fill(&store, left, short);
    assert!(
        fill(&store, right, short) > u64::from(COUNT) * 200,
        "no table has entries for so little"
    );
}

#[test]
fn the_pages_of_long_values_share_frames() {
    // As a blade has them that are sealed: a page, and a tag.
    check_sharing(PAGE_BYTES as u64, |number| noise(number, PAGE_BYTES + 28));
    // Their equal page may be a value of its own.
    let store = Store::open(config()).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let own = fill(&store, left, |number| noise(number, PAGE_BYTES));
    let long = |number| noise(number, PAGE_BYTES + 28);
    let more = fill(&store, right, long);
    assert!(more < own / 8, "{more} bytes, {own} for the pages");
    flush(&store, left);
    must_hold(&store, right, long);
}

#[test]
fn the_pages_of_values_that_come_in_parts_share_frames() {
    let store = Arc::new(Store::open(config()).expect("open"));
    let (left, right, other) =
        (member(&store, Some(1)), member(&store, Some(1)), member(&store, Some(2)));
    let value = |number| noise(number, 2 * PAGE_BYTES + 300);
    let taken = || store.memory_bytes() - store.free_frame_bytes();
    let fill_in_parts = |pool, count| {
        let before = taken();
        for number in 0..count {
            let value = value(number);
            let begun = store.begin_put(pool, key(number), value.len());
            let Begun::Put(mut put) = begun else { panic!("{begun:?}") };
            value.chunks(3000).for_each(|part| put.push(part));
            assert_eq!(put.publish(), Put::Stored, "{number}");
        }
        taken() - before
    };
    // The frames were others' before, and could be found then.
    let before = |number| noise(COUNT + number, PAGE_BYTES);
    fill(&store, left, before);
    flush(&store, left);
    let own = fill_in_parts(left, COUNT);
    let more = fill_in_parts(right, COUNT);
    assert!(more < own / 4, "{more} bytes, {own} for the first");
    assert!(fill_in_parts(other, COUNT / 10) > own / 12, "shared across domains");
    // One that is written where it lies finds those; so does one that is put in one piece, and the other way round.
    let written = member(&store, Some(1));
    let before = taken();
    for number in 0..COUNT {
        let value = value(number);
        let write = |at: usize, part: &mut [u8]| part.copy_from_slice(&value[at..at + part.len()]);
        let put = store.put_long(written, key(number), value.len(), write);
        assert_eq!(put, Put::Stored, "{number}");
    }
    assert!(taken() - before < own / 4, "{} bytes, {own} for the first", taken() - before);
    flush(&store, written);
    assert!(fill(&store, member(&store, Some(1)), value) < own / 4);
    flush(&store, left);
    must_hold(&store, right, value);
    flush(&store, right);
    (0..COUNT / 10).for_each(|number| assert!(store.flush(other, key(number))));
}

#[test]
fn frames_that_are_used_again_are_found_by_what_they_hold_then() {
    let store = Store::open(config()).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let later = |round: u32| move |number| noise(number + round * COUNT, PAGE_BYTES);
    for round in 0..4 {
        // One at a time, so that each finds the frame of the one before at hand; then all at once.
        for number in 0..COUNT {
            assert_eq!(store.put(left, key(number), &later(round)(number)), Put::Stored);
            assert!(store.flush(left, key(number)));
        }
        let own = fill(&store, left, later(round));
        let more = fill(&store, right, later(round));
        assert!(more < own / 8, "{more} bytes in round {round}, {own} for the first");
        must_hold(&store, left, later(round));
        flush(&store, left);
        must_hold(&store, right, later(round));
        flush(&store, right);
    }
}

#[test]
fn equal_content_of_another_kind_is_not_taken_for_it() {
    let store = Store::open(config()).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    fill(&store, left, packs);
    // What the packed page is, as a value; and a value whose beginning another one is.
    let mut table = spillway_tiers::lz4::Table::default();
    let mut packed = [0; spillway_tiers::lz4::PACKED_BYTES];
    let page: [u8; PAGE_BYTES] = packs(7).try_into().expect("a page");
    let length = spillway_tiers::lz4::pack(&page, &mut packed, &mut table);
    let value = move |number: u32| packed[..length - number as usize % 2].to_vec();
    fill(&store, right, value);
    must_hold(&store, right, value);
    flush(&store, left);
    must_hold(&store, right, value);
}

#[test]
fn pages_that_are_packed_later_share_cells_then() {
    let store = Store::open(config()).expect("open");
    // Equal ones arrived when the others were packed already, so no frame of them was found.
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let own = fill(&store, left, packs);
    for number in 0..COUNT {
        assert_eq!(store.put(right, key(number), &packs(number)), Put::Stored);
    }
    let taken = || store.memory_bytes() - store.free_frame_bytes();
    let before = taken();
    assert_eq!(store.demote(COUNT as usize, &mut Scratch::new()), COUNT as usize);
    assert_eq!(store.compressed_pages(), 2 * u64::from(COUNT));
    let less = before - taken();
    let frames = u64::from(COUNT) * PAGE_BYTES as u64;
    assert!(less > frames - own / 8, "{less} bytes of {frames}");
    must_hold(&store, left, packs);
    must_hold(&store, right, packs);
}

#[test]
fn the_scan_finds_what_arrival_left_apart() {
    let store = Store::open(config()).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let other = member(&store, Some(2));
    let own = fill(&store, left, packs);
    for pool in [right, other] {
        for number in 0..COUNT {
            assert_eq!(store.put(pool, key(number), &packs(number)), Put::Stored);
        }
    }
    let found = scan(&store);
    assert_eq!(found.merged_values, u64::from(COUNT), "those of one domain");
    assert_eq!(store.compressed_pages(), 2 * u64::from(COUNT));
    // The next one counts all that share now.
    let found = scan(&store);
    assert_eq!((found.values, found.merged_values), (2 * u64::from(COUNT), u64::from(COUNT)));
    let saved = found.saved_bytes;
    assert!((own * 3 / 4..own * 5 / 4).contains(&saved), "{saved} bytes of {own}");
    for pool in [left, right, other] {
        must_hold(&store, pool, packs);
        flush(&store, pool);
    }
    assert_eq!(scan(&store).values, 0);
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}

#[test]
fn packed_pages_that_the_scan_merges_are_counted_as_before() {
    // The table has no entry for most of what it packs, so equal ones are left apart at arrival.
    let store = Store::open(Config { dedup: Dedup::PerClient, ..Config::embedded(2 * MIB) });
    let store = store.expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let packs_well = |number| {
        let mut page = noise(number, 512);
        page.resize(PAGE_BYTES, 0);
        page
    };
    fill(&store, left, packs_well);
    fill(&store, right, packs_well);
    let both = 2 * u64::from(COUNT);
    assert_eq!(store.compressed_pages(), both);
    let merged = scan(&store).merged_values;
    assert!(merged > 100, "{merged} of {COUNT}");
    assert_eq!(store.compressed_pages(), both);
    for pool in [left, right] {
        must_hold(&store, pool, packs_well);
        flush(&store, pool);
    }
    assert_eq!(store.compressed_pages(), 0);
}

#[test]
fn each_that_shares_saves_its_part_however_many_they_are() {
    let store = Store::open(config()).expect("open");
    let value = |number| noise(number, PAGE_BYTES);
    let frames = u64::from(COUNT) * PAGE_BYTES as u64;
    for holders in 1..=5_u64 {
        fill(&store, member(&store, Some(1)), value);
        scan(&store);
        let found = scan(&store);
        let values = if holders == 1 { 0 } else { holders * u64::from(COUNT) };
        assert_eq!(found.values, values, "{holders} holders");
        let expected = (holders - 1) * frames;
        let off = found.saved_bytes.abs_diff(expected);
        assert!(off <= holders * u64::from(COUNT), "{holders} holders save {}", found.saved_bytes);
    }
}

#[test]
fn the_scan_leaves_ephemeral_values_alone() {
    let store = Store::open(config()).expect("open");
    let kept = member(&store, Some(1));
    let config = ClientConfig { domain: Some(1), ..ClientConfig::default() };
    let client = store.add_client(config).expect("client");
    let dropped = store.create_pool(client, PoolSpec::EPHEMERAL).expect("pool");
    let value =
        |number: u32| noise(number, if number.is_multiple_of(2) { PAGE_BYTES } else { 1500 });
    for pool in [dropped, kept, dropped] {
        fill(&store, pool, value);
        scan(&store);
    }
    let found = scan(&store);
    assert_eq!((found.values, found.merged_values), (0, 0));
    // All of them can be dropped, and go alone.
    let before = store.memory_bytes() - store.free_frame_bytes();
    store.set_target(client, 0).expect("target");
    while store.evict_beyond_target(client, 100).expect("evict") != 0 {}
    assert_eq!(store.statistics(client).expect("statistics").used_pages, 0);
    let less = before - (store.memory_bytes() - store.free_frame_bytes());
    assert!(less > u64::from(COUNT) * 2500, "{less} bytes");
    must_hold(&store, kept, value);
}

#[test]
fn the_scan_says_what_cant_be_equal() {
    let store = Store::open(config()).expect("open");
    let pool = member(&store, None);
    let lengths = [PAGE_BYTES, 4095, 255, 256, PAGE_BYTES + 16, PAGE_BYTES + 28, PAGE_BYTES + 32];
    let value = |number: u32| match lengths.get(number as usize % 8) {
        Some(&length) => noise(number, length),
        // It takes no memory.
        None => vec![7; PAGE_BYTES],
    };
    fill(&store, pool, value);
    let (count, found) = (u64::from(COUNT) / 8, scan(&store));
    assert_eq!(found.scanned_values, 7 * count);
    assert_eq!((found.unfit_values, found.sealed_values), (2 * count, count));
    assert_eq!(found.values, 0);
    flush(&store, pool);
    assert_eq!(scan(&store).scanned_values, 0);
}

#[test]
fn the_scan_goes_on_where_it_ended_and_looks_at_no_more_than_it_is_told() {
    let store = Store::open(config()).expect("open");
    let pool = member(&store, None);
    fill(&store, pool, packs);
    let mut packer = Packer::new();
    let (mut calls, mut seen) = (0, 0);
    loop {
        let looked_at = store.scan_for_equals(64, &mut packer);
        // A leaf is looked at as a whole.
        assert!(looked_at < 128, "{looked_at}");
        (calls, seen) = (calls + 1, seen + looked_at);
        if looked_at < 64 {
            break;
        }
    }
    assert_eq!(seen, COUNT as usize);
    assert!(calls > 4, "{calls}");
    let off = Store::open(Config::embedded(16 * MIB)).expect("open");
    let pool = member(&off, None);
    fill(&off, pool, packs);
    assert_eq!(off.scan_for_equals(64, &mut packer), 0, "nothing is to be found");
    assert_eq!(off.shared_memory(), None);
}

#[test]
fn who_is_left_with_a_page_that_was_shared_can_move_it_down() {
    let dir = std::env::temp_dir();
    let disk = Some(DiskConfig::new(dir, 64 * MIB));
    for value in [packs, |number| noise(number, PAGE_BYTES)] {
        let config = Config { disk: disk.clone(), backing: Backing::Memfd, ..config() };
        let store = Store::open(config).expect("open");
        let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
        fill(&store, left, value);
        fill(&store, right, value);
        store.set_capacity(2 * MIB, 0);
        let soon = || std::time::Instant::now() + std::time::Duration::from_secs(30);
        assert!(!store.shrink(soon(), &mut Scratch::new()), "pages that two have stay");
        assert_eq!(store.disk_bytes(), 0);
        flush(&store, left);
        scan(&store);
        assert!(store.shrink(soon(), &mut Scratch::new()), "{} bytes", store.memory_bytes());
        assert!(store.disk_bytes() > MIB);
        must_hold(&store, right, value);
    }
}

#[test]
fn pages_behind_many_that_are_shared_go_however_little_is_wanted() {
    let disk = Some(DiskConfig::new(std::env::temp_dir(), 64 * MIB));
    let config = Config { disk, backing: Backing::Memfd, ..config() };
    let store = Store::open(config).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let page = |number| noise(number, PAGE_BYTES);
    // The coldest of all, and only their last ones can go.
    fill(&store, left, page);
    fill(&store, right, page);
    let own = member(&store, None);
    fill(&store, own, page);
    let soon = std::time::Instant::now() + std::time::Duration::from_secs(30);
    // Free frames go first.
    while store.disk_bytes() == 0 {
        store.set_capacity(store.memory_bytes() - 64 * PAGE_BYTES as u64, 0);
        assert!(store.shrink(soon, &mut Scratch::new()), "{} bytes", store.memory_bytes());
    }
    [left, right, own].into_iter().for_each(|pool| must_hold(&store, pool, page));
}

#[test]
fn a_page_that_is_packed_into_another_s_cell_takes_no_second_place_on_a_list() {
    let disk = Some(DiskConfig::new(std::env::temp_dir(), 64 * MIB));
    let config = Config { disk, backing: Backing::Memfd, ..config() };
    let store = Store::open(config).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    fill(&store, left, packs);
    for number in 0..COUNT {
        assert_eq!(store.put(right, key(number), &packs(number)), Put::Stored);
    }
    assert_eq!(store.demote(COUNT as usize, &mut Scratch::new()), COUNT as usize);
    // The lists are whole: what those who were first in them leave, here and there, can go down to the last page.
    let odd_first = (0..COUNT).filter(|number| number % 2 == 1).chain((0..COUNT).step_by(2));
    odd_first.for_each(|number| assert!(store.flush(left, key(number))));
    scan(&store);
    let bytes = u64::from(COUNT) * PAGE_BYTES as u64;
    let soon = std::time::Instant::now() + std::time::Duration::from_secs(30);
    // More than there is, so that it ends when nothing can go any more.
    store.set_capacity(0, 0);
    assert!(!store.shrink(soon, &mut Scratch::new()));
    assert_eq!(store.disk_bytes(), bytes);
    must_hold(&store, right, packs);
    flush(&store, right);
    assert_eq!((store.compressed_pages(), store.disk_bytes()), (0, 0));
}

#[test]
fn cells_that_packed_pages_share_are_no_pages_that_can_go() {
    let dir = std::env::temp_dir();
    let disk = Some(DiskConfig::new(dir, 64 * MIB));
    let store = Store::open(Config { disk, backing: Backing::Memfd, ..config() }).expect("open");
    let (left, right) = (member(&store, Some(1)), member(&store, Some(1)));
    let own = fill(&store, left, packs);
    let free = store.fixed_bytes();
    assert_eq!(free, 0, "the disk takes all");
    fill(&store, right, packs);
    let fixed = store.fixed_bytes();
    assert!((own..3 * own).contains(&fixed), "{fixed} bytes: each entry counts, which takes {own}");
}

/// A packed page, a value of its own or a long one.
fn mixed(number: u32) -> Vec<u8> {
    match number % 3 {
        0 => packs(number),
        1 => noise(number, 1500),
        _ => noise(number, PAGE_BYTES + 28),
    }
}

fn taken(store: &Store) -> u64 {
    store.memory_bytes() - store.free_frame_bytes()
}

/// A store that two members of a domain filled with the same values, opened again with this setting; their pools, and the bytes
/// that it took before.
fn opened_again(dedup: Dedup) -> (Store, [PoolId; 2], u64) {
    let config = Config { backing: Backing::Memfd, ..config() };
    let store = Store::open(config.clone()).expect("open");
    let pools = [(); 2].map(|()| member(&store, Some(1)));
    for pool in pools {
        fill(&store, pool, mixed);
    }
    let before = taken(&store);
    let kept = store.kept_descriptors().expect("memfds");
    let kept = kept.map(|(_, file)| file.try_clone_to_owned().expect("duplicate"));
    drop(store);
    (Store::reopen(Config { dedup, ..config }, kept).expect("reopen"), pools, before)
}

/// Each pool has its values until it flushes them, and then nothing is left.
#[track_caller]
fn must_hold_to_the_end(store: &Store, pools: &[PoolId]) {
    for &pool in pools {
        must_hold(store, pool, mixed);
        flush(store, pool);
    }
    store.trim();
    assert!(store.memory_bytes() < MIB, "{} bytes are left", store.memory_bytes());
}

#[test]
fn a_store_that_is_opened_again_shares_as_before() {
    let (store, [left, right], before) = opened_again(Dedup::PerClient);
    let after = taken(&store);
    assert!(after.abs_diff(before) < MIB / 2, "{before} bytes before, {after} after");
    let third = member(&store, Some(1));
    let more = fill(&store, third, mixed);
    assert!(more < before / 8, "{more} bytes for what is there already");
    let found = (scan(&store), scan(&store)).1;
    assert_eq!(found.merged_values, 0, "all was found at arrival");
    assert_eq!(found.values, 3 * u64::from(COUNT));
    must_hold_to_the_end(&store, &[left, third, right]);
}

#[test]
fn a_store_that_is_opened_again_to_share_no_more_keeps_what_is_shared() {
    let (store, pools, _) = opened_again(Dedup::Off);
    assert_eq!(store.shared_memory(), None);
    must_hold_to_the_end(&store, &pools);
}

#[test]
fn writes_to_shared_pages_never_show_through_and_are_counted() {
    let store = Store::open(config()).expect("open");
    let pools = [member(&store, Some(1)), member(&store, Some(1))];
    let mut model = pools.map(|pool| {
        fill(&store, pool, packs);
        (0..COUNT).map(|number| (number, 0)).collect::<Vec<_>>()
    });
    // Every third value is no page that packs, and every ninth is long.
    let value = |(number, generation): (u32, u32)| match (number + generation) % 9 {
        0 => noise(number % 50 + generation % 3, PAGE_BYTES + 28),
        3 | 6 => noise(number % 50 + generation % 3, PAGE_BYTES),
        _ => packs(number % 50 + generation % 3),
    };
    let mut scratch = Scratch::new();
    let mut packer = Packer::new();
    let mut state = 7_u32;
    for turn in 0..10_000_u32 {
        state = state.wrapping_mul(0x915f_77f5).wrapping_add(1);
        let (at, number) = ((state >> 16) as usize % 2, state >> 8 & 0xffff);
        let (number, generation) = (number % COUNT, 1 + turn);
        let written = value((number, generation));
        // What is refused is gone, and is the client's own: nothing of another goes.
        let put = match turn % 3 {
            0 => store.put(pools[at], key(number), &written),
            _ => store.put_compressed(pools[at], key(number), &written, &mut scratch),
        };
        assert_eq!(put, Put::Stored);
        model[at][number as usize] = (number, generation);
        store.scan_for_equals(usize::from(turn % 2 == 0) * 3, &mut packer);
        if turn % 500 == 0 {
            store.demote(100, &mut scratch);
        }
    }
    for (pool, model) in pools.into_iter().zip(&model) {
        must_hold(&store, pool, |number| match model[number as usize] {
            (number, 0) => packs(number),
            written => value(written),
        });
    }
    let shared = scan(&store);
    assert!((1000..10_000).contains(&shared.unshared_values), "{shared:?}");
}
