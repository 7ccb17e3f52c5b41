//! Data that arrives with a wrong digest.

use crate::support::{ALICE, Answer, BLOCKS, Host, POOLS, World};
use spillway_types::{Key, PoolSpec};
use spillway_wire::fabrics::{ANY_CONTROLLER, Connect, ConnectData, Fabrics};
use spillway_wire::kv::{self, CreatePool};
use spillway_wire::nvme::{Command, Completion, DataPointer, Status, block};
use spillway_wire::nvme_tcp::{InitRequest, Pdu, Transfer};

const DIGESTS: InitRequest = InitRequest {
    version: 0,
    alignment: 0,
    header_digest: true,
    data_digest: true,
    transfers_max: 0,
};

/// Changes the last byte of data of a PDU. Behind it is the digest.
fn damaged(mut pdu: Vec<u8>) -> Vec<u8> {
    let at = pdu.len() - 5;
    pdu[at] ^= 1;
    pdu
}

fn completed(answers: &[Answer]) -> Completion {
    let [Answer::Completed(completion)] = answers else { panic!("{answers:?}") };
    *completion
}

/// Checks that a command failed so that a host tries it again, and that the log and the metrics show it.
fn failed(world: &World, io: &mut Host, answers: &[Answer], (id, count): (u16, u64)) {
    let completion = completed(answers);
    assert_eq!((completion.id, completion.status), (id, Status::TRANSPORT));
    let complaint = io.connection.complaint().unwrap();
    assert_eq!(complaint, "the digest of data is wrong: its command fails");
    assert_eq!(world.target.damaged(), count);
}

#[test]
fn a_command_whose_capsule_is_damaged_fails_and_the_connection_goes_on() {
    let world = World::new();
    let (mut admin, controller) = world.admin_with(DIGESTS, POOLS, ALICE, 1);
    let create = Command::new(kv::admin::CREATE_POOL, admin.id(), 0);
    let pool = admin.ask(create, &CreatePool(PoolSpec::PERSISTENT).encode()).0.result as u32;
    let mut io = world.host();
    io.flow_control = true;
    io.initialize(DIGESTS);
    assert_eq!(io.connect(POOLS, ALICE, 1, controller, 1).status, Status::SUCCESS);
    let key = Key::new(1, 1);
    let mut command = kv::store(io.id(), pool, key, 4096);
    command.data = DataPointer::in_capsule(4096);
    let pdu = damaged(io.encode(&Pdu::Command(command, &[7; 4096])));
    // It is taken as a whole, however it arrives.
    assert!(io.send(&pdu[..3000]).unwrap().is_empty());
    let answers = io.send(&pdu[3000..]).unwrap();
    failed(&world, &mut io, &answers, (command.id, 1));
    let exist = kv::with_key(kv::io::EXIST, io.id(), pool, key);
    let next = io.ask(exist, &[]).0;
    assert_eq!(next.status.code(), Status::KEY_NOT_FOUND, "nothing was stored");
    assert_eq!((completed(&answers).queue_head, next.queue_head), (2, 3), "Connect was the first");
    let again = kv::store(io.id(), pool, key, 4096);
    assert_eq!(io.ask(again, &[7; 4096]).0.status, Status::SUCCESS);
    assert_eq!((world.target.damaged(), io.connection.complaint()), (1, None));
}

#[test]
fn a_command_whose_later_data_is_damaged_fails_at_the_end_of_its_grant() {
    let world = World::new();
    let (_admin, controller) = world.admin_with(DIGESTS, BLOCKS, ALICE, 1);
    let mut io = world.io_with(DIGESTS, BLOCKS, ALICE, controller);
    let data: Vec<u8> = (0..8 * 4096u32).map(|at| (at / 3) as u8).collect();
    let mut write = Command::new(block::WRITE, io.id(), 1);
    write.data.bytes = data.len() as u32;
    write.cdw12 = 7;
    let pdu = io.encode(&Pdu::Command(write, &[]));
    let answers = io.send(&pdu).unwrap();
    let [Answer::Ready { tag, offset: 0, bytes }] = answers[..] else { panic!("{answers:?}") };
    assert_eq!(bytes as usize, data.len());
    let half = bytes / 2;
    let part = |offset, last| Transfer {
        command: write.id,
        tag,
        offset,
        bytes: half,
        last,
        success: false,
    };
    let (first, second) = data.split_at(half as usize);
    let pdu = damaged(io.encode(&Pdu::HostData(part(0, false), first)));
    assert!(io.send(&pdu).unwrap().is_empty(), "the host sends all that it was granted");
    let pdu = io.encode(&Pdu::HostData(part(half, true), second));
    let answers = io.send(&pdu).unwrap();
    failed(&world, &mut io, &answers, (write.id, 1));
    let mut again = write;
    again.id = io.id();
    assert_eq!(io.ask(again, &data).0.status, Status::SUCCESS);
    let mut read = Command::new(block::READ, io.id(), 1);
    (read.data.bytes, read.cdw12) = (write.data.bytes, write.cdw12);
    assert!(io.ask(read, &[]).1 == data);
}

#[test]
fn a_damaged_connect_fails_and_the_host_can_try_again() {
    let world = World::new();
    let mut host = world.host();
    host.initialize(DIGESTS);
    let connect = Connect {
        format: 0,
        queue: 0,
        queue_entries: 31,
        attributes: Connect::NO_FLOW_CONTROL,
        keep_alive_ms: 0,
    };
    let data =
        ConnectData { host_id: [1; 16], controller: ANY_CONTROLLER, subsystem: POOLS, host: ALICE };
    let mut command = Fabrics::Connect(connect).encode(1);
    command.data = DataPointer::in_capsule(1024);
    let pdu = damaged(host.encode(&Pdu::Command(command, &data.encode().unwrap())));
    let answers = host.send(&pdu).unwrap();
    failed(&world, &mut host, &answers, (1, 1));
    assert_eq!(host.connect(POOLS, ALICE, 1, ANY_CONTROLLER, 0).status, Status::SUCCESS);
}

#[test]
fn damaged_headers_and_damaged_data_that_was_not_granted_end_the_connection() {
    let world = World::new();
    let (_admin, controller) = world.admin_with(DIGESTS, BLOCKS, ALICE, 1);
    let ungranted =
        Transfer { command: 1, tag: 0, offset: 0, bytes: 64, last: true, success: false };
    for damages_header in [true, false] {
        let mut io = world.io_with(DIGESTS, BLOCKS, ALICE, controller);
        let pdu = io.encode(&Pdu::HostData(ungranted, &[1; 64]));
        let mut pdu = damaged(pdu);
        pdu[20] ^= u8::from(damages_header);
        assert!(io.send(&pdu).is_err());
        assert!(matches!(io.answers()[..], [Answer::Terminated]));
    }
}
