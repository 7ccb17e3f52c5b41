//! Several connections at once.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{Reply, TestClient, server};

#[test]
fn numbers_are_counted_and_locks_taken_once() {
    let shared = server(64 << 20);
    let won: i64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = TestClient::new(&shared);
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
    let mut client = TestClient::new(&shared);
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
                let mut client = TestClient::new(shared);
                for _ in 0..500 {
                    // In both orders, so that the test would find a deadlock.
                    client.say(&format!("MSET x {name} y {name} z {name}"));
                    client.say(&format!("MSET z {name} y {name} x {name}"));
                }
            });
        }
    });
    let Reply::Array(values) = TestClient::new(&shared).say("MGET x y z") else { panic!() };
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
}

#[test]
fn a_scan_gives_every_key_that_stays() {
    let shared = server(64 << 20);
    let mut client = TestClient::new(&shared);
    for number in 0..3000 {
        client.say(&format!("SET stays{number} 0"));
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Meanwhile keys are overwritten, and others are added and removed.
            let mut client = TestClient::new(&shared);
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

/// Runs both at the same time, and waits for both.
fn at_once(one: impl FnOnce() + Send, other: impl FnOnce() + Send) {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            one();
        });
        barrier.wait();
        other();
    });
}

#[test]
fn who_connects_while_all_is_flushed_has_the_same_database() {
    let shared = server(64 << 20);
    for round in 0..500 {
        let mut early = TestClient::new(&shared);
        let mut late = None;
        at_once(
            || assert_eq!(early.say("FLUSHALL"), Reply::ok()),
            || late = Some(TestClient::new(&shared)),
        );
        early.say("SET a 1");
        late.unwrap().say("SET b 1");
        for mut client in [early, TestClient::new(&shared)] {
            assert_eq!(client.say("EXISTS a b"), Reply::Integer(2), "round {round}");
            assert_eq!(client.say("DBSIZE"), Reply::Integer(2), "round {round}");
        }
    }
}

#[test]
fn keys_that_are_set_while_all_is_flushed_are_there_or_are_not() {
    let shared = server(64 << 20);
    let (mut flushes, mut sets) = (TestClient::new(&shared), TestClient::new(&shared));
    for round in 0..500 {
        at_once(
            || assert_eq!(flushes.say("FLUSHDB"), Reply::ok()),
            || {
                for number in 0..8 {
                    sets.say(&format!("SET single{number} 1"));
                    sets.say(&format!("MSET first{number} 1 second{number} 1"));
                }
            },
        );
        let Reply::Array(listed) = flushes.say("KEYS *") else { panic!() };
        for name in &listed {
            let Reply::Bulk(name) = name else { panic!() };
            let exists = format!("EXISTS {}", str::from_utf8(name).unwrap());
            assert_eq!(flushes.say(&exists), Reply::Integer(1), "round {round}: {exists}");
        }
        assert_eq!(flushes.say("DBSIZE"), Reply::Integer(listed.len() as i64), "round {round}");
    }
}
