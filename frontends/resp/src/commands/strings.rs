//! Commands that get and set whole values.

use std::sync::Arc;

use super::expiry::{self, Unit};
use super::{Call, Outcome};
use crate::arguments::{Given, SYNTAX};
use crate::database::{Content, Database, LockedKey};
use crate::output::Output;
use crate::trouble::{Refused, Trouble};

/// Writes the value as a reply, or a null reply without a value.
pub(super) fn show(place: &mut LockedKey<'_>, output: &mut Output) -> Result<(), Trouble> {
    if !place.is_taken() {
        output.reply().null();
        return Ok(());
    }
    let length = place.length();
    if place.is_inline() {
        output.reply().bulk_header(length as usize);
        place.copy(0, length, output.bytes());
        output.reply().bulk_end();
        return Ok(());
    }
    let Some(parts) = place.parts()? else {
        output.reply().null();
        return Ok(());
    };
    output.reply().bulk_header(length as usize);
    parts.into_iter().for_each(|part| output.push(part));
    output.reply().bulk_end();
    Ok(())
}

/// Stores a value from the arguments of a command.
pub(super) fn put(
    place: &mut LockedKey<'_>,
    value: Given<'_>,
    expires_ms: u64,
) -> Result<(), Trouble> {
    match value {
        Given::Bytes(bytes) => place.put(Content::Inline(&[bytes]), expires_ms),
        Given::Chunks(chunks) => place.put(Content::Chunks(chunks), expires_ms),
    }
}

pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    call.at(1, |place, output| {
        place.count_read();
        show(place, output)
    })
}

/// The expiry that SET or GETEX sets.
#[derive(Clone, Copy)]
enum Expiry {
    Never,
    Kept,
    /// At the time in the argument of this number.
    At(Unit, usize),
}

/// The options of SET or GETEX.
struct Options {
    if_absent: bool,
    if_present: bool,
    gives_old: bool,
    expiry: Option<Expiry>,
}

impl Options {
    /// Parses the options from argument `first` on. Options may be repeated; of several times in the same unit the last
    /// counts.
    fn read(call: &Call<'_>, first: usize, of_set: bool) -> Result<Self, Refused> {
        let mut options =
            Self { if_absent: false, if_present: false, gives_old: false, expiry: None };
        let arguments = &call.arguments;
        let mut at = first;
        while at < arguments.count() {
            let word = |word: &str| arguments.is(at, word);
            let has_next = at + 1 < arguments.count();
            match (options.expiry, Unit::of(arguments.get(at))) {
                (None, Some(unit)) if has_next => {
                    at += 1;
                    options.expiry = Some(Expiry::At(unit, at));
                }
                (Some(Expiry::At(before, _)), Some(unit)) if has_next && before == unit => {
                    at += 1;
                    options.expiry = Some(Expiry::At(unit, at));
                }
                (None | Some(Expiry::Kept), _) if of_set && word("keepttl") => {
                    options.expiry = Some(Expiry::Kept);
                }
                (None | Some(Expiry::Never), _) if !of_set && word("persist") => {
                    options.expiry = Some(Expiry::Never);
                }
                _ if of_set && word("nx") && !options.if_present => options.if_absent = true,
                _ if of_set && word("xx") && !options.if_absent => options.if_present = true,
                _ if of_set && word("get") => options.gives_old = true,
                _ => return Err(SYNTAX),
            }
            at += 1;
        }
        Ok(options)
    }
}

pub(super) fn set(call: &mut Call<'_>) -> Outcome {
    let options = Options::read(call, 3, true)?;
    let at_ms = match options.expiry {
        Some(Expiry::At(unit, at)) => {
            expiry::when(call.arguments.integer(at)?, unit, call.now_ms, "set")?
        }
        _ => 0,
    };
    let value = call.arguments.value(2);
    call.at(1, |place, output| {
        if options.gives_old {
            place.count_read();
            show(place, output)?;
        }
        let is_meant = if place.is_taken() { !options.if_absent } else { !options.if_present };
        if is_meant {
            let expires_ms = match options.expiry {
                Some(Expiry::Kept) => place.footer().map_or(0, |footer| footer.expires_ms),
                _ => at_ms,
            };
            put(place, value, expires_ms)?;
        }
        match (options.gives_old, is_meant) {
            (true, _) => {}
            (false, true) => output.reply().simple("OK"),
            (false, false) => output.reply().null(),
        }
        Ok(())
    })
}

pub(super) fn setnx(call: &mut Call<'_>) -> Outcome {
    let value = call.arguments.value(2);
    call.at(1, |place, output| {
        let is_free = !place.is_taken();
        if is_free {
            put(place, value, 0)?;
        }
        output.reply().integer(is_free.into());
        Ok(())
    })
}

fn set_expiring(call: &mut Call<'_>, unit: Unit, name: &str) -> Outcome {
    let expires_ms = expiry::when(call.arguments.integer(2)?, unit, call.now_ms, name)?;
    let value = call.arguments.value(3);
    call.at(1, |place, output| {
        put(place, value, expires_ms)?;
        output.reply().simple("OK");
        Ok(())
    })
}

pub(super) fn setex(call: &mut Call<'_>) -> Outcome {
    set_expiring(call, Unit::SECONDS, "setex")
}

pub(super) fn psetex(call: &mut Call<'_>) -> Outcome {
    set_expiring(call, Unit::MILLISECONDS, "psetex")
}

pub(super) fn getset(call: &mut Call<'_>) -> Outcome {
    let value = call.arguments.value(2);
    call.at(1, |place, output| {
        place.count_read();
        show(place, output)?;
        put(place, value, 0)
    })
}

pub(super) fn getdel(call: &mut Call<'_>) -> Outcome {
    call.at(1, |place, output| {
        place.count_read();
        show(place, output)?;
        place.remove();
        Ok(())
    })
}

pub(super) fn getex(call: &mut Call<'_>) -> Outcome {
    let options = Options::read(call, 2, false)?;
    let now_ms = call.now_ms;
    // An invalid time is no error for a missing key.
    let at_ms = match options.expiry {
        Some(Expiry::At(unit, at)) => call
            .arguments
            .integer(at)
            .and_then(|time| expiry::when(time, unit, now_ms, "getex"))
            .map(Some),
        _ => Ok(None),
    };
    call.at(1, |place, output| {
        place.count_read();
        let at_ms = match at_ms {
            Err(refused) if place.is_taken() => return Ok(Err(refused)),
            at_ms => at_ms.unwrap_or_default(),
        };
        show(place, output)?;
        match (options.expiry, at_ms) {
            (_, Some(when)) if when <= now_ms => {
                place.remove();
            }
            (_, Some(when)) => place.set_expiry(when)?,
            (Some(Expiry::Never), _)
                if place.footer().is_some_and(|footer| footer.expires_ms != 0) =>
            {
                place.set_expiry(0)?;
            }
            _ => {}
        }
        Ok(Ok(()))
    })?
}

/// The values that an MGET has still to read. They are read in turns, so that the replies take little memory.
#[derive(Debug)]
pub struct Reading {
    database: Arc<Database>,
    keys: std::vec::IntoIter<Vec<u8>>,
}

impl Reading {
    /// Writes values until `output` is full. True if all are written.
    pub fn go_on(&mut self, output: &mut Output, now_ms: u64) -> bool {
        while !output.is_full() {
            let Some(key) = self.keys.next() else { return true };
            one_of_many(&self.database, &key, output, now_ms);
        }
        self.keys.len() == 0
    }
}

/// Writes one value of several. A failure becomes an error in the place of the value.
fn one_of_many(database: &Database, key: &[u8], output: &mut Output, now_ms: u64) {
    let mark = output.mark();
    let shown = database.at(key, now_ms, |place| {
        place.count_read();
        show(place, output)
    });
    if let Err(trouble) = shown {
        output.forget_from(mark);
        output.reply().error(trouble.to_string().as_bytes());
    }
}

pub(super) fn mget(call: &mut Call<'_>) -> Outcome {
    let database = call.database()?;
    let count = call.arguments.count();
    call.output.reply().array(count - 1);
    for at in 1..count {
        if call.output.is_full() {
            let keys: Vec<_> = call.arguments.from(at).map(<[u8]>::to_vec).collect();
            *call.reading = Some(Reading { database, keys: keys.into_iter() });
            return Ok(());
        }
        one_of_many(&database, call.arguments.get(at), call.output, call.now_ms);
    }
    Ok(())
}

/// Sets all pairs. With `if_absent` it sets none if one of the keys exists. Gives whether the pairs were set.
fn set_all(call: &mut Call<'_>, name: &str, if_absent: bool) -> Result<bool, Refused> {
    let count = call.arguments.count();
    if count.is_multiple_of(2) {
        let line = format!("ERR wrong number of arguments for '{name}' command");
        return Err(Refused::told(line));
    }
    let (database, now_ms) = (call.database()?, call.now_ms);
    let _locked = database.lock_all(call.arguments.pairs(1));
    if if_absent {
        for key in call.arguments.pairs(1) {
            if database.at_locked(key, now_ms, |place| Ok(place.is_taken()))? {
                return Ok(false);
            }
        }
    }
    for at in (1..count).step_by(2) {
        let (key, value) = (call.arguments.get(at), call.arguments.value(at + 1));
        database.at_locked(key, now_ms, |place| put(place, value, 0))?;
    }
    Ok(true)
}

pub(super) fn mset(call: &mut Call<'_>) -> Outcome {
    set_all(call, "mset", false)?;
    call.ok()
}

pub(super) fn msetnx(call: &mut Call<'_>) -> Outcome {
    let set = set_all(call, "msetnx", true)?;
    call.integer(i64::from(set))
}
