//! Writes to shared values in a store that is full: each is stored, or refused and gone, and nothing of others changes.

use spillway_store::{
    ClientConfig, Config, Dedup, Get, Key, PAGE_BYTES, Packer, PoolId, PoolSpec, Put, Refusal,
    Scratch, Store,
};
use spillway_test_support::random::noise;

const COUNT: u32 = 1000;

fn member(store: &Store, domain: Option<u32>) -> PoolId {
    let config = ClientConfig { domain, ..ClientConfig::default() };
    let client = store.add_client(config).expect("client");
    store.create_pool(client, PoolSpec::PERSISTENT).expect("pool")
}

const fn key(number: u32) -> Key {
    Key::new(1, number)
}

/// What all members put first: a page that packs, one that does not, or a value longer than a page.
fn common(number: u32) -> Vec<u8> {
    value(number, 0, 0)
}

fn value(number: u32, writer: u32, generation: u32) -> Vec<u8> {
    let seed = number + COUNT * (writer + 4 * generation);
    match number % 3 {
        0 => noise(seed, PAGE_BYTES),
        1 => [noise(seed, PAGE_BYTES / 2), vec![0; PAGE_BYTES / 2]].concat(),
        _ => noise(seed, PAGE_BYTES + 28),
    }
}

fn got(store: &Store, pool: PoolId, key: Key) -> Option<Vec<u8>> {
    let mut value = vec![0; 2 * PAGE_BYTES];
    match store.get(pool, key, &mut value).expect("get") {
        Get::Hit(length) => Some(value[..length].to_vec()),
        Get::Miss => None,
        Get::Short(length) => panic!("{length} bytes"),
    }
}

/// Puts values of its own until none is taken; gives how many were.
fn fill_up(store: &Store, pool: PoolId) -> u32 {
    let own = |number| noise(number + 1_000_000, PAGE_BYTES);
    let count = (0..).find(|&number| store.put(pool, key(number), &own(number)) != Put::Stored);
    let count = count.expect("the store ends");
    // Nor is anything shorter.
    let short = |number| noise(number + 2_000_000, 300);
    let is_full = |number| store.put(pool, Key::new(2, number), &short(number)) != Put::Stored;
    assert!((0..10_000).any(is_full));
    count
}

/// Writes two new values to each key. Gives which keys have the last one, the others have none, and how many puts were
/// refused.
fn burst(store: &Store, pool: PoolId, writer: u32) -> (Vec<bool>, u32) {
    let (mut scratch, mut refused) = (Scratch::new(), 0);
    let mut is_stored = vec![false; COUNT as usize];
    for generation in 1..=2 {
        for number in 0..COUNT {
            let written = value(number, writer, generation);
            let put = match number % 2 {
                0 => store.put(pool, key(number), &written),
                _ => store.put_compressed(pool, key(number), &written, &mut scratch),
            };
            assert!(
                matches!(put, Put::Stored | Put::Refused(Refusal::NodeFull)),
                "{number}: {put:?}"
            );
            is_stored[number as usize] = put == Put::Stored;
            refused += u32::from(put != Put::Stored);
        }
    }
    (is_stored, refused)
}

#[test]
fn a_burst_of_writes_to_shared_values_in_a_full_store_loses_nothing_of_others() {
    let config = Config { dedup: Dedup::PerClient, ..Config::embedded(16 << 20) };
    let store = Store::open(config).expect("open");
    let [left, right, witness] = [(); 3].map(|()| member(&store, Some(1)));
    let mut scratch = Scratch::new();
    for pool in [left, right, witness] {
        // Half of the values have no third holder, so their memory comes free in the burst.
        for number in (0..COUNT).filter(|number| pool != witness || number % 2 == 0) {
            let put = store.put_compressed(pool, key(number), &common(number), &mut scratch);
            assert_eq!(put, Put::Stored);
        }
    }
    let mut packer = Packer::new();
    while store.scan_for_equals(100, &mut packer) >= 100 {}
    let filler = member(&store, None);
    let filled = fill_up(&store, filler);

    // Two at once, beside a scan.
    let bursts = std::thread::scope(|scope| {
        let store = &store;
        let bursts = [(left, 1), (right, 2)]
            .map(|(pool, writer)| scope.spawn(move || burst(store, pool, writer)));
        while bursts.iter().any(|burst| !burst.is_finished()) {
            store.scan_for_equals(100, &mut packer);
        }
        bursts.map(|burst| burst.join().expect("a burst"))
    });

    let refused: u32 = bursts.iter().map(|(_, refused)| refused).sum();
    assert!((COUNT / 2..4 * COUNT).contains(&refused), "{refused} puts were refused");
    for ((pool, writer), (is_stored, _)) in [(left, 1), (right, 2)].into_iter().zip(&bursts) {
        for number in 0..COUNT {
            let expected = is_stored[number as usize].then(|| value(number, writer, 2));
            assert!(got(&store, pool, key(number)) == expected, "{number} of {writer}");
        }
    }
    for number in (0..COUNT).step_by(2) {
        assert!(got(&store, witness, key(number)) == Some(common(number)), "{number}");
    }
    for number in 0..filled {
        let own = noise(number + 1_000_000, PAGE_BYTES);
        assert!(got(&store, filler, key(number)) == Some(own), "{number} of the filler");
    }
}
