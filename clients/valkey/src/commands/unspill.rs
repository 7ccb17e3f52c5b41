//! `SPILL.UNSPILL key | ALL`: turns values of the module into plain strings.

use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering;

use super::permit;
use super::read::bytes_of;
use crate::error::WRONG_TYPE;
use crate::server::{
    Arity, Command, Context, DataType, Found, Key, OwnText, Text, memory_limit, memory_used,
};
use crate::spill::spill;
use crate::transparent::{self, send_away};
use crate::value::Value;

/// Keys in one step of SCAN.
const STEP: &[u8] = b"1000";
/// Memory that the server takes for a byte of a value, by the size classes of its allocator.
const SERVER_BYTES_FOR_BYTE: f64 = 1.25;

/// The command.
pub struct Unspill;

impl Command for Unspill {
    const NAME: &'static CStr = c"spill.unspill";
    const FLAGS: &'static CStr = c"write deny-oom";
    const KEYS: (c_int, c_int, c_int) = (1, 1, 1);
    const ARITY: Arity = Arity::Exactly(2);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        let name = &arguments[1];
        let done = if name.bytes().eq_ignore_ascii_case(b"ALL") {
            let unload = [b"UNLOAD".as_slice(), b"spillway"].map(OwnText::new);
            permit(context, c"module", unload.iter().map(OwnText::text))?;
            fits(context)?;
            each_value(context, one)?
        } else {
            permit(context, c"set", [name, name])?;
            u64::from(one(context, name)?)
        };
        context.reply_number(done);
        Ok(())
    }
}

/// `SPILL.DEMOTE key`: puts a plain string into the store, no matter how recently it was used.
pub struct Demote;

impl Command for Demote {
    const NAME: &'static CStr = c"spill.demote";
    const FLAGS: &'static CStr = c"write";
    const KEYS: (c_int, c_int, c_int) = (1, 1, 1);
    const ARITY: Arity = Arity::Exactly(2);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        permit(context, c"set", [&arguments[1], &arguments[1]])?;
        context.reply_number(send_away(context, &arguments[1]).into());
        Ok(())
    }
}

/// Whether all values have room in the server. Otherwise it would evict keys for them, and in transparent mode they would
/// move back to the store.
fn fits(context: &Context<'_>) -> Result<(), String> {
    let limit = memory_limit(context).ok_or("ERR maxmemory can't be read")? as f64;
    let spilled = spill().counters.spilled_bytes.load(Ordering::Relaxed) as f64;
    let needed = f64::from(memory_used()) * limit + spilled * SERVER_BYTES_FOR_BYTE;
    let part = transparent::part_that_stays();
    if limit == 0.0 || needed <= limit * part {
        return Ok(());
    }
    Err(format!(
        "ERR with all values in the server it needs a maxmemory of {:.0} MiB: run CONFIG SET maxmemory 0 first",
        (needed / part / f64::from(1 << 20)).ceil()
    ))
}

/// Turns a key's value into a plain string. Returns whether it was one of the module's.
fn one(context: &Context<'_>, name: &Text<'_>) -> Result<bool, String> {
    let mut key = Key::write(context, name);
    let found = key.find::<Value>();
    match found {
        Found::Nothing | Found::Plain(_) => return Ok(false),
        Found::Other => return Err(WRONG_TYPE.to_owned()),
        Found::Ours(_) => {}
    }
    let Some(bytes) = bytes_of(&found)? else { return Ok(false) };
    let value = OwnText::new(&bytes);
    drop(bytes);
    let until = key.expires_ms();
    if !key.set_plain(value.text()) {
        return Err("ERR the key can't be written".to_owned());
    }
    if let Some(at_ms) = until {
        key.expire_at(at_ms);
    }
    let keep = OwnText::new(b"KEEPTTL");
    context.replicate(c"SET", &[name, value.text(), keep.text()]);
    context.signal_modified(name);
    Ok(true)
}

/// An action on a key. Returns whether it changed the key.
pub type Act = fn(&Context<'_>, &Text<'_>) -> Result<bool, String>;

/// Calls `act` for each key of all databases that has a value of the module. Returns how many it changed.
///
/// # Errors
/// The error reply of the first `act` that fails.
pub fn each_value(context: &Context<'_>, act: Act) -> Result<u64, String> {
    let current = context.database();
    let mut done = 0;
    for database in 0.. {
        if !context.select(database) {
            break;
        }
        let step = each_of_database(context, act);
        if step.is_err() {
            context.select(current);
        }
        done += step?;
    }
    context.select(current);
    Ok(done)
}

fn each_of_database(context: &Context<'_>, act: Act) -> Result<u64, String> {
    let (mut done, mut cursor) = (0, b"0".to_vec());
    loop {
        let options: [&[u8]; 5] = [&cursor, b"COUNT", STEP, b"TYPE", Value::NAME.to_bytes()];
        let reply = context.call(c"SCAN", &options).ok_or("ERR the keys can't be listed")?;
        let next =
            reply.part(0).and_then(|part| part.bytes()).ok_or("ERR the keys can't be listed")?;
        let keys = reply.part(1).ok_or("ERR the keys can't be listed")?;
        for at in 0..keys.parts() {
            if let Some(name) = keys.part(at).and_then(|part| part.bytes()) {
                done += u64::from(act(context, OwnText::new(name).text())?);
            }
        }
        if next == b"0" {
            return Ok(done);
        }
        cursor = next.to_vec();
    }
}
