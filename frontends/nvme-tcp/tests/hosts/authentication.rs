//! DH-HMAC-CHAP, from the host's side.

use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

use crate::support::{CAROL, Host, POOLS, SECRET, World};
use spillway_nvme_tcp::Config;
use spillway_wire::auth::{Failure, Hash, Message, Negotiate, Proof, Reply, Secret};
use spillway_wire::fabrics::{ANY_CONTROLLER, AuthTransfer, ConnectResult, Fabrics};
use spillway_wire::kv;
use spillway_wire::nvme::{Command, Status};
use spillway_wire::nvme_tcp::InitRequest;

const OTHER: &str = "DHHC-1:00:M1cw6kjPIIKDgkPZiRp9PyeIUilO2E17hxGn2JbCACmG3Jf6:";

fn send(host: &mut Host, message: &Message<'_>) {
    let mut bytes = [0; 4096];
    let length = message.encode(7, &mut bytes).unwrap();
    let command = Fabrics::AuthSend(AuthTransfer::in_band(length as u32)).encode(host.id());
    assert_eq!(host.ask(command, &bytes[..length]).0.status, Status::SUCCESS);
}

fn receive(host: &mut Host) -> Vec<u8> {
    let command = Fabrics::AuthReceive(AuthTransfer::in_band(4096)).encode(host.id());
    let (completion, bytes) = host.ask(command, &[]);
    assert_eq!(completion.status, Status::SUCCESS);
    bytes
}

/// Authenticates as CAROL with `secret`, and gives the target's last message. `challenge` is the host's own.
fn authenticate(host: &mut Host, secret: &str, challenge: Option<&[u8]>) -> Vec<u8> {
    let offer = Negotiate { hashes: &[2, 1], groups: &[1, 0], secure_channel: 0 };
    send(host, &Message::Negotiate(offer));
    let bytes = receive(host);
    let Ok((7, Message::Challenge(asked))) = Message::decode(&bytes) else { panic!("{bytes:?}") };
    assert_eq!(
        (asked.hash, asked.group),
        (Hash::Sha384, 0),
        "the first of the host's hashes that the target knows"
    );
    let (key, length) = Secret::parse(secret).unwrap().key_of(CAROL);
    let proof = Proof {
        hash: asked.hash,
        challenge: asked.challenge,
        sequence: asked.sequence,
        transaction: 7,
        host: CAROL,
        subsystem: POOLS,
    };
    let response = proof.of_host(&key[..length]);
    let reply = Reply {
        response: &response[..48],
        challenge: challenge.map(|challenge| (challenge, 99)),
        exchange: &[],
    };
    send(host, &Message::Reply(reply));
    receive(host)
}

fn statistics(host: &mut Host) -> Status {
    let mut command = Command::new(kv::admin::STATISTICS, host.id(), 0);
    command.data.bytes = 4096;
    host.ask(command, &[]).0.status.code()
}

fn connected(world: &World) -> Host {
    let mut host = world.host();
    host.initialize(InitRequest::default());
    let completion = host.connect(POOLS, CAROL, 1, ANY_CONTROLLER, 0);
    assert!(ConnectResult::decode(completion.result).authenticate);
    host
}

#[test]
fn the_right_secret_opens_the_queue() {
    let world = World::new();
    let mut host = connected(&world);
    assert_eq!(statistics(&mut host), Status::AUTHENTICATION_REQUIRED);
    let end = authenticate(&mut host, SECRET, None);
    assert!(matches!(Message::decode(&end), Ok((7, Message::Success1(_)))));
    assert_eq!(statistics(&mut host), Status::SUCCESS);
    assert_eq!(world.failed.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wrong_secret_leaves_it_shut() {
    let world = World::new();
    let mut host = connected(&world);
    let end = authenticate(&mut host, OTHER, None);
    let failed = Failure::Failed as u8;
    assert!(matches!(Message::decode(&end), Ok((_, Message::Failure1(why))) if why == failed));
    assert_eq!(world.failed.load(Ordering::Relaxed), 1);
    let complaint = host.connection.complaint().unwrap();
    assert!(complaint.starts_with("authentication of host \"nqn"), "{complaint}");
    assert_eq!(statistics(&mut host), Status::AUTHENTICATION_REQUIRED);
    send(&mut host, &Message::Success2);
    assert_eq!(
        statistics(&mut host),
        Status::AUTHENTICATION_REQUIRED,
        "the host has not authenticated"
    );
    // The host is admitted once it proves that it knows the secret.
    authenticate(&mut host, SECRET, None);
    assert_eq!(statistics(&mut host), Status::SUCCESS);
}

#[test]
fn an_unproven_host_ends_no_association() {
    let world = World::new();
    let mut proven = connected(&world);
    authenticate(&mut proven, SECRET, None);
    let mut other = connected(&world);
    authenticate(&mut other, OTHER, None);
    assert_eq!(statistics(&mut proven), Status::SUCCESS);
}

#[test]
fn the_controller_proves_itself_when_it_is_asked() {
    let controller_secret = Arc::new(RwLock::new(Secret::parse(OTHER).ok()));
    let shared = Arc::clone(&controller_secret);
    let world = World::with(Config { controller_secret, ..Config::default() });
    proven_to(&mut connected(&world), OTHER);
    // The secret is replaced: hosts that authenticate later get a proof of the new one.
    *shared.write().unwrap() = Secret::parse(SECRET).ok();
    proven_to(&mut connected(&world), SECRET);
}

/// Authenticates, and asks the controller to prove that it knows `secret`.
fn proven_to(host: &mut Host, secret: &str) {
    let challenge = [5; 48];
    let end = authenticate(host, SECRET, Some(&challenge));
    let Ok((_, Message::Success1(success))) = Message::decode(&end) else { panic!("{end:?}") };
    let (key, length) = Secret::parse(secret).unwrap().key_of(POOLS);
    let proof = Proof {
        hash: Hash::Sha384,
        challenge: &challenge,
        sequence: 99,
        transaction: 7,
        host: CAROL,
        subsystem: POOLS,
    };
    assert!(proof.is_of_controller(&key[..length], success.response.unwrap()));
    assert_eq!(statistics(host), Status::AUTHENTICATION_REQUIRED, "until the host confirms");
    send(host, &Message::Success2);
    assert_eq!(statistics(host), Status::SUCCESS);
}

#[test]
fn a_controller_without_a_secret_says_that_it_cannot() {
    let world = World::new();
    let mut host = connected(&world);
    let end = authenticate(&mut host, SECRET, Some(&[5; 48]));
    assert!(matches!(Message::decode(&end), Ok((_, Message::Failure1(_)))));
    assert_eq!(statistics(&mut host), Status::AUTHENTICATION_REQUIRED);
}

#[test]
fn messages_that_make_no_sense_fail() {
    let world = World::new();
    for (message, failure) in [
        (
            Message::Negotiate(Negotiate { hashes: &[9], groups: &[0], secure_channel: 0 }),
            Failure::Hash,
        ),
        (
            Message::Negotiate(Negotiate { hashes: &[1], groups: &[1], secure_channel: 0 }),
            Failure::Group,
        ),
        (
            Message::Negotiate(Negotiate { hashes: &[1], groups: &[0], secure_channel: 1 }),
            Failure::SecureChannel,
        ),
        (Message::Success2, Failure::Payload),
    ] {
        let mut host = connected(&world);
        send(&mut host, &message);
        let end = receive(&mut host);
        let expected = failure as u8;
        assert!(
            matches!(Message::decode(&end), Ok((_, Message::Failure1(why))) if why == expected),
            "{failure:?}: {end:?}"
        );
    }
}
