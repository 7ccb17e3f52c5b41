//! Getting and setting whole values.

use std::sync::Arc;

use super::expiry::{self, Unit};
use super::{Call, Outcome};
use crate::arguments::{Given, SYNTAX};
use crate::database::{Content, Database, Place};
use crate::output::Output;
use crate::trouble::{Refused, Trouble};

/// Writes the value as a reply; nothing, when there is none.
pub(super) fn show(place: &mut Place<'_>, output: &mut Output) -> Result<(), Trouble> {
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

/// Puts a value that a command gave.
pub(super) fn put(place: &mut Place<'_>, value: Given<'_>, expires_ms: u64) -> Result<(), Trouble> {
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

/// When SET and GETEX have a key expire.
#[derive(Clone, Copy)]
enum Expiry {
    Never,
    Kept,
    At(u64),
}

/// What SET was told.
struct Options {
    if_absent: bool,
    if_present: bool,
    gives_old: bool,
    expiry: Expiry,
}

fn options(call: &Call<'_>) -> Result<Options, Refused> {
    let mut options =
        Options { if_absent: false, if_present: false, gives_old: false, expiry: Expiry::Never };
    let arguments = &call.arguments;
    let (mut at, mut has_expiry) = (3, false);
    while at < arguments.count() {
        let word = |word: &str| arguments.is(at, word);
        let unit = Unit::of(arguments.get(at));
        if word("nx") && !options.if_present {
            options.if_absent = true;
        } else if word("xx") && !options.if_absent {
            options.if_present = true;
        } else if word("get") {
            options.gives_old = true;
        } else if word("keepttl") && !has_expiry {
            (options.expiry, has_expiry) = (Expiry::Kept, true);
        } else if let Some(unit) = unit
            && !has_expiry
            && at + 1 < arguments.count()
        {
            let when = arguments.integer(at + 1)?;
            options.expiry = Expiry::At(expiry::when(when, unit, call.now_ms, "set")?);
            has_expiry = true;
            at += 1;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

pub(super) fn set(call: &mut Call<'_>) -> Outcome {
    let options = options(call)?;
    let value = call.arguments.value(2);
    call.at(1, |place, output| {
        if options.gives_old {
            place.count_read();
            show(place, output)?;
        }
        let is_meant = if place.is_taken() { !options.if_absent } else { !options.if_present };
        if is_meant {
            let expires_ms = match options.expiry {
                Expiry::Never => 0,
                Expiry::At(when) => when,
                Expiry::Kept => place.footer().map_or(0, |footer| footer.expires_ms),
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
    let arguments = &call.arguments;
    let expiry = match arguments.count() {
        2 => Expiry::Kept,
        3 if arguments.is(2, "persist") => Expiry::Never,
        4 => {
            let unit = Unit::of(arguments.get(2)).ok_or(SYNTAX)?;
            Expiry::At(expiry::when(arguments.integer(3)?, unit, call.now_ms, "getex")?)
        }
        _ => return Err(SYNTAX),
    };
    let now_ms = call.now_ms;
    call.at(1, |place, output| {
        place.count_read();
        show(place, output)?;
        match expiry {
            Expiry::At(when) if when <= now_ms => {
                place.remove();
            }
            Expiry::At(when) => place.set_expiry(when)?,
            Expiry::Never if place.footer().is_some_and(|footer| footer.expires_ms != 0) => {
                place.set_expiry(0)?;
            }
            Expiry::Never | Expiry::Kept => {}
        }
        Ok(())
    })
}

/// Values that are still to be read, of an MGET whose replies would take too much memory at once.
#[derive(Debug)]
pub struct Reading {
    database: Arc<Database>,
    keys: std::vec::IntoIter<Vec<u8>>,
}

impl Reading {
    /// Writes values until `output` has enough for now. Whether all are written.
    pub fn go_on(&mut self, output: &mut Output, now_ms: u64) -> bool {
        while !output.is_full() {
            let Some(key) = self.keys.next() else { return true };
            one_of_many(&self.database, &key, output, now_ms);
        }
        self.keys.len() == 0
    }
}

/// One value among others: what fails is an error in its place.
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

/// Sets all pairs; none of them, if `if_absent` and one of the keys is there. Whether they were set.
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
