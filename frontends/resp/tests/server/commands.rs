//! Single commands.

use std::sync::Arc;

use spillway_resp::{Described, Shared};
use spillway_store::{ClientId, Lifetime, Store};
use spillway_types::{Access, Admitted, Denied, Identity};

use crate::support::{Reply, TestClient, command, only, server, shared_of};

const MIB: usize = 1 << 20;

fn value(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 + at / 4096) as u8 ^ seed).collect()
}

#[test]
fn values_of_all_lengths_come_back_whole() {
    let mut client = TestClient::new(&server(512 << 20));
    let lengths = [
        0,
        1,
        100,
        2990,
        3032,
        4000,
        4040,
        4055,
        4056,
        4095,
        4096,
        4097,
        8191,
        65_535,
        65_536,
        65_537,
        70_000,
        MIB,
        16 * MIB,
        16 * MIB + 1,
        40 * MIB + 5,
    ];
    for (seed, &length) in lengths.iter().enumerate() {
        let (key, value) = (format!("key-{length}"), value(length, seed as u8));
        let set = command(&[b"SET", key.as_bytes(), &value]);
        client.feed(&set, if length > MIB { 100_000 } else { 777 });
        assert_eq!(client.replies(), [Reply::ok()], "{length}");
        assert_eq!(client.ask(&[b"GET", key.as_bytes()]), Reply::Bulk(value.clone()), "{length}");
        assert_eq!(client.say(&format!("STRLEN {key}")), Reply::Integer(length as i64));
        assert_eq!(client.say(&format!("EXPIRE {key} 100")), Reply::Integer(1));
        assert_eq!(client.say(&format!("TTL {key}")), Reply::Integer(100));
        let part = client.say(&format!("GETRANGE {key} 5 -3"));
        let expected = if length > 7 { &value[5..length - 2] } else { &[] };
        assert_eq!(part, Reply::bulk(expected), "{length}");
        let from = length.saturating_sub(70);
        let part = client.say(&format!("GETRANGE {key} {from} {}", length + 9));
        assert_eq!(part, Reply::bulk(&value[from..]), "the end of {length}");
    }
    assert_eq!(client.say("DBSIZE"), Reply::Integer(lengths.len() as i64));
    assert_eq!(client.say("FLUSHALL"), Reply::ok());
    assert_eq!(client.say("DBSIZE"), Reply::Integer(0));
}

#[test]
fn keys_of_all_lengths_are_compared_whole() {
    let mut client = TestClient::new(&server(64 << 20));
    for length in [0, 1, 1000, 4055, 4056, 4096, 8152, 65_536] {
        let (key, mut other) = (vec![b'k'; length], vec![b'k'; length]);
        for value in [&b"short"[..], &value(5000, 3)] {
            assert_eq!(client.ask(&[b"SET", &key, value]), Reply::ok());
            assert_eq!(client.ask(&[b"GET", &key]), Reply::bulk(value), "{length}");
        }
        other.push(b'k');
        if length < 65_536 {
            assert_eq!(client.ask(&[b"GET", &other]), Reply::Null, "{length}");
        }
        assert_eq!(client.ask(&[b"DEL", &key]), Reply::Integer(1));
    }
    assert!(client.error(&format!("GET {}", "k".repeat(65_537))).contains("longer than 65536"));
    assert_eq!(client.say("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn values_are_changed_in_part() {
    let mut client = TestClient::new(&server(256 << 20));
    let (half, long) = (value(40_000, 1), value(3 * MIB, 2));
    let mut expected = Vec::new();
    for part in [&half[..], &half, &long, b"end"] {
        expected.extend_from_slice(part);
        let length = Reply::Integer(expected.len() as i64);
        assert_eq!(client.ask(&[b"APPEND", b"a", part]), length);
    }
    assert_eq!(client.say("GET a"), Reply::Bulk(expected.clone()));
    let at = 100_000;
    expected[at..at + half.len()].copy_from_slice(&half);
    client.ask(&[b"SETRANGE", b"a", b"100000", &half]);
    assert_eq!(client.say("GET a"), Reply::Bulk(expected));
    assert_eq!(client.say("SETRANGE gap 70000 x"), Reply::Integer(70_001));
    let mut gap = vec![0; 70_000];
    gap.push(b'x');
    assert_eq!(client.say("GET gap"), Reply::Bulk(gap));
    assert!(client.error("SETRANGE gap 536870912 x").contains("maximum allowed size"));
    assert!(client.error("SETRANGE gap -1 x").contains("out of range"));
}

#[test]
fn a_value_that_is_changed_in_part_expires_as_before() {
    let mut client = TestClient::new(&server(16 << 20));
    for before in ["", "some"] {
        client.say(&format!("SET a {before} EX 100"));
        for change in ["APPEND a x", "SETRANGE a 3 y", "SETBIT a 7 1"] {
            client.say(change);
            assert_eq!(client.say("TTL a"), Reply::Integer(100), "{before:?}, {change}");
        }
    }
}

#[test]
fn options_of_set_are_minded() {
    let mut client = TestClient::new(&server(16 << 20));
    assert_eq!(client.say("SET a 1 XX"), Reply::Null);
    assert_eq!(client.say("SET a 1 NX EX 10"), Reply::ok());
    assert_eq!(client.say("SET a 2 NX"), Reply::Null);
    assert_eq!(client.say("SET a 2 KEEPTTL GET"), Reply::bulk("1"));
    assert_eq!(client.say("PTTL a"), Reply::Integer(10_000));
    assert_eq!(client.say("SET a 3"), Reply::ok());
    assert_eq!(client.say("TTL a"), Reply::Integer(-1));
    for wrong in ["SET a 1 NX XX", "SET a 1 EX 1 PX 1", "SET a 1 EX", "SET a 1 KEEPTTL EX 1"] {
        assert!(client.error(wrong).contains("syntax"), "{wrong}");
    }
    assert!(client.error("SET a 1 EX 0").contains("invalid expire time in 'set'"));
    assert!(client.error("SET a 1 EX x").contains("not an integer"));
    client.now_ms += 1;
    assert_eq!(client.say("PSETEX b 5 v"), Reply::ok());
    client.now_ms += 4;
    assert_eq!(client.say("GET b"), Reply::bulk("v"));
    client.now_ms += 1;
    assert_eq!(client.say("GET b"), Reply::Null);
    assert_eq!(client.say("MSETNX x 1 a 2"), Reply::Integer(0));
    assert_eq!(client.say("EXISTS x a a"), Reply::Integer(2));
    assert_eq!(client.say("MSETNX x 1 y 2"), Reply::Integer(1));
    let values = vec![Reply::bulk("1"), Reply::Null, Reply::bulk("2")];
    assert_eq!(client.say("MGET x none y"), Reply::Array(values));
}

#[test]
fn strangers_say_who_they_are_first() {
    let shared = server(16 << 20);
    let mut client = TestClient::stranger(&shared);
    for line in ["GET a", "CLIENT ID", "SELECT 1", "PING"] {
        assert!(client.error(line).starts_with("NOAUTH"), "{line}");
    }
    assert!(client.error("HELLO 3").starts_with("NOAUTH"));
    for wrong in ["AUTH secret", "AUTH name wrong", "HELLO 3 AUTH name wrong"] {
        assert!(client.error(wrong).starts_with("WRONGPASS"), "{wrong}");
    }
    assert_eq!(client.say("AUTH name secret"), Reply::ok());
    assert_eq!(client.say("SET a 1"), Reply::ok());
    assert!(client.error("AUTH name wrong").starts_with("WRONGPASS"));
    assert_eq!(client.say("GET a"), Reply::bulk("1"));
    assert_eq!(client.say("RESET"), Reply::Simple("RESET".into()));
    assert!(client.error("GET a").starts_with("NOAUTH"));
    client.feed(b"*20\r\n", 1);
    let reply = client.replies();
    let line = "ERR Protocol error: unauthenticated multibulk length";
    assert_eq!(reply, [Reply::Error(line.into())]);
    assert!(client.connection.session.ends);
}

#[test]
fn clients_are_told_of_their_own_connections_alone() {
    let shared = server(16 << 20);
    let mut client = TestClient::new(&shared);
    let own = client.connection.session.described.client;
    let name = b"of another".to_vec();
    let other =
        Described { client: Some(ClientId(own.unwrap().0 + 1)), name, ..Described::default() };
    shared.sessions.lock().insert(2, other);
    shared.sessions.lock().insert(3, Described::default());
    for line in ["CLIENT LIST", "CLIENT LIST TYPE normal", "CLIENT LIST ID 1 2 3"] {
        let Reply::Bulk(text) = client.say(line) else { panic!("{line}") };
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("id=1 ") && text.lines().count() == 1, "{line}: {text}");
    }
    assert_eq!(client.say("CLIENT LIST ID 2 3"), Reply::bulk(""));
    let Reply::Bulk(text) = client.say("INFO clients") else { panic!() };
    assert!(String::from_utf8(text).unwrap().contains("connected_clients:1\r\n"));
}

#[test]
fn who_gives_a_password_again_stays_in_its_database() {
    let mut client = TestClient::stranger(&server(16 << 20));
    for login in ["AUTH name secret", "HELLO 2 AUTH name secret"] {
        client.say(login);
        client.say("SELECT 3");
        assert_eq!(client.say("SET a three"), Reply::ok());
        client.say(login);
        assert_eq!(client.say("GET a"), Reply::bulk("three"), "{login}");
        let Reply::Bulk(text) = client.say("CLIENT INFO") else { panic!() };
        assert!(String::from_utf8(text).unwrap().contains(" db=3 "), "{login}");
        client.say("RESET");
        client.say(login);
        assert_eq!(client.say("GET a"), Reply::Null, "{login}");
    }
}

/// Admits `name`, and `gone`, whose client does not exist in the store.
struct OneIsGone(ClientId);

impl Access for OneIsGone {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        match who {
            Identity::User { name: "gone", .. } => only(ClientId(self.0.0 + 1)),
            _ => only(self.0),
        }
        .admit(Identity::User { name: "name", password: b"secret" })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

#[test]
fn who_logs_in_and_can_not_have_a_database_stays_who_it_was() {
    let store = Arc::new(Store::open(spillway_store::Config::embedded(16 << 20)).unwrap());
    let own = store.add_client(Default::default()).unwrap();
    let shared = Shared::new(store, Arc::new(OneIsGone(own)), Default::default());
    let mut client = TestClient::stranger(&Arc::new(shared));
    assert_eq!(client.say("AUTH name secret"), Reply::ok());
    client.say("SET a 1");
    client.error("AUTH gone secret");
    let Reply::Bulk(text) = client.say("CLIENT INFO") else { panic!() };
    assert!(String::from_utf8(text).unwrap().contains(" user=name "));
    assert_eq!(client.say("SELECT 0"), Reply::ok());
    assert_eq!(client.say("GET a"), Reply::bulk("1"));
}

#[test]
fn clients_are_told_what_their_other_connections_are_now() {
    let shared = server(16 << 20);
    let (mut client, mut other) = (TestClient::new(&shared), TestClient::stranger(&shared));
    other.connection.session.id = 2;
    let mut line = || {
        let Reply::Bulk(text) = client.say("CLIENT LIST ID 2") else { panic!() };
        String::from_utf8(text).unwrap()
    };
    other.say("AUTH name secret");
    assert!(line().contains(" db=0 "));
    other.say("SELECT 3");
    assert!(line().contains(" db=3 "), "{}", line());
    other.say("HELLO 3");
    assert!(line().ends_with(" resp=3\n"), "{}", line());
    // The connection is unauthenticated now.
    other.say("RESET");
    assert_eq!(line(), "");
}

#[test]
fn databases_are_apart_and_survive_the_server() {
    let shared = server(64 << 20);
    let mut client = TestClient::new(&shared);
    let long = value(100_000, 5);
    client.say("SET a zero");
    client.say("SELECT 3");
    assert_eq!(client.say("GET a"), Reply::Null);
    client.ask(&[b"SET", b"a", &long]);
    client.say("SET b three EX 10");
    assert!(client.error("SELECT 16").contains("out of range"));
    client.say("SELECT 4");
    (0..5000).for_each(|number| drop(client.say(&format!("SET many-{number} 1"))));
    // Another server finds the keys of this one in the store.
    let store = shared.keyspaces.store();
    let own = client.connection.session.described.client.unwrap();
    let again = shared_of(store, own, Lifetime::Persistent);
    again.keyspaces.reopen();
    assert_eq!((again.statistics().keys, again.statistics().expiring_keys), (5003, 1));
    let mut client = TestClient::new(&again);
    assert_eq!(client.say("GET a"), Reply::bulk("zero"));
    client.say("SELECT 3");
    assert_eq!(client.say("GET a"), Reply::Bulk(long));
    assert_eq!(client.say("TTL b"), Reply::Integer(10));
    assert_eq!(client.say("FLUSHDB"), Reply::ok());
    client.say("SELECT 0");
    assert_eq!(client.say("DBSIZE"), Reply::Integer(1));
}

#[test]
fn an_ephemeral_value_stays_when_it_is_read() {
    let store = spillway_store::Store::open(spillway_store::Config::embedded(16 << 20)).unwrap();
    let store = std::sync::Arc::new(store);
    let own = store.add_client(Default::default()).unwrap();
    let mut client = TestClient::new(&shared_of(&store, own, Lifetime::Ephemeral));
    let long = value(200_000, 1);
    client.say("SET a 1");
    client.ask(&[b"SET", b"long", &long]);
    for _ in 0..2 {
        assert_eq!(client.say("GET a"), Reply::bulk("1"));
        assert_eq!(client.say("GET long"), Reply::Bulk(long.clone()));
    }
    assert_eq!(client.say("DBSIZE"), Reply::Integer(2));
    // More than there is room for: some values vanish, none is refused, and no reply is wrong.
    for number in 0..300 {
        let set = client.ask(&[b"SET", format!("k{number}").as_bytes(), &long]);
        assert_eq!(set, Reply::ok(), "{number}");
    }
    let mut found = 0;
    for number in 0..300 {
        // A value that lacks a chunk does not exist, although its record is there.
        let exists = client.say(&format!("EXISTS k{number}"));
        match (client.say(&format!("GET k{number}")), exists) {
            (Reply::Null, Reply::Integer(0)) => {}
            (Reply::Bulk(value), Reply::Integer(1)) if value == long => found += 1,
            other => panic!("{number}: {other:?}"),
        }
    }
    assert!((20..300).contains(&found), "{found} values are left");
    client.say("FLUSHDB");
    assert_eq!(client.say("DBSIZE"), Reply::Integer(0));
}

#[test]
fn replies_are_as_the_client_wants_them() {
    let mut client = TestClient::new(&server(16 << 20));
    client.feed(b"CLIENT REPLY OFF\r\nSET a 1\r\nCLIENT REPLY ON\r\nGET a\r\n", 3);
    assert_eq!(client.replies(), [Reply::ok(), Reply::bulk("1")]);
    client.feed(b"CLIENT REPLY SKIP\r\nGET a\r\nGET a\r\n", 3);
    assert_eq!(client.replies(), [Reply::bulk("1")]);
    // As in Redis, the skipped reply may be that of another CLIENT REPLY SKIP.
    client.feed(b"CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nGET a\r\nECHO b\r\n", 3);
    assert_eq!(client.replies(), [Reply::bulk("b")]);
    client.feed(b"CLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\nGET a\r\n", 3);
    assert_eq!(client.replies(), [Reply::ok(), Reply::bulk("1")]);
    client.feed(b"CLIENT REPLY SKIP\r\nCLIENT REPLY OFF\r\nGET a\r\n", 3);
    assert_eq!(client.replies(), []);
    client.feed(b"GET a\r\nRESET\r\nGET a\r\n", 3);
    assert_eq!(client.replies(), [Reply::Simple("RESET".into()), Reply::bulk("1")]);
    client.feed(b"HELLO 3\r\nGET none\r\n", 100);
    assert!(client.bytes().ends_with(b"_\r\n"));
    client.say("CLIENT SETNAME me");
    assert_eq!(client.say("CLIENT GETNAME"), Reply::bulk("me"));
    assert!(client.error("NOTHING a").starts_with("ERR unknown command 'NOTHING'"));
    assert!(client.error("GET").contains("wrong number of arguments for 'get'"));
}

#[test]
fn an_mget_longer_than_memory_for_replies_is_whole() {
    let mut client = TestClient::new(&server(64 << 20));
    let long = value(60_000, 9);
    let mut parts = vec![b"MGET".to_vec()];
    for number in 0..100 {
        let key = format!("k{number}").into_bytes();
        client.ask(&[b"SET", &key, &long]);
        parts.push(key);
    }
    let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
    let mut commands = command(&parts);
    commands.extend_from_slice(b"PING\r\n");
    client.feed(&commands, usize::MAX);
    let replies = client.replies();
    assert_eq!(replies, [Reply::Array(vec![Reply::Bulk(long); 100]), Reply::Simple("PONG".into())]);
}

#[test]
fn a_pipeline_of_100_000_is_answered_in_order() {
    let mut client = TestClient::new(&server(64 << 20));
    let mut bytes = Vec::new();
    (0..100_000).for_each(|_| bytes.extend_from_slice(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n"));
    client.feed(&bytes, 65_536);
    let expected: Vec<_> = (1..=100_000).map(Reply::Integer).collect();
    assert!(client.replies() == expected);
}

#[test]
fn of_a_command_whose_reply_is_skipped_nothing_is_said_however_much_it_is() {
    let mut client = TestClient::new(&server(64 << 20));
    for number in 0..10 {
        let key = format!("key-{number}");
        let set = client.ask(&[b"SET", key.as_bytes(), &value(60 << 10, number)]);
        assert_eq!(set, Reply::ok());
    }
    let keys: String = (0..10).map(|number| format!(" key-{number}")).collect();
    client.feed(b"CLIENT REPLY SKIP\r\n", 777);
    client.feed(format!("MGET{keys}\r\n").as_bytes(), 777);
    client.feed(b"PING\r\n", 777);
    assert_eq!(client.replies(), [Reply::Simple("PONG".into())]);
}

#[test]
fn a_database_that_was_flushed_has_no_keys_that_expire() {
    let shared = server(16 << 20);
    let mut client = TestClient::new(&shared);
    client.say("SET old 1 EX 100");
    client.say("SET older 1 EX 100");
    assert_eq!(client.say("FLUSHDB"), Reply::ok());
    assert_eq!(shared.statistics().expiring_keys, 0);
    client.say("SET a 1");
    client.say("SET b 1");
    let Reply::Bulk(text) = client.say("INFO keyspace") else { panic!() };
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("db0:keys=2,expires=0,"), "{text}");
}

#[test]
fn a_key_that_is_given_another_time_to_live_counts_once() {
    let shared = server(16 << 20);
    let mut client = TestClient::new(&shared);
    for line in ["SET a 1 EX 100", "EXPIRE a 200", "SET a 2 EX 300", "APPEND a x"] {
        client.say(line);
        assert_eq!(shared.statistics().expiring_keys, 1, "{line}");
    }
    client.say("PERSIST a");
    assert_eq!(shared.statistics().expiring_keys, 0);
}

#[test]
fn a_long_set_during_a_flush_is_refused_or_kept() {
    let shared = server(64 << 20);
    let (mut client, mut other) = (TestClient::new(&shared), TestClient::new(&shared));
    let value = value(MIB, 7);
    let set = command(&[b"SET", b"a", &value]);
    // In the middle of the value, and before the line end that follows it.
    for cut in [set.len() / 2, set.len() - 2] {
        client.feed(&set[..cut], 10_000);
        assert_eq!(other.say("FLUSHDB"), Reply::ok());
        client.feed(&set[cut..], 10_000);
        match &client.replies()[..] {
            [Reply::Error(line)] => assert!(line.starts_with("TRYAGAIN "), "{line}"),
            replies => {
                assert_eq!(replies, [Reply::ok()]);
                assert!(client.say("GET a") == Reply::bulk(&value), "OK, and gone: {cut}");
            }
        }
    }
    assert_eq!(client.ask(&[b"SET", b"a", &value]), Reply::ok());
    assert_eq!(client.say("GET a"), Reply::bulk(&value));
}

#[test]
fn options_that_stand_twice_are_read_as_by_redis() {
    let mut client = TestClient::new(&server(16 << 20));
    for (line, ttl) in [
        ("SET a 1 EX 10 EX 20", 20),
        ("SET a 1 EX x EX 30", 30),
        ("SET a 2 KEEPTTL KEEPTTL NX XX", 30),
        ("SET a 2 XX keepttl XX KEEPTTL", 30),
        ("GETEX a EX 40 ex 50", 50),
        ("GETEX a EX 40 PX 50000", 50),
        ("GETEX a PERSIST PERSIST", -1),
    ] {
        client.say(line);
        assert_eq!(client.say("TTL a"), Reply::Integer(ttl), "{line}");
    }
    for wrong in [
        "SET a 1 EX 10 PX 20",
        "SET a 1 EX 10 EXAT 20",
        "SET a 1 EX x abc",
        "SET a 1 PERSIST",
        "SET a 1 KEEPTTL PX 1",
        "GETEX a KEEPTTL",
        "GETEX a GET",
        "GETEX a PERSIST EX 1",
        "GETEX a EX 1 PERSIST",
        "GETEX a EX",
    ] {
        assert_eq!(client.error(wrong), "ERR syntax error", "{wrong}");
    }
    // An invalid time is no error in a GETEX of a missing key.
    assert_eq!(client.say("GETEX none EX 0"), Reply::Null);
    assert!(client.error("GETEX a EX 0").contains("invalid expire time in 'getex'"));
    assert!(client.error("GETEX a EX x").contains("not an integer"));
    // EXPIRE parses its options before the time. A key without an expiry counts as one that expires last.
    assert_eq!(client.error("EXPIRE a x abc"), "ERR Unsupported option abc");
    assert!(client.error("EXPIRE a x NX XX").contains("not compatible"));
    client.say("SET a 1");
    assert_eq!(client.say("PEXPIREAT a 9223372036854775807 LT"), Reply::Integer(1));
}

#[test]
fn mistakes_are_told_as_by_redis() {
    let mut client = TestClient::new(&server(16 << 20));
    for (line, expected) in [
        ("SELECT abc", "ERR value is not an integer or out of range"),
        (
            "SELECT 2147483648",
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ),
        ("SELECT -1", "ERR DB index is out of range"),
        ("HELLO abc", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("OBJECT abc k", "ERR unknown subcommand 'abc'. Try OBJECT HELP."),
        ("OBJECT encoding", "ERR wrong number of arguments for 'object|encoding' command"),
        ("CLIENT getname x", "ERR wrong number of arguments for 'client|getname' command"),
        ("config abc", "ERR unknown subcommand 'abc'. Try CONFIG HELP."),
        ("INCRBYFLOAT a 1e5000", "ERR value is not a valid float"),
        ("INCRBYFLOAT a inf", "ERR increment would produce NaN or Infinity"),
        ("NOTHING a", "ERR unknown command 'NOTHING', with args beginning with: 'a' "),
    ] {
        assert_eq!(client.error(line), expected, "{line}");
    }
    // 128 bytes of the name, and of all arguments.
    let (name, long) = ("n".repeat(200), "a".repeat(100));
    let expected = format!(
        "ERR unknown command '{}', with args beginning with: '{long}' '{}' ",
        &name[..128],
        &long[..25]
    );
    assert_eq!(client.error(&format!("{name} {long} {long} {long}")), expected);
    client.feed(&command(&[b"no\xff\n", b"x\0y"]), 100);
    let line = b"-ERR unknown command 'no\xff ', with args beginning with: 'x' \r\n";
    assert_eq!(client.bytes(), line);
}

#[test]
fn keyspace_hits_and_misses_are_those_of_redis() {
    let shared = server(64 << 20);
    let mut client = TestClient::new(&shared);
    let counts = |client: &mut TestClient| -> (u64, u64) {
        let Reply::Bulk(text) = client.say("INFO stats") else { panic!() };
        let text = String::from_utf8(text).unwrap();
        let number = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
        };
        (number("keyspace_hits:"), number("keyspace_misses:"))
    };
    client.say("SET a 12");
    let reads = "GET|TYPE|EXISTS|TTL|PTTL|EXPIRETIME|OBJECT ENCODING|OBJECT REFCOUNT|STRLEN|TOUCH";
    for line in reads.split('|') {
        let before = counts(&mut client);
        client.say(&format!("{line} a"));
        assert_eq!(counts(&mut client), (before.0 + 1, before.1), "{line}");
        client.say(&format!("{line} none"));
        assert_eq!(counts(&mut client), (before.0 + 1, before.1 + 1), "{line}");
    }
    let before = counts(&mut client);
    for line in
        ["SET a 12", "SETNX a 1", "INCR a", "APPEND a 1", "EXPIRE a 99", "PERSIST a", "DEL a"]
    {
        client.say(line);
    }
    assert_eq!(counts(&mut client), before);
}

#[test]
fn commands_are_timed_by_kind() {
    let shared = server(64 << 20);
    let mut client = TestClient::new(&shared);
    for line in ["SET a 1", "GET a", "GET b", "EXISTS a", "INCR a", "DEL a", "KEYS *", "NONSENSE"] {
        client.say(line);
    }
    // Long values: one that arrives in parts, and one that leaves in parts.
    client.ask(&[b"SET", b"long", &value(MIB, 1)]);
    client.say("GET long");
    let histograms = shared.latencies.histograms().into_iter();
    let counts: Vec<(&str, u64)> =
        histograms.map(|(kind, it)| (kind.name(), it.counts.iter().sum())).collect();
    assert_eq!(counts, [("get", 3), ("put", 3), ("remove", 1), ("other", 3)]);

    // Its values leave in parts, and it is timed when the last one is read.
    let gets = || shared.latencies.histograms()[0].1.counts.iter().sum::<u64>();
    let line = [b"MGET".as_slice(), &b" long".repeat(20), b"\r\n"].concat();
    client.connection.input.room(line.len())[..line.len()].copy_from_slice(&line);
    client.connection.input.filled(line.len());
    let recorder = shared.latencies.recorder();
    assert!(client.connection.process(&shared, &recorder, client.now_ms));
    assert_eq!(gets(), 3, "some values are left");
    client.feed(b"PING\r\n", usize::MAX);
    assert_eq!(gets(), 4);
}
