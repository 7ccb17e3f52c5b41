//! A client moves to another daemon, and what arrives equals what was there (rule P10).

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use spillway_block::Exports;
use spillway_directory::{
    BlockSettings, ClientChange, ClientRegistry, ClientSettings, Error, Journal, Policy, Users, Who,
};
use spillway_store::{Config, Get, Key, PoolId, PoolSpec, Put, Refusal, Store};
use spillway_types::{Access, ClientId, Identity, Limits};

const POLICY: Policy = Policy {
    users: Users::None,
    hosts: false,
    exposed: false,
    target_pages: u64::MAX,
    limits: Limits { connections_max: 2, operations_max: 8, bytes_max: 1 << 20 },
    grace_s: 0,
};

fn registry(target_pages: u64) -> ClientRegistry {
    let store = Arc::new(Store::open(Config::embedded(64 << 20)).unwrap());
    let registry = registry_of(store, Journal::create(64 << 20).unwrap());
    add(&registry, target_pages);
    registry
}

fn registry_of(store: Arc<Store>, journal: Journal) -> ClientRegistry {
    ClientRegistry::open(store, journal, POLICY).unwrap()
}

fn add(registry: &ClientRegistry, target_pages: u64) {
    registry.add_client(&settings(target_pages)).unwrap();
}

fn settings(target_pages: u64) -> ClientSettings {
    ClientSettings {
        name: "c".into(),
        who: Who::User(7),
        secret: None,
        target_pages,
        floor_pages: 0,
        weight: 1,
        limits: POLICY.limits,
        domain: None,
        shared: Vec::new(),
    }
}

fn client(registry: &ClientRegistry) -> ClientId {
    registry.client("c").unwrap().id
}

/// The persistent pools of the client in the order of their numbers, with all values.
fn contents(registry: &ClientRegistry) -> Vec<BTreeMap<(u64, u32), Vec<u8>>> {
    let store = registry.store();
    let pools = store.pools(client(registry)).unwrap();
    let persistent = pools.iter().filter(|pool| pool.spec == PoolSpec::PERSISTENT);
    persistent
        .map(|pool| {
            let mut values = BTreeMap::new();
            store
                .export(pool.id, |key, value| {
                    values.insert((key.object, key.index), value.to_vec());
                })
                .unwrap();
            values
        })
        .collect()
}

fn fill(registry: &ClientRegistry, values: u32) -> PoolId {
    let store = registry.store();
    let pool = store.create_pool(client(registry), PoolSpec::PERSISTENT).unwrap();
    for index in 0..values {
        let key = Key::new(u64::from(index % 7), index);
        // Pages, small values, values of many pages, pages of one word.
        let length = [4096, 100, 20_000, 4096][index as usize % 4];
        let byte = (index * 31) as u8;
        let value: Vec<u8> =
            (0..length).map(|at| if index % 4 == 3 { byte } else { byte ^ at as u8 }).collect();
        assert_eq!(store.put(pool, key, &value), Put::Stored);
    }
    pool
}

#[test]
fn what_arrives_is_what_was_there_while_the_client_goes_on() {
    let (from, to) = (registry(u64::MAX), registry(u64::MAX));
    let pool = fill(&from, 2000);
    let second = fill(&from, 10);
    let ephemeral = from.store().create_pool(client(&from), PoolSpec::EPHEMERAL).unwrap();
    assert_eq!(from.store().put(ephemeral, Key::new(0, 0), &[1]), Put::Stored);
    let stop = AtomicBool::new(false);
    let mut stream = Vec::new();
    thread::scope(|scope| {
        // The client goes on meanwhile: puts are refused once it is frozen, which drops the old
        // value; flushes work.
        scope.spawn(|| {
            let mut at = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let key = Key::new(u64::from(at % 7), at % 2000);
                match at % 3 {
                    0 => {
                        from.store().flush(pool, key);
                    }
                    _ => {
                        let _ = from.store().put(pool, key, &at.to_le_bytes());
                    }
                }
                at = at.wrapping_add(13);
            }
        });
        from.export("c", &mut stream).unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    to.import("c", &mut stream.as_slice()).unwrap();
    let mut rest = Vec::new();
    from.export_rest("c", &mut rest).unwrap();
    to.import_rest("c", &mut rest.as_slice()).unwrap();
    assert_eq!(contents(&to), contents(&from));
    assert_eq!(contents(&to).len(), 2, "the ephemeral pool stayed");
    assert!(from.store().exists(second, Key::new(0, 0)));
    let put = from.store().put(second, Key::new(9, 9), &[1]);
    assert_eq!(put, Put::Refused(Refusal::Frozen), "it stays frozen until it is removed or thawed");
    from.thaw("c").unwrap();
    assert_eq!(from.store().put(second, Key::new(9, 9), &[1]), Put::Stored);
}

#[test]
fn cap_floor_and_weight_come_along_where_nothing_else_is_said() {
    let all = |cap_pages, floor_pages, weight| ClientChange {
        cap_pages: Some(cap_pages),
        floor_pages: Some(floor_pages),
        weight: Some(weight),
    };
    let none = all(u64::MAX, 0, 1);
    for (there, arrived) in [
        (none, all(300, 20, 5)),
        (all(400, 0, 1), all(400, 20, 5)),
        (all(u64::MAX, 30, 6), all(300, 30, 6)),
    ] {
        let (from, to) = (registry(u64::MAX), registry(u64::MAX));
        fill(&from, 50);
        from.change_client("c", all(300, 20, 5)).unwrap();
        to.change_client("c", there).unwrap();
        let mut stream = Vec::new();
        from.export("c", &mut stream).unwrap();
        to.import("c", &mut stream.as_slice()).unwrap();
        let its = to.client("c").unwrap();
        assert_eq!(all(its.cap_pages, its.floor_pages, its.weight), arrived);
        assert_eq!(its.statistics.target_pages, its.cap_pages, "no policy gives anything else");
    }
}

#[test]
fn a_client_that_holds_more_than_its_cap_arrives_whole() {
    let (from, to) = (registry(u64::MAX), registry(u64::MAX));
    fill(&from, 50);
    from.change_client("c", ClientChange { cap_pages: Some(3), ..ClientChange::default() })
        .unwrap();
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    to.import("c", &mut stream.as_slice()).unwrap();
    assert_eq!(contents(&to), contents(&from));
    let its = to.client("c").unwrap();
    assert!(its.cap_pages == 3 && its.statistics.used_pages > 3);
}

#[test]
fn a_stream_of_version_1_is_read() {
    let (from, to) = (registry(u64::MAX), registry(70));
    fill(&from, 10);
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    stream[8] = 1;
    to.import("c", &mut stream.as_slice()).unwrap();
    assert_eq!(contents(&to), contents(&from));
    let later = registry(u64::MAX);
    stream[8] = 3;
    assert!(matches!(later.import("c", &mut stream.as_slice()), Err(Error::Stream(_))));
}

#[test]
fn block_devices_come_along() {
    let (from, to) = (registry(u64::MAX), registry(u64::MAX));
    let settings = BlockSettings {
        name: "d".into(),
        client: "c".into(),
        bytes: 1 << 20,
        block_bytes: 512,
        reserve: true,
    };
    let made = from.create_block(&settings).unwrap();
    let device = from.open(client(&from), "d").unwrap();
    device.write(12_345, b"written").unwrap();
    let mut stream = Vec::new();
    assert!(matches!(from.export("c", &mut stream), Err(Error::InUse(_))));
    drop(device);
    stream.clear();
    from.export("c", &mut stream).unwrap();
    to.import("c", &mut stream.as_slice()).unwrap();
    let arrived = to.blocks();
    assert_eq!((arrived[0].uuid, arrived[0].bytes), (made.uuid, 1 << 20));
    let mut read = [0; 7];
    to.open(client(&to), "d").unwrap().read(12_345, &mut read).unwrap();
    assert_eq!(&read, b"written");
}

#[test]
fn a_stream_that_is_damaged_or_ends_early_leaves_nothing() {
    let from = registry(u64::MAX);
    fill(&from, 50);
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    for at in (0..stream.len()).step_by(997).chain([stream.len() - 1]) {
        let to = registry(u64::MAX);
        let mut damaged = stream.clone();
        damaged[at] ^= 1;
        assert!(matches!(to.import("c", &mut damaged.as_slice()), Err(Error::Stream(_))), "{at}");
        assert!(to.import("c", &mut &stream[..at]).is_err(), "ends at {at}");
        assert!(to.pools().unwrap().is_empty());
        assert_eq!(to.client("c").unwrap().statistics.used_pages, 0);
        to.import("c", &mut stream.as_slice()).unwrap();
        assert_eq!(contents(&to), contents(&from), "a second try works");
    }
}

#[test]
fn an_import_without_room_leaves_nothing() {
    let (from, to) = (registry(u64::MAX), registry(20));
    fill(&from, 50);
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    assert!(matches!(to.import("c", &mut stream.as_slice()), Err(Error::NoRoom(_))));
    assert!(to.pools().unwrap().is_empty());
    to.change_client("c", ClientChange { cap_pages: Some(u64::MAX), ..ClientChange::default() })
        .unwrap();
    to.import("c", &mut stream.as_slice()).unwrap();
    assert!(matches!(to.import("c", &mut stream.as_slice()), Err(Error::NotEmpty(_))));
}

#[test]
fn what_arrives_fits_whatever_a_policy_gives() {
    let (from, to) = (registry(u64::MAX), registry(u64::MAX));
    fill(&from, 50);
    to.store().set_target(client(&to), 0).unwrap();
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    to.import("c", &mut stream.as_slice()).unwrap();
    assert_eq!(contents(&to), contents(&from));
    assert!(!to.client("c").unwrap().importing);
}

#[test]
fn a_sink_that_fails_changes_nothing() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let from = registry(u64::MAX);
    let pool = fill(&from, 50);
    assert!(matches!(from.export("c", &mut Full(5000)), Err(Error::Io(_))));
    assert_eq!(from.store().put(pool, Key::new(0, 0), &[7]), Put::Stored, "it goes on");
    let mut value = [0; 1];
    assert_eq!(from.store().get(pool, Key::new(0, 0), &mut value).unwrap(), Get::Hit(1));
    assert!(matches!(from.export_rest("c", &mut Vec::new()), Err(Error::NotFrozen(_))));
}

/// A registry with the store and the journal that a killed daemon leaves: what was written is in both.
struct Killed {
    store: Arc<Store>,
    journal: std::os::fd::OwnedFd,
}

impl Killed {
    /// A registry whose daemon can be killed.
    fn start() -> (Self, ClientRegistry) {
        let journal = Journal::create(64 << 20).unwrap();
        let fd = journal.descriptor().try_clone_to_owned().unwrap();
        let registry =
            registry_of(Arc::new(Store::open(Config::embedded(64 << 20)).unwrap()), journal);
        add(&registry, u64::MAX);
        (Self { store: Arc::clone(registry.store()), journal: fd }, registry)
    }

    /// The next daemon.
    fn next(&self) -> ClientRegistry {
        let journal = Journal::reopen(self.journal.try_clone().unwrap()).unwrap();
        registry_of(Arc::clone(&self.store), journal)
    }
}

#[test]
fn an_import_that_a_kill_cuts_off_leaves_nothing() {
    let from = registry(u64::MAX);
    fill(&from, 50);
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    let (killed, to) = Killed::start();
    /// Where the daemon is killed.
    struct Kill<'a>(&'a [u8], &'a Killed);
    impl io::Read for Kill<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if !self.0.is_empty() {
                return self.0.read(into);
            }
            let next = self.1.next();
            assert!(next.pools().unwrap().is_empty(), "a part is left");
            assert!(!next.client("c").unwrap().arrived);
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
    let part = &stream[..stream.len() / 2];
    assert!(to.import("c", &mut Kill(part, &killed)).is_err());
    let next = killed.next();
    next.import("c", &mut stream.as_slice()).unwrap();
    assert_eq!(contents(&next), contents(&from));
}

#[test]
fn an_import_replaces_what_arrived_before_until_somebody_connects() {
    let from = registry(u64::MAX);
    let pool = fill(&from, 50);
    let (killed, to) = Killed::start();
    let export = || {
        let mut stream = Vec::new();
        from.export("c", &mut stream).unwrap();
        stream
    };
    let first = export();
    to.import_again("c", &mut first.as_slice()).unwrap();
    from.thaw("c").unwrap();
    assert_eq!(from.store().put(pool, Key::new(77, 77), &[7]), Put::Stored);
    let second = export();
    assert!(matches!(to.import("c", &mut second.as_slice()), Err(Error::NotEmpty(_))));
    drop(to);
    let to = killed.next();
    assert!(to.client("c").unwrap().arrived, "also after a kill");
    to.import_again("c", &mut second.as_slice()).unwrap();
    assert_eq!(contents(&to), contents(&from));
    // A second import that fails leaves nothing of either: the source has all of it.
    assert!(to.import_again("c", &mut &second[..100]).is_err());
    assert!(to.pools().unwrap().is_empty());
    to.import_again("c", &mut second.as_slice()).unwrap();
    let admitted = to.admit(Identity::Peer { uid: 7, gid: 7, pid: 0 }).unwrap();
    to.leave(admitted.client);
    for registry in [&to, &killed.next()] {
        assert!(!registry.client("c").unwrap().arrived);
        assert!(matches!(
            registry.import_again("c", &mut second.as_slice()),
            Err(Error::NotEmpty(_))
        ));
    }
    assert_eq!(contents(&to), contents(&from));
}

#[test]
fn a_client_that_has_moved_stays_frozen_over_a_kill() {
    let (killed, from) = Killed::start();
    let pool = fill(&from, 50);
    assert!(matches!(from.set_moved("c"), Err(Error::NotFrozen(_))));
    from.export("c", &mut Vec::new()).unwrap();
    let next = killed.next();
    assert!(!next.client("c").unwrap().frozen, "a move that has not ended is over");
    next.export("c", &mut Vec::new()).unwrap();
    next.set_moved("c").unwrap();
    let next = killed.next();
    next.configure(&[settings(u64::MAX)], &[], POLICY).unwrap();
    let view = next.client("c").unwrap();
    assert!(view.frozen && view.moved);
    let put = || next.store().put(pool, Key::new(9, 9), &[1]);
    assert_eq!(put(), Put::Refused(Refusal::Frozen));
    let rest = next.export_rest("c", &mut Vec::new());
    assert!(matches!(rest, Err(Error::TooManyFlushes(_))), "what was flushed is forgotten");
    next.thaw("c").unwrap();
    assert_eq!(put(), Put::Stored);
    assert!(!killed.next().client("c").unwrap().moved);
}

#[test]
fn a_client_has_one_export_and_one_import_at_a_time() {
    /// Whether what comes meanwhile is refused.
    struct Meanwhile<'a>(&'a ClientRegistry, &'a [u8], u32);
    impl Write for Meanwhile<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let second = self.0.export("c", &mut Vec::new());
            self.2 += u32::from(matches!(second, Err(Error::Moving(_))));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl io::Read for Meanwhile<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let second = self.0.import_again("c", &mut &self.1[..]);
            self.2 += u32::from(matches!(second, Err(Error::Moving(_))));
            self.1.read(into)
        }
    }
    let (from, to) = (registry(u64::MAX), registry(u64::MAX));
    let pool = fill(&from, 50);
    let mut sink = Meanwhile(&from, &[], 0);
    from.export("c", &mut sink).unwrap();
    assert!(sink.2 > 0);
    assert_eq!(from.store().put(pool, Key::new(9, 9), &[1]), Put::Refused(Refusal::Frozen));
    let mut stream = Vec::new();
    from.export("c", &mut stream).unwrap();
    let mut source = Meanwhile(&to, &stream, 0);
    to.import("c", &mut source).unwrap();
    assert!(source.2 > 0);
    assert_eq!(contents(&to), contents(&from));
}
