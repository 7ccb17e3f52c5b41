//! A full persistent store refuses, and drops nothing that it acknowledged.

use std::collections::HashMap;

use crate::support::{Client, Reply, server};

#[test]
fn what_was_acknowledged_stays_when_the_store_is_full() {
    let mut client = Client::new(&server(8 << 20));
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
    // Whoever removes has room again.
    for key in kept.keys() {
        assert_eq!(client.say(&format!("DEL {key}")), Reply::Integer(1));
    }
    assert_eq!(client.ask(&[b"SET", b"again", &vec![1; 1 << 20]]), Reply::ok());
}
