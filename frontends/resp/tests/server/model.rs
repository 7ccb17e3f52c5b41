//! Random commands, checked against a model: a map from each key to a value and a time.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::support::{Reply, TestClient, server};

const KEYS: u8 = 6;

#[derive(Clone, Debug)]
enum Step {
    Set { key: u8, length: usize, ttl_ms: Option<u32>, only: Option<bool>, keep: bool },
    Get(u8),
    GetDel(u8),
    Del(u8),
    Append(u8, usize),
    SetRange(u8, usize, usize),
    GetRange(u8, i64, i64),
    Incr(u8, i64),
    Number(u8, i64),
    Expire(u8, i64, Option<&'static str>),
    Persist(u8),
    Ttl(u8),
    Strlen(u8),
    Pass(u32),
    Mset([u8; 2], bool),
    Size,
    Reopen,
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..200_usize,
        2 => 3900..4200_usize,
        1 => 65_400..65_700_usize,
        1 => Just(150_000_usize),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..KEYS;
    let ttl = || proptest::option::of(1..2000_u32);
    let only = prop_oneof![
        Just(None),
        Just(Some("NX")),
        Just(Some("XX")),
        Just(Some("GT")),
        Just(Some("LT"))
    ];
    prop_oneof![
        4 => (key(), length(), ttl(), proptest::option::of(any::<bool>()), any::<bool>()).prop_map(
            |(key, length, ttl_ms, only, keep)| Step::Set { key, length, ttl_ms, only, keep }
        ),
        2 => key().prop_map(Step::Get),
        1 => key().prop_map(Step::GetDel),
        1 => key().prop_map(Step::Del),
        2 => (key(), length()).prop_map(|(key, length)| Step::Append(key, length)),
        2 => (key(), length(), length()).prop_map(|(key, at, length)| Step::SetRange(key, at, length)),
        2 => (key(), -200..200_i64, -5000..70_000_i64).prop_map(|(key, a, b)| Step::GetRange(key, a, b)),
        1 => (key(), any::<i64>()).prop_map(|(key, by)| Step::Incr(key, by)),
        1 => (key(), any::<i64>()).prop_map(|(key, number)| Step::Number(key, number)),
        2 => (key(), -100..3000_i64, only).prop_map(|(key, ms, only)| Step::Expire(key, ms, only)),
        1 => key().prop_map(Step::Persist),
        1 => key().prop_map(Step::Ttl),
        1 => key().prop_map(Step::Strlen),
        2 => (0..1500_u32).prop_map(Step::Pass),
        1 => ([key(), key()], any::<bool>()).prop_map(|(keys, if_absent)| Step::Mset(keys, if_absent)),
        1 => Just(Step::Size),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Clone, Debug)]
struct Entry {
    value: Vec<u8>,
    expires_ms: Option<u64>,
}

#[derive(Default)]
struct Model {
    keys: HashMap<u8, Entry>,
    seed: u8,
}

impl Model {
    fn value(&mut self, length: usize) -> Vec<u8> {
        self.seed = self.seed.wrapping_add(1);
        let seed = self.seed;
        (0..length).map(|at| (b'a' + (at / 3 + at / 4096) as u8 % 20) ^ (seed % 4)).collect()
    }

    fn length(&self, key: u8) -> i64 {
        self.keys.get(&key).map_or(0, |entry| entry.value.len() as i64)
    }

    fn change(&mut self, key: u8, change: impl FnOnce(&mut Vec<u8>)) -> Reply {
        let entry =
            self.keys.entry(key).or_insert_with(|| Entry { value: Vec::new(), expires_ms: None });
        change(&mut entry.value);
        Reply::Integer(entry.value.len() as i64)
    }

    fn get(&self, key: u8) -> Reply {
        self.keys.get(&key).map_or(Reply::Null, |entry| Reply::bulk(&entry.value))
    }

    fn range(&self, key: u8, first: i64, last: i64) -> Reply {
        let Some(entry) = self.keys.get(&key) else { return Reply::bulk("") };
        let length = entry.value.len() as i64;
        let at = |place: i64| if place < 0 { (place + length).max(0) } else { place };
        let (from, to) = (at(first), at(last).min(length - 1));
        let wrong = first < 0 && last < 0 && first > last;
        match from > to || length == 0 || wrong {
            true => Reply::bulk(""),
            false => Reply::bulk(&entry.value[from as usize..=to as usize]),
        }
    }

    fn expire(&mut self, key: u8, when: i64, only: Option<&str>, now_ms: u64) -> Reply {
        let Some(entry) = self.keys.get_mut(&key) else { return Reply::Integer(0) };
        let old = entry.expires_ms.map(|old| old as i64);
        let allowed = match only {
            Some("NX") => old.is_none(),
            Some("XX") => old.is_some(),
            Some("GT") => old.is_some_and(|old| when > old),
            Some("LT") => old.is_none_or(|old| when < old),
            _ => true,
        };
        if allowed && when <= now_ms as i64 {
            self.keys.remove(&key);
        } else if allowed {
            entry.expires_ms = Some(when as u64);
        }
        Reply::Integer(allowed.into())
    }

    fn add(&mut self, key: u8, by: i64) -> Reply {
        let entry = self.keys.get(&key);
        let text = entry.map_or("0".into(), |it| String::from_utf8_lossy(&it.value).into_owned());
        let number = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
        match number.map(|number| number.checked_add(by)) {
            None => Reply::Error("ERR value is not an integer or out of range".into()),
            Some(None) => Reply::Error("ERR increment or decrement would overflow".into()),
            Some(Some(sum)) => {
                self.change(key, |value| *value = sum.to_string().into_bytes());
                Reply::Integer(sum)
            }
        }
    }
}

fn name(key: u8) -> Vec<u8> {
    // One key does not fit into a page.
    if key == 0 { vec![b'k'; 5000] } else { format!("key{key}").into_bytes() }
}

fn act(step: &Step, model: &mut Model, client: &mut TestClient) -> (Reply, Reply) {
    let now_ms = client.now_ms;
    model.keys.retain(|_, entry| entry.expires_ms.is_none_or(|when| when > now_ms));
    match *step {
        Step::Set { key, length, ttl_ms, only, keep } => {
            let value = model.value(length);
            let ttl = ttl_ms.unwrap_or_default().to_string();
            let key_name = name(key);
            let mut parts: Vec<&[u8]> = vec![b"SET", &key_name, &value];
            if ttl_ms.is_some() {
                parts.extend([&b"PX"[..], ttl.as_bytes()]);
            } else if keep {
                parts.push(b"KEEPTTL");
            }
            parts.extend(only.map(|absent| if absent { &b"NX"[..] } else { b"XX" }));
            let old = model.keys.get(&key);
            let meant = only.is_none_or(|absent| absent == old.is_none());
            let kept = old.and_then(|old| old.expires_ms).filter(|_| keep);
            let expires_ms = ttl_ms.map(|ttl| now_ms + u64::from(ttl)).or(kept);
            if meant {
                model.keys.insert(key, Entry { value: value.clone(), expires_ms });
            }
            (client.ask(&parts), if meant { Reply::ok() } else { Reply::Null })
        }
        Step::Get(key) => (client.ask(&[b"GET", &name(key)]), model.get(key)),
        Step::GetDel(key) => {
            let expected = model.get(key);
            model.keys.remove(&key);
            (client.ask(&[b"GETDEL", &name(key)]), expected)
        }
        Step::Del(key) => {
            let found = model.keys.remove(&key).is_some();
            (client.ask(&[b"DEL", &name(key)]), Reply::Integer(found.into()))
        }
        Step::Append(key, length) => {
            let part = model.value(length);
            let expected = model.change(key, |value| value.extend_from_slice(&part));
            (client.ask(&[b"APPEND", &name(key), &part]), expected)
        }
        Step::SetRange(key, at, length) => {
            let part = model.value(length);
            let expected = match length {
                0 => Reply::Integer(model.length(key)),
                _ => model.change(key, |value| {
                    value.resize(value.len().max(at + length), 0);
                    value[at..at + length].copy_from_slice(&part);
                }),
            };
            (client.ask(&[b"SETRANGE", &name(key), at.to_string().as_bytes(), &part]), expected)
        }
        Step::GetRange(key, first, last) => {
            let (from, to) = (first.to_string(), last.to_string());
            let reply = client.ask(&[b"GETRANGE", &name(key), from.as_bytes(), to.as_bytes()]);
            (reply, model.range(key, first, last))
        }
        Step::Incr(key, by) => {
            let expected = model.add(key, by);
            (client.ask(&[b"INCRBY", &name(key), by.to_string().as_bytes()]), expected)
        }
        Step::Number(key, number) => {
            let value = number.to_string().into_bytes();
            let expected = model.get(key);
            let reply = client.ask(&[b"GETSET", &name(key), &value]);
            model.keys.insert(key, Entry { value, expires_ms: None });
            (reply, expected)
        }
        Step::Expire(key, ms, only) => {
            let (key_name, time) = (name(key), ms.to_string());
            let mut parts: Vec<&[u8]> = vec![b"PEXPIRE", &key_name, time.as_bytes()];
            parts.extend(only.map(str::as_bytes));
            (client.ask(&parts), model.expire(key, now_ms as i64 + ms, only, now_ms))
        }
        Step::Persist(key) => {
            let had = model.keys.get_mut(&key).and_then(|entry| entry.expires_ms.take());
            (client.ask(&[b"PERSIST", &name(key)]), Reply::Integer(had.is_some().into()))
        }
        Step::Ttl(key) => {
            let expected = model
                .keys
                .get(&key)
                .map_or(-2, |entry| entry.expires_ms.map_or(-1, |when| (when - now_ms) as i64));
            (client.ask(&[b"PTTL", &name(key)]), Reply::Integer(expected))
        }
        Step::Strlen(key) => {
            (client.ask(&[b"STRLEN", &name(key)]), Reply::Integer(model.length(key)))
        }
        Step::Pass(ms) => {
            client.now_ms += u64::from(ms);
            (Reply::Null, Reply::Null)
        }
        Step::Mset(keys, if_absent) => {
            let values = [model.value(10), model.value(5000)];
            let (a, b) = (name(keys[0]), name(keys[1]));
            let verb: &[u8] = if if_absent { b"MSETNX" } else { b"MSET" };
            let reply = client.ask(&[verb, &a, &values[0], &b, &values[1]]);
            let meant = !if_absent || keys.iter().all(|key| !model.keys.contains_key(key));
            if meant {
                for (key, value) in keys.into_iter().zip(values) {
                    model.keys.insert(key, Entry { value, expires_ms: None });
                }
            }
            (reply, if if_absent { Reply::Integer(meant.into()) } else { Reply::ok() })
        }
        // The server may or may not count keys that have expired.
        Step::Size | Step::Reopen => (Reply::Null, Reply::Null),
    }
}

/// The names that a complete scan lists, in order.
fn scan(client: &mut TestClient) -> Vec<Vec<u8>> {
    let (mut cursor, mut names) = (b"0".to_vec(), Vec::new());
    loop {
        let Reply::Array(mut parts) = client.ask(&[b"SCAN", &cursor, b"COUNT", b"2"]) else {
            panic!("no array")
        };
        let Some(Reply::Array(found)) = parts.pop() else { panic!("no names") };
        names.extend(found.into_iter().map(|name| match name {
            Reply::Bulk(name) => name,
            other => panic!("{other:?}"),
        }));
        cursor = match parts.pop() {
            Some(Reply::Bulk(next)) if next != b"0" => next,
            _ => break,
        };
    }
    names.sort();
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn commands_do_what_they_do_to_a_map(steps in proptest::collection::vec(step(), 1..60)) {
        let shared = server(64 << 20);
        let (mut client, mut model) = (TestClient::new(&shared), Model::default());
        for step in &steps {
            let (reply, expected) = act(step, &mut model, &mut client);
            prop_assert!(reply == expected, "{step:?}");
            if matches!(step, Step::Size | Step::Reopen) {
                let mut names: Vec<_> = model.keys.keys().map(|&key| name(key)).collect();
                names.sort();
                prop_assert_eq!(scan(&mut client), names);
                // The scan has removed the expired keys.
                let size = Reply::Integer(model.keys.len() as i64);
                prop_assert_eq!(client.say("DBSIZE"), size);
            }
            if matches!(step, Step::Reopen) {
                let store = shared.keyspaces.store();
                let own = client.connection.session.described.client.unwrap();
                let lifetime = spillway_store::Lifetime::Persistent;
                let again = crate::support::shared_of(store, own, lifetime);
                let now_ms = client.now_ms;
                client = TestClient::new(&again);
                client.now_ms = now_ms;
                prop_assert_eq!(again.statistics().keys, model.keys.len() as u64);
                let expiring = model.keys.values().filter(|it| it.expires_ms.is_some()).count();
                prop_assert_eq!(again.statistics().expiring_keys, expiring as u64);
            }
        }
    }
}
