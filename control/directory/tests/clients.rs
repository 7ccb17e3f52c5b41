//! Who is let in, as whom, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use spillway_block::Exports;
use spillway_directory::{
    BlockSettings, ClientChange, ClientRegistry, ClientSettings, Error, Journal, Origin, Policy,
    Refusals, Secret, Users, Who,
};
use spillway_store::{Config, PoolSpec, Store};
use spillway_types::{Access, Denied, Identity, Limits};

const LIMITS: Limits = Limits { connections_max: 2, operations_max: 8, bytes_max: 1 << 20 };

const POLICY: Policy = Policy {
    users: Users::All,
    hosts: false,
    exposed: false,
    target_pages: 100,
    limits: LIMITS,
    grace_s: 0,
};

fn registry(policy: Policy) -> ClientRegistry {
    let store = Arc::new(Store::open(Config::embedded(16 << 20)).unwrap());
    ClientRegistry::open(store, Journal::create(16 << 20).unwrap(), policy).unwrap()
}

fn settings(name: &str, who: Who) -> ClientSettings {
    ClientSettings {
        name: name.into(),
        who,
        secret: None,
        target_pages: 50,
        floor_pages: 0,
        weight: 1,
        limits: LIMITS,
        domain: None,
        shared: Vec::new(),
    }
}

const fn peer(uid: u32, gid: u32) -> Identity<'static> {
    Identity::Peer { uid, gid, pid: 1 }
}

#[test]
fn a_user_counts_before_its_group_and_both_before_the_policy() {
    let registry = registry(POLICY);
    let named = [settings("alice", Who::User(7)), settings("staff", Who::Group(50))];
    registry.configure(&named, &[], POLICY).unwrap();
    let id = |name: &str| registry.client(name).unwrap().id;
    assert_eq!(registry.admit(peer(7, 50)).unwrap().client, id("alice"));
    assert_eq!(registry.admit(peer(8, 50)).unwrap().client, id("staff"));
    let unnamed = registry.admit(peer(9, 9)).unwrap();
    assert_eq!(unnamed.client, id("uid-9"));
    assert_eq!(unnamed.limits, LIMITS);
    assert_eq!(registry.admit(peer(9, 9)).unwrap().client, unnamed.client, "the same user again");
}

#[test]
fn a_policy_keeps_strangers_out() {
    let registry = registry(Policy { users: Users::None, ..POLICY });
    assert_eq!(registry.admit(peer(9, 9)), Err(Denied::Unknown));
    assert_eq!(registry.admit(Identity::Host { nqn: "nqn.x" }), Err(Denied::Unknown));
    assert_eq!(registry.admit(Identity::Name("CN=x")), Err(Denied::Unknown));
    registry.add_client(&settings("host", Who::Host("nqn.x".into()))).unwrap();
    assert!(registry.admit(Identity::Host { nqn: "nqn.x" }).is_ok());
    assert_eq!(registry.admit(Identity::Host { nqn: "nqn.xy" }), Err(Denied::Unknown));
}

#[test]
fn who_is_not_let_in_is_counted_by_why() {
    let registry = registry(Policy { users: Users::None, ..POLICY });
    let mut user = settings("dora", Who::Password("dora".into()));
    user.secret = Some(Secret::of_password(b"right"));
    registry.configure(&[user, settings("alice", Who::User(7))], &[], POLICY).unwrap();
    let password = |password| Identity::User { name: "dora", password };
    assert!(registry.admit(password(b"right")).is_ok());
    assert_eq!(registry.refusals(), Refusals::default());
    assert_eq!(registry.admit(password(b"wrong")), Err(Denied::Unknown));
    registry.authentication_failed();
    assert_eq!(registry.admit(Identity::Host { nqn: "nqn.x" }), Err(Denied::Unknown));
    for _ in 0..LIMITS.connections_max {
        assert!(registry.admit(peer(7, 7)).is_ok());
    }
    assert_eq!(registry.admit(peer(7, 7)), Err(Denied::Connections));
    registry.handshake_late();
    let counted = Refusals { unknown: 1, at_limit: 1, authentications: 2, late_handshakes: 1 };
    assert_eq!(registry.refusals(), counted);
}

#[test]
fn a_host_that_others_could_pretend_to_be_needs_a_secret() {
    let exposed = Policy { exposed: true, ..POLICY };
    let registry = registry(exposed);
    let open = settings("open", Who::Host("nqn.open".into()));
    assert!(matches!(registry.add_client(&open), Err(Error::NeedsSecret(_))));
    registry.configure(std::slice::from_ref(&open), &[], POLICY).unwrap();
    assert!(registry.admit(Identity::Host { nqn: "nqn.open" }).is_ok());
    registry.configure(&[open], &[], exposed).unwrap();
    assert_eq!(registry.admit(Identity::Host { nqn: "nqn.open" }), Err(Denied::Unknown));
}

#[test]
fn connections_are_counted() {
    let registry = registry(POLICY);
    let client = registry.admit(peer(9, 9)).unwrap().client;
    registry.admit(peer(9, 9)).unwrap();
    assert_eq!(registry.admit(peer(9, 9)), Err(Denied::Connections));
    registry.leave(client);
    assert!(registry.admit(peer(9, 9)).is_ok());
}

#[test]
fn only_who_nobody_named_goes_when_it_is_away() {
    let registry = registry(POLICY);
    registry.configure(&[settings("alice", Who::User(7))], &[], POLICY).unwrap();
    registry.add_client(&settings("bob", Who::User(8))).unwrap();
    let connected = registry.admit(peer(9, 9)).unwrap().client;
    let left = registry.admit(peer(10, 10)).unwrap().client;
    registry.leave(left);
    registry.expire();
    let names: Vec<_> = registry.clients().unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["alice", "bob", "uid-9"]);
    assert!(registry.store().statistics(left).is_err(), "its pools are gone with it");
    assert!(registry.store().statistics(connected).is_ok());
}

#[test]
fn a_changed_file_changes_what_it_names_and_nothing_else() {
    let registry = registry(POLICY);
    let alice = settings("alice", Who::User(7));
    registry.configure(std::slice::from_ref(&alice), &[], POLICY).unwrap();
    registry
        .change_client("alice", ClientChange { cap_pages: Some(10), ..ClientChange::default() })
        .unwrap();
    let target = || registry.client("alice").unwrap().statistics.target_pages;
    registry.configure(std::slice::from_ref(&alice), &[], POLICY).unwrap();
    assert_eq!(target(), 10, "what was set by hand stays");
    let more = ClientSettings { target_pages: 60, ..alice.clone() };
    let lines = registry.configure(std::slice::from_ref(&more), &[], POLICY).unwrap();
    assert_eq!(lines, ["client alice: target 240.0 KiB (was 40.0 KiB)"]);
    assert_eq!(target(), 60);
    assert!(registry.configure(&[more], &[], POLICY).unwrap().is_empty(), "nothing has changed");
    assert!(matches!(registry.remove_client("alice"), Err(Error::Configured(_))));
    let lines = registry.configure(&[], &[], Policy { grace_s: 60, ..POLICY }).unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let grace = POLICY.grace_s;
    assert_eq!(lines[0], format!("unnamed clients: grace_s 60 (was {grace})"));
    assert_eq!(lines[1], "client alice is no longer in the configuration file");
    assert_eq!(registry.client("alice").unwrap().origin, Origin::Unnamed);
    registry.remove_client("alice").unwrap();
}

#[test]
fn a_client_stays_in_its_sharing_domain_whatever_the_file_says_later() {
    let registry = registry(POLICY);
    let in_domain = |domain| ClientSettings { domain, ..settings("alice", Who::User(7)) };
    let domain = || registry.client("alice").unwrap().domain;
    registry.configure(&[in_domain(Some(1))], &[], POLICY).unwrap();
    for later in [Some(2), None] {
        registry.configure(&[in_domain(later)], &[], POLICY).unwrap();
        assert_eq!(domain(), Some(1), "what it holds is still shared in that one");
    }
    registry.configure(&[], &[], POLICY).unwrap();
    registry.remove_client("alice").unwrap();
    registry.configure(&[in_domain(Some(2))], &[], POLICY).unwrap();
    assert_eq!(domain(), Some(2));
}

#[test]
fn a_file_that_contradicts_itself_changes_nothing() {
    let registry = registry(POLICY);
    let twice = [settings("a", Who::User(7)), settings("b", Who::User(7))];
    assert!(matches!(registry.configure(&twice, &[], POLICY), Err(Error::IdentityTaken(_))));
    let block = BlockSettings {
        name: "d".into(),
        client: "c".into(),
        bytes: 4096,
        block_bytes: 512,
        reserve: true,
    };
    assert!(matches!(registry.configure(&[], &[block], POLICY), Err(Error::NoClient(_))));
    let bad = [settings("no spaces", Who::User(7))];
    assert!(matches!(registry.configure(&bad, &[], POLICY), Err(Error::Name(_))));
    assert!(registry.clients().unwrap().is_empty());
}

#[test]
fn what_the_store_refuses_changes_nothing() {
    let registry = registry(POLICY);
    let alice = settings("alice", Who::User(7));
    registry.configure(std::slice::from_ref(&alice), &[], POLICY).unwrap();
    let device = |name: &str, bytes| BlockSettings {
        name: name.into(),
        client: "bob".into(),
        bytes,
        block_bytes: 4096,
        reserve: true,
    };
    let changed = ClientSettings { target_pages: 60, ..alice.clone() };
    let bob = settings("bob", Who::User(8));
    let free = || registry.store().memory_bytes();
    let before = free();
    let devices = [device("fits", 1 << 20), device("large", 1 << 30)];
    let strangers_out = Policy { users: Users::None, ..POLICY };
    assert!(registry.configure(&[changed.clone(), bob.clone()], &devices, strangers_out).is_err());
    assert!(registry.client("bob").is_err() && registry.blocks().is_empty());
    assert_eq!(registry.client("alice").unwrap().statistics.target_pages, 50);
    assert!(registry.admit(peer(9, 9)).is_ok(), "the old policy holds");
    assert!(
        registry
            .admit(peer(8, 8))
            .is_ok_and(|it| registry.client("uid-8").unwrap().id == it.client)
    );
    registry.configure(&[changed, bob], &devices[..1], POLICY).unwrap();
    assert_eq!(registry.client("alice").unwrap().statistics.target_pages, 60);
    assert_eq!(registry.blocks().len(), 1);
    registry.destroy_block("fits").unwrap();
    registry.store().trim();
    assert!(free() <= before + (1 << 20), "{} bytes, {before} before", free());
}

#[test]
fn block_devices_are_their_clients_alone() {
    let registry = registry(POLICY);
    let named = [settings("alice", Who::User(7)), settings("bob", Who::User(8))];
    let block = BlockSettings {
        name: "d".into(),
        client: "alice".into(),
        bytes: 1 << 20,
        block_bytes: 4096,
        reserve: true,
    };
    registry.configure(&named, std::slice::from_ref(&block), POLICY).unwrap();
    let id = |name: &str| registry.client(name).unwrap().id;
    assert_eq!(registry.list(id("alice")).len(), 1);
    assert!(registry.list(id("bob")).is_empty());
    assert!(registry.open(id("bob"), "d").is_none());
    let device = registry.open(id("alice"), "d").unwrap();
    device.write(4096, &[1; 512]).unwrap();
    assert!(matches!(registry.destroy_block("d"), Err(Error::InUse(_))));
    assert!(matches!(registry.create_block(&block), Err(Error::BlockExists(_))));
    let number = registry.blocks()[0].number;
    drop(device);
    registry.destroy_pool(number).unwrap();
    assert!(registry.blocks().is_empty() && registry.pools().unwrap().is_empty());
}

#[test]
fn an_open_block_device_is_destroyed_once_it_is_empty() {
    let registry = registry(POLICY);
    registry.configure(&[settings("alice", Who::User(7))], &[], POLICY).unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&told);
    registry.watch(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let block = BlockSettings {
        name: "d".into(),
        client: "alice".into(),
        bytes: 1 << 20,
        block_bytes: 4096,
        reserve: false,
    };
    registry.create_block(&block).unwrap();
    let device = registry.open(registry.client("alice").unwrap().id, "d").unwrap();
    device.write(8192, &[1; 4096]).unwrap();
    let error = registry.destroy_block("d").unwrap_err().to_string();
    assert_eq!(
        error,
        "block device 'd' is in use; disconnect it or discard its contents (blkdiscard) first"
    );
    device.deallocate(0, 1 << 20).unwrap();
    let told_before = told.load(Ordering::Relaxed);
    registry.destroy_block("d").unwrap();
    assert_eq!(told.load(Ordering::Relaxed), told_before + 1, "hosts are told");
    assert!(registry.blocks().is_empty() && registry.pools().unwrap().is_empty());
    assert!(device.read(0, &mut [0; 4096]).is_err(), "its host meets an error");
    assert!(device.write(0, &[1; 4096]).is_err());
}

#[test]
fn pools_are_made_and_destroyed_by_number() {
    let registry = registry(POLICY);
    let named = [settings("alice", Who::User(7)), settings("bob", Who::User(8))];
    registry.configure(&named, &[], POLICY).unwrap();
    let private = registry.create_pool("alice", PoolSpec::PERSISTENT).unwrap();
    let shared = registry.create_pool("alice", PoolSpec::shared_ephemeral(5)).unwrap();
    let joined = registry.create_pool("bob", PoolSpec::shared_ephemeral(5)).unwrap();
    assert_eq!(shared.number, joined.number);
    assert_eq!(registry.pools().unwrap().len(), 3);
    registry.destroy_pool(shared.number).unwrap();
    assert!(matches!(registry.destroy_pool(shared.number), Err(Error::NoPool(_))));
    let left = registry.pools().unwrap();
    assert_eq!((left.len(), left[0].number), (1, private.number));
}
