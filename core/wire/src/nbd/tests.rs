use proptest::prelude::*;

use super::*;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn the_greeting() {
    assert_eq!(&GREETING, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn flags_that_were_not_offered_are_refused() {
    let flags = ClientFlags::decode([0, 0, 0, 3]).unwrap();
    assert!(flags.fixed_newstyle && flags.no_zeroes);
    assert!(ClientFlags::decode([0, 0, 0, 4]).is_err());
    assert!(ClientFlags::decode([0x80, 0, 0, 1]).is_err());
}

#[test]
fn requests() {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
    bytes[4..8].copy_from_slice(&[0, 1, 0, 6]);
    bytes[8..16].copy_from_slice(&7_u64.to_be_bytes());
    bytes[16..24].copy_from_slice(&(1_u64 << 40).to_be_bytes());
    bytes[24..].copy_from_slice(&u32::MAX.to_be_bytes());
    let expected = Request {
        command: Command::WriteZeroes,
        flags: request_flags::FUA,
        cookie: 7,
        offset: 1 << 40,
        bytes: u32::MAX,
    };
    assert_eq!(Request::decode(&bytes).unwrap(), expected);
    bytes[0] = 0;
    assert!(Request::decode(&bytes).is_err());
}

#[test]
fn info_queries() {
    let data = [&text("disk")[..], &[0, 2, 0, 3, 0, 1]].concat();
    let query = InfoQuery::decode(&data).unwrap();
    assert_eq!(query.name, "disk");
    assert!(query.wants(info::NAME) && query.wants(info::BLOCK_SIZE));
    assert!(!query.wants(2));
    for wrong in [
        &data[..data.len() - 1],
        &[&data[..], &[0]].concat(),
        &[&text("a\0b")[..], &[0, 0]].concat(),
        &[&text(&"x".repeat(4097))[..], &[0, 0]].concat(),
        &[0xff; 40],
    ] {
        assert!(InfoQuery::decode(wrong).is_err());
    }
}

#[test]
fn context_queries() {
    let data =
        [&text("disk")[..], &[0, 0, 0, 2], &text("base:"), &text("base:allocation")].concat();
    let query = ContextQuery::decode(&data).unwrap();
    assert_eq!(query.name, "disk");
    assert_eq!(query.queries().collect::<Vec<_>>(), ["base:", "base:allocation"]);
    // The count is larger than the number of queries.
    let short = [&text("disk")[..], &[0xff; 4], &text("base:")].concat();
    assert!(ContextQuery::decode(&short).is_err());
}

#[test]
fn replies() {
    let ok = simple_reply(5, None);
    assert_eq!(ok, *b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x05");
    let chunk = Chunk { kind: chunk::ERROR, done: true, cookie: 1, bytes: 6 };
    assert_eq!(chunk.encode(), *b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x01\0\0\0\x06");
    assert_eq!(error_payload(Failure::NoSpace), [0, 0, 0, 28, 0, 0]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = InfoQuery::decode(&data);
        let _ = export_name(&data);
        if let Ok(query) = ContextQuery::decode(&data) {
            prop_assert!(query.queries().count() <= data.len() / 4);
        }
    }
}
