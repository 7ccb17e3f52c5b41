//! Invalid input.

use proptest::prelude::*;

use crate::support::{Reply, TestClient, command, server};

fn word() -> impl Strategy<Value = Vec<u8>> {
    let names = spillway_resp_names();
    prop_oneof![
        proptest::sample::select(names).prop_map(|name| name.as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..20),
        any::<i64>().prop_map(|number| number.to_string().into_bytes()),
    ]
}

fn spillway_resp_names() -> Vec<&'static str> {
    let names = "get set setnx setex psetex getset getdel getex mget mset msetnx append setrange getrange substr \
                 strlen incr decr incrby decrby incrbyfloat del exists type object expire pexpireat ttl persist \
                 randomkey keys scan dbsize flushdb select ping echo hello auth client command config info time \
                 memory reset nx xx ex px exat gt lt get keepttl match count docs list encoding reply off skip on";
    names.split_whitespace().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn commands_of_any_words_are_answered_once(
        words in proptest::collection::vec(word(), 1..7),
        step in 1..100_usize,
    ) {
        let mut client = TestClient::new(&server(4 << 20));
        let parts: Vec<_> = words.iter().map(Vec::as_slice).collect();
        client.feed(&command(&parts), step);
        let replies = client.replies();
        let is_silent = words[0].eq_ignore_ascii_case(b"client");
        prop_assert!(replies.len() == 1 || is_silent && replies.is_empty(), "{replies:?}");
    }

    #[test]
    fn any_bytes_end_in_an_error_or_in_waiting(
        bytes in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..b'3', any::<u8>()],
            0..300,
        ),
        step in 1..50_usize,
    ) {
        let mut client = TestClient::new(&server(4 << 20));
        client.feed(&bytes, step);
        let replies = client.replies();
        if client.connection.session.ends {
            let last = replies.last();
            prop_assert!(matches!(last, Some(Reply::Error(line)) if line.starts_with("ERR Protocol")));
        }
    }
}

#[test]
fn half_a_value_leaves_nothing_behind() {
    let shared = server(64 << 20);
    let used = || {
        let store = shared.keyspaces.store();
        store.clients().iter().map(|it| store.statistics(it.id).unwrap().used_pages).sum::<u64>()
    };
    let mut client = TestClient::new(&shared);
    client.say("SET a 1");
    let before = used();
    let whole = command(&[b"SET", b"a", &vec![7; 3 << 20]]);
    client.feed(&whole[..2 << 20], 10_000);
    assert!(used() > before, "what comes is charged");
    drop(client);
    assert_eq!(used(), before);
    assert_eq!(TestClient::new(&shared).say("GET a"), Reply::bulk("1"));
}

#[test]
fn what_is_no_value_can_not_be_long() {
    let mut client = TestClient::new(&server(16 << 20));
    let long = vec![b'x'; 100_000];
    for parts in [&[b"ECHO", &long[..]][..], &[b"GET", &long], &[b"SET", &long, b"v"]] {
        assert!(matches!(client.ask(parts), Reply::Error(_)), "{:?}", parts[0]);
    }
    assert_eq!(client.say("PING"), Reply::Simple("PONG".into()));
}
