//! Log pages, and the discovery controller, tested on connections without sockets.

use crate::support::{ALICE, BLOCKS, Host, POOLS, World};
use spillway_nvme_tcp::Error;
use spillway_types::{Key, PoolSpec};
use spillway_wire::fabrics::DISCOVERY_NQN;
use spillway_wire::identify::{self, CommandSet, Controller, structure};
use spillway_wire::kv::{self, CreatePool};
use spillway_wire::log_page::{Event, GetLogPage, HEALTH_BYTES, Health, SUPPORTED_BYTES, log};
use spillway_wire::nvme::{Command, Status, admin, block, feature};
use spillway_wire::nvme_tcp::Pdu;

fn read_log(admin: &mut Host, log: u8, bytes: usize) -> (Status, Vec<u8>) {
    let bytes = bytes as u64;
    let get = GetLogPage { log, retain_event: false, offset: 0, bytes, command_set: 0 };
    let command = get.encode(admin.id());
    let (completion, bytes) = admin.ask(command, &[]);
    (completion.status.code(), bytes)
}

fn get_feature(admin: &mut Host, feature: u8) -> (Status, u64) {
    let mut command = Command::new(admin::GET_FEATURES, admin.id(), 0);
    command.cdw10 = feature.into();
    let (completion, _) = admin.ask(command, &[]);
    (completion.status.code(), completion.result)
}

fn set_feature(admin: &mut Host, feature: u8, value: u32) {
    let mut command = Command::new(admin::SET_FEATURES, admin.id(), 0);
    (command.cdw10, command.cdw11) = (feature.into(), value);
    assert_eq!(admin.ask(command, &[]).0.status, Status::SUCCESS);
}

#[test]
fn a_controller_has_the_logs_and_features_that_it_says_it_has() {
    let world = World::new();
    let entry = |table: &[u8], at: u8| {
        u32::from_le_bytes(*table[usize::from(at) * 4..].first_chunk().unwrap())
    };
    for (subsystem, own) in [
        (DISCOVERY_NQN, log::DISCOVERY),
        (BLOCKS, log::CHANGED_NAMESPACES),
        (POOLS, log::CHANGED_NAMESPACES),
    ] {
        let (mut admin, _) = world.admin(subsystem, ALICE);
        let (status, logs) = read_log(&mut admin, log::SUPPORTED, SUPPORTED_BYTES);
        assert_eq!(status, Status::SUCCESS);
        for log in 0..=u8::MAX {
            let (status, _) = read_log(&mut admin, log, 16);
            assert!(matches!(status, Status::SUCCESS | Status::INVALID_LOG), "{log:#x}: {status}");
            assert_eq!(entry(&logs, log), u32::from(status == Status::SUCCESS), "{log:#x}");
        }
        let common = [log::SUPPORTED, log::ERRORS, log::HEALTH, log::FIRMWARE, log::COMMANDS];
        for log in common.into_iter().chain([log::FEATURES, own]) {
            assert_eq!(entry(&logs, log), 1, "{log:#x} in {subsystem}");
        }
        let (_, features) = read_log(&mut admin, log::FEATURES, SUPPORTED_BYTES);
        for feature in 0..=u8::MAX {
            let (status, _) = get_feature(&mut admin, feature);
            let expected = if status == Status::SUCCESS { 1 << 21 | 1 } else { 0 };
            assert_eq!(entry(&features, feature), expected, "{feature:#x}");
        }
    }
}

#[test]
fn the_health_log_counts_what_the_host_does() {
    let world = World::new();
    let (mut admin, controller) = world.admin(BLOCKS, ALICE);
    let health = |admin: &mut Host| read_log(admin, log::HEALTH, HEALTH_BYTES).1;
    assert_eq!(health(&mut admin), Health::default().encode());
    let mut io = world.io(BLOCKS, ALICE, controller);
    let namespace = 1;
    for (opcode, blocks) in [
        (block::WRITE, 1),
        (block::WRITE, 40),
        (block::READ, 1),
        (block::READ, 2),
        (block::READ, 250),
    ] {
        let mut command = Command::new(opcode, io.id(), namespace);
        command.data.bytes = blocks * 4096;
        command.cdw12 = blocks - 1;
        let data = if opcode == block::READ { vec![] } else { vec![3; blocks as usize * 4096] };
        assert_eq!(io.ask(command, &data).0.status, Status::SUCCESS, "{opcode} {blocks}");
    }
    let flush = Command::new(block::FLUSH, io.id(), namespace);
    assert!(io.ask(flush, &[]).0.status.is_success());
    admin.now_ms = 2 * 3_600_000 + 5;
    let counted =
        Health { reads: 3, read_bytes: 253 * 4096, writes: 2, written_bytes: 41 * 4096, hours: 2 };
    assert_eq!(health(&mut admin), counted.encode());
    let (mut other, _) = world.admin(POOLS, ALICE);
    assert_eq!(health(&mut other), Health::default().encode(), "another controller");
}

#[test]
fn the_health_log_of_pools_counts_commands() {
    let world = World::new();
    let (mut admin, controller) = world.admin(POOLS, ALICE);
    let create = Command::new(kv::admin::CREATE_POOL, admin.id(), 0);
    let pool = admin.ask(create, &CreatePool(PoolSpec::PERSISTENT).encode()).0.result as u32;
    let mut io = world.io(POOLS, ALICE, controller);
    for (index, bytes) in [(1, 4096), (2, 1 << 20)] {
        let command = kv::store(io.id(), pool, Key::new(1, index), bytes);
        assert!(io.ask(command, &vec![1; bytes as usize]).0.status.is_success());
        let command = kv::retrieve(kv::io::RETRIEVE, io.id(), pool, Key::new(1, index), bytes);
        assert!(io.ask(command, &[]).0.status.is_success());
    }
    let missing = kv::retrieve(kv::io::RETRIEVE, io.id(), pool, Key::new(1, 3), 1 << 20);
    assert_eq!(io.ask(missing, &[]).0.status.code(), Status::KEY_NOT_FOUND);
    let counted = Health { reads: 3, writes: 2, ..Health::default() };
    assert_eq!(read_log(&mut admin, log::HEALTH, HEALTH_BYTES).1, counted.encode());
}

#[test]
fn the_keep_alive_timeout_of_discovery_is_capped_and_holds() {
    const CAP_MS: u64 = 120_000;
    let world = World::new();
    for (asked_ms, granted_ms) in [(u32::MAX, CAP_MS), (0, CAP_MS), (120_001, CAP_MS), (5000, 5000)]
    {
        let mut admin = world.host();
        admin.keep_alive_ms = asked_ms;
        admin.initialize(Default::default());
        let connected = admin.connect(DISCOVERY_NQN, "nqn.2026-11.io.spillway:any", 1, 0xffff, 0);
        assert_eq!(connected.status, Status::SUCCESS);
        admin.enable();
        let granted = get_feature(&mut admin, feature::KEEP_ALIVE);
        assert_eq!(granted, (Status::SUCCESS, granted_ms), "Connect with {asked_ms} ms");
        set_feature(&mut admin, feature::KEEP_ALIVE, 1);
        set_feature(&mut admin, feature::KEEP_ALIVE, asked_ms);
        let granted = get_feature(&mut admin, feature::KEEP_ALIVE);
        assert_eq!(granted, (Status::SUCCESS, granted_ms), "Set Features with {asked_ms} ms");
        // As other controllers, it ends after twice the timeout.
        let end_ms = 2 * granted_ms;
        assert_eq!(admin.connection.deadline_ms(0), Some(end_ms));
        assert!(admin.connection.poll(end_ms - 1, &mut admin.out).is_ok());
        assert!(matches!(admin.connection.poll(end_ms, &mut admin.out), Err(Error::Silent)));
    }
}

#[test]
fn a_host_may_wait_for_changes_of_the_discovery_log() {
    let world = World::new();
    let (mut admin, _) = world.admin(DISCOVERY_NQN, "nqn.2026-11.io.spillway:any");
    let command = identify::identify(admin.id(), structure::CONTROLLER, 0, CommandSet::Block);
    let (_, bytes) = admin.ask(command, &[]);
    assert_eq!(Controller::decode(&bytes).unwrap().events, Event::DISCOVERY_CHANGED_BIT);
    set_feature(&mut admin, feature::ASYNC_EVENTS, Event::DISCOVERY_CHANGED_BIT);
    let events = get_feature(&mut admin, feature::ASYNC_EVENTS);
    assert_eq!(events, (Status::SUCCESS, Event::DISCOVERY_CHANGED_BIT.into()));
    let event = admin.encode(&Pdu::Command(Command::new(admin::ASYNC_EVENT, 900, 0), &[]));
    assert!(admin.send(&event).unwrap().is_empty());
    world.target.namespaces_changed(world.alice);
    admin.connection.poll(0, &mut admin.out).unwrap();
    assert!(admin.answers().is_empty(), "every host is told the same, which did not change");
}
