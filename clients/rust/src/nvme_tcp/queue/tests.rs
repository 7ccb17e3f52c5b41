use spillway_types::Key;
use spillway_wire::kv;
use spillway_wire::nvme::Status;

use super::*;

/// A queue after connection setup, with capsules of 4 KiB.
fn open() -> Queue {
    let mut queue = Queue::new(4);
    queue.start(Digests::default(), 4096);
    queue.outgoing().clear();
    let response = InitResponse { host_data_bytes_max: 8192, ..Default::default() };
    assert_eq!(give(&mut queue, &[Pdu::InitResponse(response)]), Ok(vec![]));
    queue
}

/// The completions that come from a target's PDUs.
fn give(queue: &mut Queue, pdus: &[Pdu<'_>]) -> Result<Vec<(u16, u32)>, Trouble> {
    let mut bytes = vec![0; 1 << 20];
    let mut end = 0;
    for pdu in pdus {
        end += pdu.encode(queue.framing, &mut bytes[end..]).unwrap();
    }
    let (mut rest, mut done) = (&bytes[..end], Vec::new());
    while let Some(event) = queue.next(&mut rest)? {
        if let Event::Done { tag, bytes, .. } = event {
            done.push((tag, bytes));
        }
    }
    Ok(done)
}

fn sent(queue: &mut Queue) -> Vec<u8> {
    let bytes = queue.outgoing().bytes().to_vec();
    queue.outgoing().clear();
    bytes
}

/// Submits a retrieve of 4 KiB; returns its id.
fn retrieve(queue: &mut Queue) -> u16 {
    let command = kv::retrieve(kv::io::RETRIEVE, 0, 1, Key::new(1, 2), 4096);
    queue.submit(7, command, Payload::In(4096)).unwrap();
    let bytes = sent(queue);
    command_of(&bytes).id
}

/// The command of a capsule.
fn command_of(capsule: &[u8]) -> Command {
    match nvme_tcp::decode(capsule, Framing::default(), 1 << 20) {
        Ok(Some((Pdu::Command(command, _), _))) => command,
        other => panic!("{other:?}"),
    }
}

fn data(command: u16, offset: u32, bytes: u32, success: bool) -> Transfer {
    Transfer { command, tag: 0, offset, bytes, last: success, success }
}

#[test]
fn data_and_completion_come_in_one_pdu_or_in_several() {
    let mut queue = open();
    let id = retrieve(&mut queue);
    let page = [3; 4096];
    let whole = Pdu::ControllerData(data(id, 0, 4096, true), &page);
    assert_eq!(give(&mut queue, &[whole]), Ok(vec![(7, 4096)]));
    let id = retrieve(&mut queue);
    let parts = [
        Pdu::ControllerData(data(id, 0, 96, false), &page[..96]),
        Pdu::ControllerData(data(id, 96, 1000, false), &page[..1000]),
        Pdu::Response(Completion { id, ..Default::default() }),
    ];
    assert_eq!(give(&mut queue, &parts), Ok(vec![(7, 1096)]));
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn a_target_that_sends_what_was_not_asked_for_is_left() {
    let page = [3; 8192];
    let wrong: [fn(u16) -> (Transfer, usize); 4] = [
        |id| (data(id, 0, 4097, false), 4097),
        |id| (data(id, 1, 10, false), 10),
        |id| (data(id, u32::MAX, 10, false), 10),
        |id| (data(id.wrapping_add(1 << 8), 0, 10, false), 10),
    ];
    for wrong in wrong {
        let mut queue = open();
        let (transfer, bytes) = wrong(retrieve(&mut queue));
        let answer = give(&mut queue, &[Pdu::ControllerData(transfer, &page[..bytes])]);
        assert!(matches!(answer, Err(Trouble::Protocol(_))), "{transfer:?}");
    }
    let mut queue = open();
    let id = retrieve(&mut queue);
    let completion = Pdu::Response(Completion { id, ..Default::default() });
    assert!(give(&mut queue, &[completion, completion]).is_err(), "answered twice");
    let grant = ReadyToTransfer { command: id, tag: 1, offset: 0, bytes: 4 };
    let mut queue = open();
    retrieve(&mut queue);
    assert!(give(&mut queue, &[Pdu::ReadyToTransfer(grant)]).is_err(), "nothing to send");
}

#[test]
fn a_short_value_travels_in_the_capsule() {
    let mut queue = open();
    let value = [5; 4096];
    let store = kv::store(0, 1, Key::new(1, 2), 4096);
    queue.submit(1, store, Payload::Out(&value)).unwrap();
    let bytes = sent(&mut queue);
    assert_eq!(bytes.len(), 72 + 4096);
    let command = command_of(&bytes);
    assert_eq!(command.data, DataPointer::in_capsule(4096));
    assert_eq!(bytes[72..], value);
}

#[test]
fn a_long_value_is_sent_in_the_parts_that_are_granted() {
    let mut queue = open();
    let value: Vec<u8> = (0..20_000u32).map(|byte| byte as u8).collect();
    queue.submit(1, kv::store(0, 1, Key::new(1, 2), 20_000), Payload::Out(&value)).unwrap();
    let bytes = sent(&mut queue);
    let command = command_of(&bytes);
    assert_eq!((bytes.len(), command.data), (72, DataPointer::transport(20_000)));
    let grant = |offset, bytes| ReadyToTransfer { command: command.id, tag: 9, offset, bytes };
    let mut received = Vec::new();
    for (offset, bytes) in [(0, 12_000), (12_000, 8_000)] {
        give(&mut queue, &[Pdu::ReadyToTransfer(grant(offset, bytes))]).unwrap();
        assert!(queue.supply(1, &value));
        let sent = sent(&mut queue);
        let mut rest = &sent[..];
        while let Some((Pdu::HostData(transfer, part), length)) =
            nvme_tcp::decode(rest, queue.framing, 1 << 20).unwrap()
        {
            assert!(part.len() <= 8192 && transfer.tag == 9);
            assert_eq!(transfer.offset as usize, received.len());
            received.extend_from_slice(part);
            rest = &rest[length..];
        }
    }
    assert_eq!(received, value);
    let beyond = give(&mut queue, &[Pdu::ReadyToTransfer(grant(20_000, 1))]);
    assert!(beyond.is_err());
    let done = Pdu::Response(Completion { id: command.id, ..Default::default() });
    assert_eq!(give(&mut queue, &[done]), Ok(vec![(1, 20_000)]));
}

#[test]
fn a_full_queue_takes_no_more() {
    let mut queue = open();
    let exists = kv::with_key(kv::io::EXIST, 0, 1, Key::new(1, 2));
    for tag in 0..4 {
        queue.submit(tag, exists, Payload::None).unwrap();
    }
    assert_eq!(queue.submit(4, exists, Payload::None), Err(Full));
    let bytes = sent(&mut queue);
    let id = command_of(&bytes).id;
    let missing = Completion { id, status: Status::KEY_NOT_FOUND, ..Default::default() };
    assert_eq!(give(&mut queue, &[Pdu::Response(missing)]), Ok(vec![(0, 0)]));
    assert_eq!(queue.submit(4, exists, Payload::None), Ok(()));
}

#[test]
fn a_target_that_grants_other_digests_is_left() {
    let mut queue = Queue::new(4);
    queue.start(Digests { header: true, data: true }, 4096);
    let response =
        InitResponse { host_data_bytes_max: 8192, header_digest: true, ..Default::default() };
    assert!(give(&mut queue, &[Pdu::InitResponse(response)]).is_err());
}
