//! The cache over embedded stores and over a ring.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_cache::{
    Batches, Body, Cache, Error, Get, KEY_BYTES_MAX, Kind, Memory, Options, Put, Record, Settings,
};
use spillway_client::{Key, Pool, PoolSpec};
use spillway_ring::{Config, Server};
use spillway_store::{ClientConfig, Store};
use spillway_test_support::access::OneClient;
use spillway_test_support::random::noise;
use spillway_test_support::wait::until;
use spillway_types::Limits;

/// Limits of all connections of a test.
const LIMITS: Limits = Limits { connections_max: 256, operations_max: 1 << 16, bytes_max: 2 << 30 };

/// A ring's server in this process.
struct Daemon {
    server: Option<Server>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Daemon {
    fn start(capacity_bytes: u64) -> Self {
        let store = Store::open(spillway_store::Config::embedded(capacity_bytes)).expect("a store");
        let client = store.add_client(ClientConfig::default()).expect("a client");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring.sock");
        let listener = Server::bind(&path).expect("a socket");
        let door = Arc::new(OneClient::new(client).with_limits(LIMITS));
        let server = Server::start(listener, Arc::new(store), door, Config::default());
        Self { server: Some(server.expect("a server")), path, _folder: folder }
    }

    fn url(&self) -> String {
        format!("ring:{}", self.path.display())
    }
}

fn open(url: &str) -> Cache {
    Cache::open(url, &Options::default()).expect("a cache")
}

fn put(cache: &Cache, key: &[u8], value: &[u8]) -> bool {
    cache.put(&[Put { key, value }]).remove(0).expect("a put")
}

/// The value under a key.
fn get(cache: &Cache, key: &[u8]) -> Option<Vec<u8>> {
    let found = cache.look_up(&[key]).remove(0).expect("a look")?;
    let mut room = vec![0; found.length() as usize];
    let whole = cache.fetch(&mut [(&found, &mut room)]).remove(0).expect("a fetch");
    whole.then_some(room)
}

const LENGTHS: [usize; 8] =
    [0, 1, 4000, 4064, 5000, 256 << 10, (256 << 10) + 1, (1 << 20) + 12_345];

#[test]
fn values_of_all_lengths_come_back_whole() {
    let daemon = Daemon::start(256 << 20);
    for url in ["embed:?capacity=256M", &daemon.url()] {
        let cache = open(url);
        for (number, bytes) in LENGTHS.into_iter().chain([17 << 20]).enumerate() {
            for key in [vec![number as u8], vec![number as u8; 5000], vec![1; 70_000]] {
                let value = noise(number as u64, bytes);
                assert!(put(&cache, &key, &value), "{url}: {bytes}");
                assert_eq!(get(&cache, &key).as_deref(), Some(&*value), "{url}: {bytes}");
                assert!(cache.exists(&[&key])[0].as_ref().is_ok_and(|there| *there));
                assert!(cache.delete(&[&key])[0].as_ref().is_ok_and(|there| *there));
                assert_eq!(get(&cache, &key), None);
            }
        }
        assert!(put(&cache, b"", b"of the empty key"));
        assert_eq!(get(&cache, b"").as_deref(), Some(&b"of the empty key"[..]));
        let long = cache.put(&[Put { key: &vec![0; KEY_BYTES_MAX + 1], value: b"" }]).remove(0);
        assert!(matches!(long, Err(Error::Key(_))));
    }
}

#[test]
fn a_short_buffer_is_an_error_with_both_lengths() {
    let cache = open("embed:");
    for bytes in [100, 1 << 20] {
        assert!(put(&cache, b"key", &noise(1_u64, bytes)));
        let mut room = vec![7; 99];
        let got = cache.get(&mut [Get { key: b"key", room: &mut room }]).remove(0);
        let text = got.expect_err("too short").to_string();
        assert_eq!(text, format!("the value has {bytes} bytes and the buffer 99"));
        assert_eq!(room, [7; 99]);
    }
}

/// Puts an entry into the store directly.
fn store_entry(store: &dyn spillway_client::Store, pool: Pool, key: Key, value: &[u8]) {
    assert_eq!(store.put(pool, key, value).expect("a put"), spillway_client::Put::Stored);
}

/// The remains of a writer that was killed while it put a long value.
#[test]
fn what_a_killed_writer_left_is_a_miss_and_goes_with_the_key() {
    for takes_over in [true, false] {
        let store = spillway_client::open("embed:?capacity=64M").expect("a store");
        let pool = store.open_pool(PoolSpec::PERSISTENT).expect("a pool");
        store_entry(&*store, pool, Key::new(0, u32::MAX), b"SPKN\x01\0default");
        let object = twox_hash::XxHash3_64::oneshot(b"key");
        // The pending record of a value of 600 KiB, in parts of 256 KiB with version 5. Two parts are stored.
        let mut record = b"SPKV\x01\0\x02\0\x03\0\0\0\x05\0\0\0".to_vec();
        record.extend((600_u64 << 10).to_le_bytes());
        record.extend((256_u32 << 10).to_le_bytes());
        record.extend(b"\0\0\0\0key");
        store_entry(&*store, pool, Key::new(object, 0), &record);
        for part in 0..2 {
            store_entry(&*store, pool, Key::new(object, 5 << 6 | part), &noise(1_u64, 256 << 10));
        }
        let cache = Cache::over(store, &Options::default()).expect("a cache");
        let used = || cache.statistics().expect("counters").used_pages;
        assert!(used() > 128);
        assert_eq!(get(&cache, b"key"), None);
        assert!(!cache.exists(&[b"key"]).remove(0).expect("an answer"));
        if takes_over {
            assert!(put(&cache, b"key", b"short"));
            assert_eq!(get(&cache, b"key").as_deref(), Some(&b"short"[..]));
        } else {
            assert!(!cache.delete(&[b"key"]).remove(0).expect("an answer"));
        }
        assert!(used() < 4, "{} pages are left", used());
    }
}

#[test]
fn another_keys_record_is_neither_given_nor_replaced() {
    let store = spillway_client::open("embed:").expect("a store");
    let other = b"another key of the same hash".to_vec();
    let mut record = Vec::new();
    Record { key: &other, body: Body::Inline(b"its value") }.encode(&mut record);
    let pool = store.open_pool(PoolSpec::PERSISTENT).expect("a pool");
    // The name of the pool, as an earlier cache wrote it.
    store_entry(&*store, pool, Key::new(0, u32::MAX), b"SPKN\x01\0default");
    let object = twox_hash::XxHash3_64::oneshot(b"key");
    store_entry(&*store, pool, Key::new(object, 0), &record);
    let cache = Cache::over(store, &Options::default()).expect("a cache");
    for bytes in [3, 1 << 20] {
        assert!(!put(&cache, b"key", &noise(1_u64, bytes)));
        assert_eq!(get(&cache, b"key"), None);
        assert!(!cache.exists(&[b"key"]).remove(0).expect("an answer"));
        assert!(!cache.delete(&[b"key"]).remove(0).expect("an answer"));
    }
    let kept = cache.look_up(&[b"key"]).remove(0);
    assert!(kept.expect("a look").is_none());
}

#[test]
fn a_record_that_is_none_is_an_error() {
    let store = spillway_client::open("embed:").expect("a store");
    let pool = store.open_pool(PoolSpec::PERSISTENT).expect("a pool");
    store_entry(&*store, pool, Key::new(0, u32::MAX), b"SPKN\x01\0default");
    let object = twox_hash::XxHash3_64::oneshot(b"key");
    store_entry(&*store, pool, Key::new(object, 0), b"no record");
    let cache = Cache::over(store, &Options::default()).expect("a cache");
    assert!(matches!(cache.exists(&[b"key"]).remove(0), Err(Error::Malformed(_))));
    assert!(matches!(cache.look_up(&[b"key"]).remove(0), Err(Error::Malformed(_))));
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_promised() {
    let daemon = Daemon::start(32 << 20);
    for url in ["embed:?capacity=32M", &daemon.url()] {
        let cache = open(url);
        let key = |number: u64| number.to_le_bytes();
        let stored: Vec<bool> = (0..64_u64)
            .map(|number| put(&cache, &key(number), &noise(number, 700 << 10)))
            .collect();
        let count = stored.iter().filter(|stored| **stored).count();
        assert!((30..60).contains(&count), "{url}: {count} values fit");
        for (number, stored) in stored.iter().enumerate() {
            let expected = stored.then(|| noise(number as u64, 700 << 10));
            assert!(get(&cache, &key(number as u64)) == expected, "{url}: {number}");
        }
        let keys: Vec<_> = (0..64).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let removed = cache.delete(&keys).into_iter().filter(|one| matches!(one, Ok(true))).count();
        assert_eq!(removed, count);
        // Refused puts leave nothing behind: the same number of values fits again.
        let again =
            (0..count as u64).filter(|&n| put(&cache, &key(n), &noise(n, 700 << 10))).count();
        assert_eq!(again, count, "{url}");
        cache.clear().expect("cleared");
        assert_eq!(cache.prefix(&keys).expect("an answer"), 0);
    }
}

#[test]
fn one_call_takes_more_keys_than_a_group_has() {
    let cache = open("embed:?capacity=64M");
    let keys: Vec<_> = (0..9000_u64).map(u64::to_le_bytes).collect();
    let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let puts: Vec<_> = names.iter().map(|&key| Put { key, value: key }).collect();
    let all = |done: Vec<Result<bool, Error>>| done.into_iter().all(|one| matches!(one, Ok(true)));
    assert!(all(cache.put(&puts)));
    assert!(all(cache.exists(&names)));
    assert_eq!(cache.prefix(&names).expect("an answer"), names.len());
    for &name in names.iter().step_by(500).chain(names.last()) {
        assert_eq!(get(&cache, name).as_deref(), Some(name));
    }
    assert!(all(cache.delete(&names)));
    assert_eq!(cache.prefix(&names).expect("an answer"), 0);
}

#[test]
fn clear_removes_all_values_however_many_there_are() {
    let cache = open("embed:?capacity=64M");
    let keys: Vec<_> = (0..10_000_u32).map(u32::to_le_bytes).collect();
    let puts: Vec<_> = keys.iter().map(|key| Put { key, value: b"short" }).collect();
    assert!(cache.put(&puts).into_iter().all(|put| matches!(put, Ok(true))));
    cache.clear().expect("cleared");
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    assert!(cache.exists(&keys).into_iter().all(|there| matches!(there, Ok(false))));
}

#[test]
fn all_who_open_a_name_at_the_same_time_have_one_pool() {
    let daemon = Daemon::start(64 << 20);
    for round in 0..40 {
        let options = Options { name: format!("name {round}"), ..Options::default() };
        let threads: Vec<_> = (0..4_u8)
            .map(|number| {
                let (url, options) = (daemon.url(), options.clone());
                thread::spawn(move || {
                    let cache = Cache::open(&url, &options).expect("a cache");
                    assert!(put(&cache, &[number], &[number; 9]));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
        let cache = Cache::open(&daemon.url(), &options).expect("a cache");
        let keys: [&[u8]; 4] = [&[0], &[1], &[2], &[3]];
        assert_eq!(cache.prefix(&keys).expect("an answer"), 4, "round {round}");
    }
    let store = spillway_client::open(&daemon.url()).expect("a store");
    assert_eq!(store.pools().expect("pools").len(), 40);
}

/// Several writers of one key. Readers see one of the values or none, never a mix.
#[test]
fn writers_of_one_key_never_mix() {
    let daemon = Daemon::start(128 << 20);
    let values: Vec<Vec<u8>> = (0..2_u64).map(|seed| noise(seed, 3 << 20)).collect();
    let stop = AtomicBool::new(false);
    let hits = thread::scope(|scope| {
        for value in &values {
            scope.spawn(|| {
                let cache = open(&daemon.url());
                while !stop.load(Ordering::Relaxed) {
                    assert!(put(&cache, b"key", value));
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (cache, mut hits) = (open(&daemon.url()), 0);
                    let mut room = vec![0; 3 << 20];
                    let end = Instant::now() + Duration::from_secs(2);
                    while Instant::now() < end {
                        let mut gets = [Get { key: b"key", room: &mut room }];
                        if cache.get(&mut gets).remove(0).expect("a get").is_some() {
                            assert!(values.contains(&room), "mixed");
                            hits += 1;
                        }
                    }
                    hits
                })
            })
            .collect();
        let hits: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        // Set even if a reader panicked: the scope waits for the writers.
        stop.store(true, Ordering::Relaxed);
        hits.into_iter().map(|hits| hits.expect("a reader")).sum::<u32>()
    });
    println!("{hits} values were seen");
    // Concurrent puts may have left parts that no record refers to.
    let (cache, store) =
        (open(&daemon.url()), spillway_client::open(&daemon.url()).expect("a store"));
    assert!(cache.delete(&[b"key"]).remove(0).is_ok());
    assert_eq!(store.pools().expect("pools")[0].pages, 1, "the name alone");
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<(u8, u8)>),
    Get(u8),
    Prefix(Vec<u8>),
    Delete(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || prop::collection::vec(0..8_u8, 0..6);
    prop_oneof![
        prop::collection::vec((0..8_u8, 0..LENGTHS.len() as u8), 0..6).prop_map(Step::Put),
        (0..8_u8).prop_map(Step::Get),
        keys().prop_map(Step::Prefix),
        keys().prop_map(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_cache_is_a_map(steps in prop::collection::vec(step(), 1..12)) {
        let cache = open("embed:?capacity=256M");
        let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
        for (turn, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(pairs) => {
                    let put = |&(key, length): &(u8, u8)| {
                        ([key], noise(turn as u64, LENGTHS[usize::from(length)]))
                    };
                    let puts: Vec<_> = pairs.iter().map(put).collect();
                    let puts: Vec<_> =
                        puts.iter().map(|(key, value)| Put { key, value }).collect();
                    let all = cache.put(&puts).into_iter().all(|put| matches!(put, Ok(true)));
                    prop_assert!(all);
                    model.extend(puts.iter().map(|put| (put.key[0], put.value.to_vec())));
                }
                Step::Get(key) => {
                    prop_assert!(get(&cache, &[key]) == model.get(&key).cloned(), "key {key}");
                }
                Step::Prefix(keys) => {
                    let expected = keys.iter().take_while(|key| model.contains_key(key)).count();
                    let keys: Vec<_> = keys.iter().map(|key| [*key]).collect();
                    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                    prop_assert_eq!(cache.prefix(&keys).unwrap(), expected);
                }
                Step::Delete(mut keys) => {
                    keys.sort_unstable();
                    keys.dedup();
                    let names: Vec<_> = keys.iter().map(|key| [*key]).collect();
                    let names: Vec<&[u8]> = names.iter().map(|key| &key[..]).collect();
                    for (key, removed) in keys.iter().zip(cache.delete(&names)) {
                        prop_assert_eq!(removed.unwrap(), model.remove(key).is_some());
                    }
                }
            }
        }
    }
}

/// A value's memory, owned by the batch.
#[derive(Debug, PartialEq, Eq)]
struct Own(Vec<u8>);

impl Memory for Own {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

fn settings() -> Settings {
    let options = Options { timeout: Duration::from_secs(2), ..Options::default() };
    Settings { options, threads: 2, waiting_max: 64, deadline: Duration::from_secs(2) }
}

/// Waits for `count` answers.
fn answers(batches: &Batches<Own>, count: usize) -> Vec<spillway_cache::Completion<Own>> {
    let mut done = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while done.len() < count {
        let fd = batches.event_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).expect("a poll");
        done.extend(batches.drain());
        assert!(Instant::now() < end, "{} of {count} answers", done.len());
    }
    done.sort_unstable_by_key(|one| one.id);
    done
}

fn keys(range: std::ops::Range<u8>) -> Vec<Vec<u8>> {
    range.map(|number| vec![number]).collect()
}

#[test]
fn batches_are_answered_on_a_descriptor() {
    let daemon = Daemon::start(64 << 20);
    let mut batches = Batches::open(&daemon.url(), settings()).expect("batches");
    let values = |range: std::ops::Range<u8>| {
        range.map(|number| Own(noise(number, 300 << 10))).collect::<Vec<_>>()
    };
    batches.submit(Kind::Set, keys(0..8), values(0..8));
    let done = answers(&batches, 1);
    assert_eq!((done[0].error.clone(), &done[0].found), (None, &None));
    batches.submit(Kind::Exists, keys(6..10), Vec::new());
    let rooms = (0..8).map(|_| Own(vec![0; 300 << 10])).collect();
    batches.submit(Kind::Get, keys(0..8), rooms);
    batches.submit(Kind::Get, keys(7..9), vec![Own(vec![0; 10]), Own(vec![0; 10])]);
    let done = answers(&batches, 3);
    assert_eq!(done[0].found.as_deref(), Some(&[true, true, false, false][..]));
    assert!(done[1].error.is_none() && done[1].memory == values(0..8));
    let text = done[2].error.clone().expect("a short buffer");
    assert_eq!(text, "the value has 307200 bytes and the buffer 10");
    assert_eq!(done[2].found.as_deref(), Some(&[false, false][..]));
    batches.submit(Kind::Delete, keys(0..9), Vec::new());
    let done = answers(&batches, 1);
    assert_eq!(
        done[0].found.as_ref().map(|found| found.iter().filter(|one| **one).count()),
        Some(8)
    );
    batches.close();
    batches.submit(Kind::Exists, keys(0..1), Vec::new());
    assert!(answers(&batches, 1)[0].error.is_some());
}

#[test]
fn a_set_that_does_not_fit_leaves_nothing() {
    let batches = Batches::open("embed:?capacity=16M", settings()).expect("batches");
    let values = (0..64_u64).map(|number| Own(noise(number, 1 << 20))).collect();
    batches.submit(Kind::Set, keys(0..64), values);
    let done = answers(&batches, 1);
    assert!(done[0].error.as_ref().is_some_and(|text| text.contains("full")), "{done:?}");
    batches.submit(Kind::Exists, keys(0..64), Vec::new());
    assert_eq!(answers(&batches, 1)[0].found.as_deref(), Some(&[false; 64][..]));
}

#[test]
fn a_set_of_which_one_key_fails_leaves_nothing() {
    let batches = Batches::open("embed:?capacity=64M", settings()).expect("batches");
    let mut wrong = keys(0..4);
    wrong[2] = vec![7; (1 << 20) + 1];
    let values = (0..4_u64).map(|number| Own(noise(number, 1000))).collect();
    batches.submit(Kind::Set, wrong, values);
    let error = answers(&batches, 1)[0].error.clone();
    assert!(error.as_ref().is_some_and(|text| text.contains("key")), "{error:?}");
    batches.submit(Kind::Exists, keys(0..4), Vec::new());
    assert_eq!(answers(&batches, 1)[0].found.as_deref(), Some(&[false; 4][..]));
}

#[test]
fn batches_outlive_the_store_and_find_the_next_one() {
    let mut daemon = Daemon::start(64 << 20);
    let batches = Batches::open(&daemon.url(), settings()).expect("batches");
    daemon.server = None;
    batches.submit(Kind::Exists, keys(0..2), Vec::new());
    batches.submit(Kind::Set, keys(0..1), vec![Own(vec![1; 9])]);
    let done = answers(&batches, 2);
    assert!(done.iter().all(|one| one.error.is_some()));
    assert_eq!(done[0].found.as_deref(), Some(&[false, false][..]));
    // Another store at the same place.
    let next = Daemon::start(64 << 20);
    std::fs::remove_file(&daemon.path).ok();
    std::os::unix::fs::symlink(&next.path, &daemon.path).expect("a link");
    until("a connection to it", || {
        batches.submit(Kind::Set, keys(0..1), vec![Own(vec![1; 9])]);
        answers(&batches, 1)[0].error.is_none()
    });
}

#[test]
fn more_batches_than_may_wait_fail_at_once() {
    let daemon = Daemon::start(256 << 20);
    let few = Settings { threads: 1, waiting_max: 2, ..settings() };
    let batches = Batches::open(&daemon.url(), few).expect("batches");
    let values: Vec<_> = (0..20).map(|_| vec![Own(noise(1_u64, 8 << 20))]).collect();
    for (number, value) in (0..).zip(values) {
        batches.submit(Kind::Set, keys(number..number + 1), value);
    }
    let done = answers(&batches, 20);
    let refused = |one: &&spillway_cache::Completion<Own>| {
        one.error.as_ref().is_some_and(|text| text.contains("waiting already"))
    };
    let refused = done.iter().filter(refused).count();
    assert!((1..=18).contains(&refused), "{refused} were refused");
    assert!(done.iter().all(|one| one.memory.len() == 1), "each gives its memory back");
}

/// Reading the descriptor resets it. So a thread that has read it must also get the answers that it announced.
#[test]
fn an_answer_that_comes_while_answers_are_taken_is_taken() {
    let batches: Batches<Own> = Batches::open("embed:", settings()).expect("batches");
    // Makes the taker block in its read of the descriptor, so that the answer arrives during it.
    rustix::io::ioctl_fionbio(batches.event_fd(), false).expect("a descriptor that waits");
    let (told, heard) = mpsc::channel();
    let done = thread::scope(|scope| {
        let taker = scope.spawn(|| {
            told.send(std::fs::read_link("/proc/thread-self").expect("a thread")).expect("told");
            batches.drain()
        });
        let stat = Path::new("/proc").join(heard.recv().expect("a thread")).join("stat");
        let sleeps = || std::fs::read_to_string(&stat).expect("its state").contains(") S ");
        while !sleeps() {
            thread::yield_now();
        }
        batches.submit(Kind::Exists, keys(0..1), Vec::new());
        taker.join().expect("the taker")
    });
    assert_eq!(done.len(), 1);
}
