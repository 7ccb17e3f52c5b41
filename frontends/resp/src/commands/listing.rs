//! Commands about all keys of a database.

use std::sync::Arc;

use super::{Call, Outcome};
use crate::arguments::SYNTAX;
use crate::database::Database;
use crate::glob;
use crate::random::random;
use crate::session::keyspace;
use crate::trouble::{Refused, Trouble};
use crate::walk::{count_keys, walk};

/// Most keys that one SCAN checks.
const COUNT_MAX: i64 = 10_000;
/// Most bytes of names in a reply to KEYS.
const KEYS_BYTES_MAX: usize = 16 << 20;

/// Lists keys behind `cursor` that match `pattern`, until `enough` returns true. Gives the next cursor and the keys.
/// `enough` sees the list after each key that was checked. Expired keys are removed.
fn list(
    database: &Database,
    cursor: u64,
    pattern: &[u8],
    now_ms: u64,
    mut enough: impl FnMut(&[Vec<u8>]) -> bool,
) -> Result<(u64, Vec<Vec<u8>>), Trouble> {
    let (mut found, mut expired) = (Vec::new(), Vec::new());
    let next = walk(database, cursor, |name, footer| {
        if footer.is_over(now_ms) {
            expired.push(name.to_vec());
        } else if pattern == b"*" || glob::matches(pattern, name) {
            found.push(name.to_vec());
        }
        !enough(&found)
    })?;
    for name in expired {
        database.remove_expired(&name, now_ms)?;
    }
    Ok((next, found))
}

/// Parses a cursor like `strtoul`: an empty text is 0, and negative numbers wrap around.
fn cursor(text: &[u8]) -> Option<u64> {
    let number = |text: &[u8]| str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    match text {
        [] => Some(0),
        [b'-', digits @ ..] if digits.first().is_some_and(u8::is_ascii_digit) => {
            number(digits).map(u64::wrapping_neg)
        }
        text => number(text),
    }
}

pub(super) fn scan(call: &mut Call<'_>) -> Outcome {
    let arguments = &call.arguments;
    let cursor = cursor(arguments.get(1)).ok_or(Refused::line("ERR invalid cursor"))?;
    let (mut pattern, mut count, mut kind) = (&b"*"[..], 10, &b"string"[..]);
    for at in (2..arguments.count()).step_by(2) {
        if at + 1 == arguments.count() {
            return Err(SYNTAX);
        }
        match () {
            () if arguments.is(at, "match") => pattern = arguments.get(at + 1),
            () if arguments.is(at, "type") => kind = arguments.get(at + 1),
            () if arguments.is(at, "count") => {
                count = arguments.integer(at + 1)?;
                if count < 1 {
                    return Err(SYNTAX);
                }
            }
            () => return Err(SYNTAX),
        }
    }
    let has_type = kind.eq_ignore_ascii_case(b"string");
    let (mut looked, most) = (0, count.min(COUNT_MAX));
    let database = call.database()?;
    let (next, mut found) = list(&database, cursor, pattern, call.now_ms, |_| {
        looked += 1;
        looked >= most
    })?;
    if !has_type {
        found.clear();
    }
    let mut reply = call.output.reply();
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(found.len());
    found.iter().for_each(|name| reply.bulk(name));
    Ok(())
}

pub(super) fn keys(call: &mut Call<'_>) -> Outcome {
    let (database, mut bytes, mut seen) = (call.database()?, 0, 0);
    let (next, found) = list(&database, 0, call.arguments.get(1), call.now_ms, |found| {
        bytes += found[seen..].iter().map(Vec::len).sum::<usize>();
        seen = found.len();
        bytes > KEYS_BYTES_MAX
    })?;
    if next != 0 {
        return Err(Refused::line("ERR there are too many keys for KEYS: use SCAN"));
    }
    let mut reply = call.output.reply();
    reply.array(found.len());
    found.iter().for_each(|name| reply.bulk(name));
    Ok(())
}

pub(super) fn randomkey(call: &mut Call<'_>) -> Outcome {
    let database = call.database()?;
    let mut found = Vec::new();
    // From a random cursor on; from the first key if none follows.
    for cursor in [random(), 0] {
        found = list(&database, cursor, b"*", call.now_ms, |found| !found.is_empty())?.1;
        if !found.is_empty() {
            break;
        }
    }
    match found.first() {
        Some(name) => call.output.reply().bulk(name),
        None => call.output.reply().null(),
    }
    Ok(())
}

pub(super) fn dbsize(call: &mut Call<'_>) -> Outcome {
    let keys = count_keys(&*call.database()?)?;
    call.integer(keys)
}

/// Checks the arguments of a flush: at most SYNC or ASYNC. The flush is done at once in either case.
fn check_flush(call: &Call<'_>) -> Outcome {
    let arguments = &call.arguments;
    let known = arguments.count() == 2 && (arguments.is(1, "async") || arguments.is(1, "sync"));
    if arguments.count() == 1 || known { Ok(()) } else { Err(SYNTAX) }
}

pub(super) fn flushdb(call: &mut Call<'_>) -> Outcome {
    check_flush(call)?;
    let number = call.session.number;
    keyspace(call.session)?.flush(number)?;
    call.ok()
}

pub(super) fn flushall(call: &mut Call<'_>) -> Outcome {
    check_flush(call)?;
    Arc::clone(keyspace(call.session)?).flush_all()?;
    call.ok()
}

#[cfg(test)]
mod tests {
    use super::cursor;

    #[test]
    fn cursors_are_read_as_by_redis() {
        for (text, expected) in [
            ("0", Some(0)),
            ("", Some(0)),
            ("+7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            (" 1", None),
            ("1 ", None),
            ("--1", None),
            ("-", None),
            ("a", None),
        ] {
            assert_eq!(cursor(text.as_bytes()), expected, "{text:?}");
        }
    }
}
