//! Several connections at once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{Client, Reply, server};

#[test]
fn numbers_are_counted_and_locks_taken_once() {
    let shared = server(64 << 20);
    let won: i64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::new(&shared);
                    let mut won = 0;
                    for number in 0..500 {
                        client.say("INCR n");
                        client.say("APPEND text x");
                        if client.say(&format!("SETNX lock{number} 1")) == Reply::Integer(1) {
                            won += 1;
                        }
                    }
                    won
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let mut client = Client::new(&shared);
    assert_eq!(won, 500);
    assert_eq!(client.say("GET n"), Reply::bulk("2000"));
    assert_eq!(client.say("STRLEN text"), Reply::Integer(2000));
    assert_eq!(client.say("DBSIZE"), Reply::Integer(502));
}

#[test]
fn pairs_are_set_together() {
    let shared = server(64 << 20);
    thread::scope(|scope| {
        for name in ["a", "b"] {
            let shared = &shared;
            scope.spawn(move || {
                let mut client = Client::new(shared);
                for _ in 0..500 {
                    // In both orders, so that a lock that waits for another would be seen.
                    client.say(&format!("MSET x {name} y {name} z {name}"));
                    client.say(&format!("MSET z {name} y {name} x {name}"));
                }
            });
        }
    });
    let Reply::Array(values) = Client::new(&shared).say("MGET x y z") else { panic!() };
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
}

#[test]
fn a_scan_gives_every_key_that_stays() {
    let shared = server(64 << 20);
    let mut client = Client::new(&shared);
    for number in 0..3000 {
        client.say(&format!("SET stays{number} 0"));
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Keys are overwritten all the while, and others come and go.
            let mut client = Client::new(&shared);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                client.say(&format!("SET stays{} {number}", number % 3000));
                client.say(&format!("SET goes{number} 1"));
                client.say(&format!("DEL goes{}", number - number % 7));
                number += 1;
            }
        });
        for _ in 0..5 {
            let (mut cursor, mut found) = (b"0".to_vec(), HashSet::new());
            loop {
                let reply = client.ask(&[b"SCAN", &cursor, b"MATCH", b"stays*", b"COUNT", b"37"]);
                let Reply::Array(mut parts) = reply else { panic!("{reply:?}") };
                let (Some(Reply::Array(names)), Some(Reply::Bulk(next))) =
                    (parts.pop(), parts.pop())
                else {
                    panic!()
                };
                found.extend(names.into_iter().map(|name| format!("{name:?}")));
                cursor = next;
                if cursor == b"0" {
                    break;
                }
            }
            assert_eq!(found.len(), 3000);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
