//! A process that uses a store is killed at any instruction, and another goes on with its memory.
//!
//! A child works on a store in memfds with several threads, and writes down in shared memory what it
//! is about to do and what was answered. It is killed (SIGKILL) after a random time, now and then
//! while it still reopens the store. Then the store is reopened here and compared with the notes,
//! and the next child goes on with it. `CRASH_ROUNDS` sets how often, `CRASH_SEED` the start.

mod noted;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use noted::{KEYS, Kind, Note, Notes, OBJECTS, THREADS, key_of, value_of};
use spillway_store::{
    Backing, ClientConfig, ClientId, Config, Dedup, DiskConfig, Get, Kept, Key, PAGE_BYTES,
    PageBuf, PoolId, PoolInfo, PoolSpec, Put, Scratch, Store,
};
use spillway_test_support::random::{Random, noise};

const CAPACITY_BYTES: u64 = 24 << 20;
/// With a disk: less than what is stored.
const SMALL_BYTES: u64 = 5 << 20;
const ROUNDS: u64 = 60;
/// Longest life of a child after it has begun to work.
const LIFE_US_MAX: u64 = 15_000;
const UUID: u128 = 0x7411_0000_0000_0000_0000_0000_0000_0017;
/// Names of the variables that make a process a child: the descriptors, and a seed.
const CHILD: &str = "CRASH_CHILD";
/// Pages of the reserved pool: one for each key of two objects.
const RESERVED_PAGES: u64 = 2 * KEYS as u64;

fn config(has_disk: bool) -> Config {
    let capacity_bytes = if has_disk { SMALL_BYTES } else { CAPACITY_BYTES };
    // Beside the test's own program, so that it is no tmpfs.
    let dir = std::env::current_exe().expect("own path").parent().expect("directory").to_owned();
    let disk = has_disk.then(|| DiskConfig::new(dir, 64 << 20));
    let dedup = Dedup::PerClient;
    Config { backing: Backing::Memfd, dedup, disk, ..Config::embedded(capacity_bytes) }
}

/// The descriptors of a store, of its disk too if it has one.
fn kept_of(store: &Store) -> Vec<OwnedFd> {
    let memory = store.kept_descriptors().expect("memfds");
    let disk = store.kept_disk_descriptors().into_iter().flatten();
    memory.into_iter().chain(disk).map(|(_, file)| duplicate(file, false)).collect()
}

fn reopen(kept: impl IntoIterator<Item = OwnedFd>) -> Store {
    let mut kept = kept.into_iter();
    let mut next = || kept.next().expect("a descriptor");
    let memory = [next(), next(), next()];
    let disk = kept.next().map(|file| [file, kept.next().expect("sums")]);
    Store::reopen(config(disk.is_some()), Kept { memory, disk }).expect("reopen")
}

fn copies(kept: &[OwnedFd]) -> Vec<OwnedFd> {
    kept.iter().map(|file| duplicate(file.as_fd(), false)).collect()
}

/// The pools that are compared, found by what they are.
#[derive(Clone, Copy)]
struct Pools {
    private: PoolId,
    shared: PoolId,
    reserved: PoolId,
    ephemeral: PoolId,
}

impl Pools {
    fn find(store: &Store) -> (ClientId, Self) {
        let client = store.clients().iter().find(|c| c.config.label == 1).expect("client").id;
        let all = store.pools(client).expect("pools");
        let find = |is: &dyn Fn(&PoolInfo) -> bool| {
            let mut found = all.iter().filter(|pool| is(pool));
            let id = found.next().expect("a pool").id;
            assert!(found.next().is_none(), "two pools of a kind");
            id
        };
        let pools = Self {
            private: find(&|p| p.spec == PoolSpec::PERSISTENT && p.reserved_pages == 0),
            shared: find(&|p| p.spec == PoolSpec::shared_persistent(UUID)),
            reserved: find(&|p| p.reserved_pages == RESERVED_PAGES),
            ephemeral: find(&|p| p.spec == PoolSpec::EPHEMERAL),
        };
        (client, pools)
    }

    /// The pool that an object's values are put into. Objects 0 and 1 are of the reserved pool.
    fn of(self, object: u64) -> PoolId {
        match object {
            0 | 1 => self.reserved,
            2 | 3 => self.shared,
            _ => self.private,
        }
    }
}

fn set_up(store: &Store) {
    for label in [1, 2] {
        let config = ClientConfig { label, ..ClientConfig::default() };
        let client = store.add_client(config).expect("client");
        store.authorise(client, UUID).expect("authorise");
        store.create_pool(client, PoolSpec::shared_persistent(UUID)).expect("shared");
        if label == 1 {
            store.create_pool(client, PoolSpec::PERSISTENT).expect("private");
            store.create_pool(client, PoolSpec::EPHEMERAL).expect("ephemeral");
            let reserved = store.create_reserved_pool(client, PoolSpec::PERSISTENT, RESERVED_PAGES);
            reserved.expect("reserved");
        }
    }
}

/// A second descriptor of the same file, which children inherit if `passed`.
fn duplicate(file: BorrowedFd<'_>, passed: bool) -> OwnedFd {
    let copy = file.try_clone_to_owned().expect("duplicate");
    if passed {
        rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).expect("inherit");
    }
    copy
}

fn start_child(kept: &[OwnedFd], notes: &Notes, seed: u64) -> Child {
    let passed: Vec<_> = kept.iter().map(|file| duplicate(file.as_fd(), true)).collect();
    let log = duplicate(notes.file(), true);
    let numbers: Vec<_> = passed.iter().map(|file| file.as_raw_fd().to_string()).collect();
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{},{seed},{}", log.as_raw_fd(), numbers.join(",")))
        .stdout(Stdio::null())
        .spawn()
        .expect("child")
}

#[test]
fn what_was_answered_is_there_after_kill_9() {
    kill_again_and_again(false);
}

#[test]
fn what_was_answered_is_there_after_kill_9_with_pages_on_disk() {
    kill_again_and_again(true);
}

fn kill_again_and_again(has_disk: bool) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let rounds = number("CRASH_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("CRASH_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("clock").as_nanos() as u64
    });
    println!("CRASH_SEED={seed}, {rounds} rounds");
    let mut random = Random::new(seed);
    let store = Store::open(config(has_disk)).expect("open");
    set_up(&store);
    let kept = kept_of(&store);
    drop(store);
    let notes = Notes::new();
    let (mut done, mut cut, mut early, mut on_disk) = (0, 0, 0, 0);
    for round in 0..rounds {
        notes.set_ready(false);
        let mut child = start_child(&kept, &notes, seed ^ round << 32);
        // Now and then the child does not get to work: it is killed while it reopens the store.
        if random.below(10) != 0 {
            let began = Instant::now();
            while !notes.is_ready() {
                assert!(child.try_wait().expect("child").is_none(), "the child ended, {round}");
                assert!(began.elapsed() < Duration::from_secs(60), "the child does not begin");
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(LIFE_US_MAX)));
        early += u64::from(!notes.is_ready());
        child.kill().expect("kill");
        let status = child.wait().expect("wait");
        // A child that finds something wrong aborts.
        assert_eq!(status.signal(), Some(9), "the child ended by itself in round {round}");
        let store = reopen(copies(&kept));
        on_disk += store.disk_bytes() / PAGE_BYTES as u64;
        let (same, open) = compare(&store, &notes, round);
        done += same;
        cut += open;
        check_levels(&store);
        check_frames(&kept[0], &notes);
    }
    println!(
        "{done} values compared, {cut} operations cut short, {early} kills while reopening, \
         {on_disk} pages on disk"
    );
    assert_eq!(on_disk > 50 * rounds, has_disk);
    // Nothing is lost for good: the store can be emptied and filled again.
    let store = reopen(copies(&kept));
    for client in store.clients() {
        store.remove_client(client.id).expect("remove");
    }
    store.trim();
    assert!(store.memory_bytes() < 4 << 20, "{} bytes are left", store.memory_bytes());
    assert_eq!(store.disk_bytes(), 0);
}

/// Compares all values with the notes; gives how many agree, and operations that were cut short.
/// Afterwards the notes say what there is.
fn compare(store: &Store, notes: &Notes, round: u64) -> (u64, u64) {
    let (_, pools) = Pools::find(store);
    let (mut same, mut open) = (0, 0);
    for number in 0..notes.len() {
        let key = key_of(number);
        let mut value = vec![0; 256 << 10];
        let got = match store.get(pools.of(key.object), stored_key(key), &mut value) {
            Ok(Get::Hit(length)) => Some(&value[..length]),
            Ok(Get::Miss) => None,
            other => panic!("{key:?} in round {round}: {other:?}"),
        };
        let is = |note: Note| value_of(key, note).as_deref() == got;
        let (begun, done) = notes.read(number);
        let cut = begun != done || notes.is_object_open(key.object);
        let fits = [done, begun].into_iter().find(|&note| is(note));
        let fits = if cut { fits.or(got.is_none().then_some(Note::ABSENT)) } else { fits };
        let Some(note) = fits else {
            panic!("{key:?} in round {round}: begun {begun:?}, done {done:?}, got {got:?}");
        };
        notes.settle(number, note);
        same += u64::from(got.is_some());
        open += u64::from(cut);
    }
    notes.settle_objects();
    (same, open)
}

/// The key under which a noted key's value is stored: a reserved pool has keys of its own.
fn stored_key(key: Key) -> Key {
    if key.object < 2 { Key::new(0, key.object as u32 * KEYS + key.index) } else { key }
}

/// Used pages and all other levels must be those of the values that can be listed.
fn check_levels(store: &Store) {
    let mut used = 0;
    let (mut uniform, mut keys) = (0, vec![Key::new(0, 0); 1 << 16]);
    let mut seen = Vec::new();
    for client in store.clients() {
        for pool in store.pools(client.id).expect("pools") {
            if seen.contains(&pool.number) {
                continue;
            }
            seen.push(pool.number);
            let count = store.list_keys(pool.id, None, &mut keys).expect("list");
            let mut pages = 0;
            let mut scratch = PageBuf::ZERO;
            for key in &keys[..count] {
                let length = match store.get(pool.id, *key, &mut []).expect("length") {
                    Get::Short(length) | Get::Hit(length) => length,
                    Get::Miss => panic!("no value of {key:?}"),
                };
                pages += length.div_ceil(PAGE_BYTES) as u64;
                if length == PAGE_BYTES {
                    let page = store.read_page(pool.id, *key, &mut scratch).expect("page");
                    let page = page.expect("a page");
                    uniform += u64::from(page.chunks(4).all(|word| *word == page[..4]));
                }
            }
            assert_eq!(pool.pages, pages, "pages of {pool:?}");
            if pool.reserved_pages == 0 {
                used += pages;
            }
        }
    }
    let statistics = store.clients().into_iter().map(|client| {
        let statistics = store.statistics(client.id).expect("statistics");
        let pools = store.pools(client.id).expect("pools");
        let reserved: u64 = pools.iter().map(|pool| pool.reserved_pages).sum();
        assert_eq!(statistics.reserved_pages, reserved);
        statistics.used_pages
    });
    assert_eq!(statistics.sum::<u64>(), used, "used pages");
    assert_eq!(store.same_filled_pages(), uniform);
    assert!(store.memory_bytes() <= CAPACITY_BYTES + (1 << 20));
}

/// No frame or cell holds bytes of a value that is not there.
fn check_frames(frames: &OwnedFd, notes: &Notes) {
    let mut at = 0;
    let mut bytes = vec![0; 1 << 20];
    while let Ok(data) = rustix::fs::seek(frames, rustix::fs::SeekFrom::Data(at)) {
        at = data;
        let read = rustix::io::pread(frames, &mut bytes, at).expect("read");
        if read == 0 {
            break;
        }
        for (key, note) in noted::marks(&bytes[..read]) {
            let (begun, done) = notes.read(noted::number_of(key));
            assert!(
                begun == done && done == note,
                "{key:?} {note:?} is left at {at}, not {done:?}"
            );
        }
        at += read as u64;
    }
}

/// The process that is killed. Does nothing when it is run as a test.
#[test]
fn child() {
    let Ok(variable) = std::env::var(CHILD) else { return };
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
    let numbers: Vec<u64> = variable.split(',').map(|n| n.parse().expect("number")).collect();
    // SAFETY: the parent has passed these descriptors, and nobody else here has them.
    let own = |at: usize| unsafe { OwnedFd::from_raw_fd(numbers[at] as RawFd) };
    let notes = Notes::of(own(0));
    let store = reopen((2..numbers.len()).map(own));
    let (client, pools) = Pools::find(&store);
    notes.set_ready(true);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, notes) = (&store, &notes);
            let seed = numbers[1] ^ u64::from(thread) << 48;
            scope.spawn(move || work(store, pools, notes, thread, seed));
        }
        let store = &store;
        scope.spawn(move || churn(store, client, numbers[1]));
    });
}

/// Puts, gets and flushes without end.
fn work(store: &Store, pools: Pools, notes: &Notes, thread: u32, seed: u64) {
    let mut random = Random::new(seed);
    let mut scratch = Scratch::new();
    let mut value = vec![0; 256 << 10];
    loop {
        let index = random.below(u64::from(KEYS / THREADS)) as u32 * THREADS + thread;
        let key = Key::new(random.below(OBJECTS), index);
        let number = noted::number_of(key);
        let (pool, stored) = (pools.of(key.object), stored_key(key));
        let (_, done) = notes.read(number);
        match random.below(16) {
            0..9 => {
                let kind = Kind::any(random.below(100), key.object < 2);
                let note = Note::new(done.version() + 1, kind);
                let bytes = value_of(key, note).expect("a value");
                notes.begin(number, note);
                let put = if random.below(3) == 0 {
                    store.put_compressed(pool, stored, &bytes, &mut scratch)
                } else {
                    store.put(pool, stored, &bytes)
                };
                let stored = put == Put::Stored;
                assert!(stored || key.object >= 2, "a reserved page was refused: {put:?}");
                notes.settle(number, if stored { note } else { note.absent() });
            }
            9..12 => {
                let note = done.next_absent();
                notes.begin(number, note);
                assert_eq!(store.flush(pool, stored), done.is_value());
                notes.settle(number, note);
            }
            12..14 => {
                let got = store.get(pool, stored, &mut value).expect("get");
                let got = if let Get::Hit(length) = got { Some(&value[..length]) } else { None };
                assert!(got == value_of(key, done).as_deref(), "{key:?} while it lives");
            }
            14 => {
                store.demote(8, &mut scratch);
                let bytes = vec![random.below(256) as u8; 1 + random.below(9000) as usize];
                let _: Put = store.put(pools.ephemeral, key, &bytes);
            }
            // An object of the thread's own goes as a whole, once in a while.
            _ if random.below(50) == 0 => {
                let object = noted::own_object(thread);
                notes.begin_object(object);
                store.flush_object(pools.private, object);
                for number in noted::numbers_of(object) {
                    let (_, done) = notes.read(number);
                    notes.settle(number, done.next_absent());
                }
                notes.end_object(object);
            }
            _ => {
                let object = noted::own_object(thread);
                let key = Key::new(object, random.below(u64::from(KEYS)) as u32);
                let number = noted::number_of(key);
                let (_, done) = notes.read(number);
                let note = Note::new(done.version() + 1, Kind::any(random.below(100), false));
                notes.begin(number, note);
                let put = store.put(pools.private, key, &value_of(key, note).expect("a value"));
                notes.settle(number, if put == Put::Stored { note } else { note.absent() });
            }
        }
    }
}

/// Makes and destroys pools and clients without end.
fn churn(store: &Store, client: ClientId, seed: u64) {
    let mut random = Random::new(seed);
    // What the last child had not removed yet was kept, as it should be.
    for guest in store.clients().into_iter().filter(|client| client.config.label == 3) {
        store.remove_client(guest.id).expect("remove");
    }
    loop {
        let config = ClientConfig { label: 3, ..ClientConfig::default() };
        let guest = store.add_client(config).expect("client");
        store.authorise(guest, UUID).expect("authorise");
        let shared = store.join_pool(guest, UUID).expect("join");
        let own = store.create_pool(guest, PoolSpec::PERSISTENT).expect("pool");
        let reserved = store.create_reserved_pool(guest, PoolSpec::PERSISTENT, 70);
        for index in 0..200 {
            let bytes = vec![index as u8; 1 + random.below(9000) as usize];
            let _: Put = store.put(own, Key::new(random.below(3), index), &bytes);
            if let Ok(reserved) = &reserved {
                let page = noise(index, PAGE_BYTES);
                assert_eq!(store.put(*reserved, Key::new(0, index % 70), &page), Put::Stored);
            }
        }
        store.flush_object(own, 1);
        store.destroy_pool(own).expect("destroy");
        store.leave_pool(shared).expect("leave");
        store.remove_client(guest).expect("remove");
        assert!(store.statistics(client).is_ok());
    }
}
