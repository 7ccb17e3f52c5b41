//! A full persistent store refuses new values, and keeps all that it acknowledged.

use std::collections::HashMap;

use crate::support::{Reply, TestClient, server};

#[test]
fn what_was_acknowledged_stays_when_the_store_is_full() {
    let mut client = TestClient::new(&server(8 << 20));
    let mut kept: HashMap<String, Vec<u8>> = HashMap::new();
    let mut refused = 0;
    for number in 0_usize..6000 {
        // Old keys are overwritten, too, with values of other lengths.
        let key = format!("k{}", number % 1500);
        let length = [100, 4096, 700, 70_000][number % 4];
        let value = vec![number as u8; length];
        match client.ask(&[b"SET", key.as_bytes(), &value]) {
            Reply::Simple(_) => drop(kept.insert(key, value)),
            Reply::Error(line) => {
                assert!(line.starts_with("OOM "), "{line}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 100, "{refused} were refused");
    for (key, value) in &kept {
        assert_eq!(client.say(&format!("GET {key}")), Reply::bulk(value), "{key}");
    }
    assert_eq!(client.say("DBSIZE"), Reply::Integer(kept.len() as i64));
    // Removals make room again.
    for key in kept.keys() {
        assert_eq!(client.say(&format!("DEL {key}")), Reply::Integer(1));
    }
    assert_eq!(client.ask(&[b"SET", b"again", &vec![1; 1 << 20]]), Reply::ok());
}

#[test]
fn of_a_long_value_whose_record_finds_no_room_nothing_stays() {
    let shared = server(64 << 20);
    let mut client = TestClient::new(&shared);
    let store = shared.keyspaces.store();
    let own = client.connection.session.described.client.unwrap();
    let used = || store.statistics(own).unwrap().used_pages;
    client.say("SET a 1");
    let (before, long) = (used(), vec![7; 100_000]);
    // At the last refusal there is room for the whole value, but none for its record.
    for room in 0.. {
        store.set_target(own, before + room).unwrap();
        match client.ask(&[b"SET", b"long", &long]) {
            Reply::Error(line) => assert!(line.starts_with("OOM "), "{line}"),
            reply => {
                assert_eq!(reply, Reply::ok());
                assert!(room > long.len() as u64 / 4096, "room for {room} pages is enough");
                break;
            }
        }
        assert_eq!(used(), before, "room for {room} pages");
    }
}

#[test]
fn a_database_that_finds_no_room_leaves_no_pool() {
    let shared = server(64 << 20);
    let mut client = TestClient::new(&shared);
    let store = shared.keyspaces.store();
    let own = client.connection.session.described.client.unwrap();
    let pools = || store.pools(own).unwrap().len();
    client.say("SET a 1");
    let before = pools();
    store.set_target(own, store.statistics(own).unwrap().used_pages).unwrap();
    for database in 1..5 {
        assert!(client.error(&format!("SELECT {database}")).starts_with("OOM "));
    }
    assert_eq!(pools(), before);
    store.set_target(own, u64::MAX).unwrap();
    assert_eq!(client.say("SELECT 1"), Reply::ok());
}
