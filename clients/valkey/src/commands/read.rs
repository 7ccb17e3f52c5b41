//! Commands that read.

use std::borrow::Cow;
use std::ffi::{CStr, c_int};

use super::permit;
use crate::error::WRONG_TYPE;
use crate::fetch::{Fetched, wait_for, wait_for_all};
use crate::many::{Wanted, read_all};
use crate::server::{Arity, Command, Context, Found, Key, Text};
use crate::spill::spill;
use crate::statistics;
use crate::value::Value;

/// The bytes under a key; `None` when the key does not exist.
///
/// # Errors
/// The error reply, when the key has a value of another type or its bytes can't be read.
pub fn bytes_of<'a>(found: &Found<'a, Value>) -> Result<Option<Cow<'a, [u8]>>, String> {
    match found {
        Found::Nothing => Ok(None),
        Found::Plain(bytes) => Ok(Some(Cow::Borrowed(bytes))),
        Found::Ours(value) => {
            value.read(spill().deadline()).map(Some).map_err(|error| error.to_string())
        }
        Found::Other => Err(WRONG_TYPE.to_owned()),
    }
}

/// Replies with bytes, or with null.
pub fn reply(context: &Context<'_>, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => context.reply_bytes(bytes),
        None => context.reply_null(),
    }
}

/// `SPILL.GET key`.
pub struct Get;

impl Command for Get {
    const NAME: &'static CStr = c"spill.get";
    const FLAGS: &'static CStr = c"readonly fast";
    const KEYS: (c_int, c_int, c_int) = (1, 1, 1);
    const ARITY: Arity = Arity::Exactly(2);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        permit(context, c"get", &arguments[1..])?;
        let key = Key::read(context, &arguments[1]);
        let found = key.find();
        if matches!(&found, Found::Ours(value) if wait_for(context, value, None)) {
            return Ok(());
        }
        reply(context, bytes_of(&found)?.as_deref());
        Ok(())
    }
}

/// `SPILL.MGET key [key ...]`.
pub struct GetMany;

impl Command for GetMany {
    const NAME: &'static CStr = c"spill.mget";
    const FLAGS: &'static CStr = c"readonly fast";
    const KEYS: (c_int, c_int, c_int) = (1, -1, 1);
    const ARITY: Arity = Arity::AtLeast(2);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        permit(context, c"mget", &arguments[1..])?;
        let wanted = |name| Wanted::of_key(&Key::read(context, name).find());
        let wanted: Vec<_> = arguments[1..].iter().map(wanted).collect();
        let answer = |context: &Context<'_>, arguments: &[Text<'_>], fetched: &Fetched| {
            let wanted = |name| Wanted::of_key(&Key::peek(context, name).find());
            let wanted = arguments[1..].iter().map(wanted).collect();
            reply_all(context, wanted, Some(fetched))
        };
        if wait_for_all(context, wanted.iter().map(Wanted::in_store), answer) {
            return Ok(());
        }
        reply_all(context, wanted, None)
    }
}

/// Replies to a command with several keys.
fn reply_all(
    context: &Context<'_>,
    wanted: Vec<Wanted>,
    fetched: Option<&Fetched>,
) -> Result<(), String> {
    // Read all values before the first reply: one that can't be read fails the whole command.
    let values = read_all(wanted, fetched, spill().deadline())?;
    context.reply_array(values.len());
    // Each is freed as soon as the server has its bytes in the reply.
    values.into_iter().for_each(|value| reply(context, value.as_deref()));
    Ok(())
}

/// `SPILL.STRLEN key`.
pub struct Length;

impl Command for Length {
    const NAME: &'static CStr = c"spill.strlen";
    const FLAGS: &'static CStr = c"readonly fast";
    const KEYS: (c_int, c_int, c_int) = (1, 1, 1);
    const ARITY: Arity = Arity::Exactly(2);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        permit(context, c"strlen", &arguments[1..])?;
        let key = Key::read(context, &arguments[1]);
        let bytes = match key.find::<Value>() {
            Found::Nothing => 0,
            Found::Plain(bytes) => bytes.len() as u64,
            Found::Ours(value) => value.bytes(),
            Found::Other => return Err(WRONG_TYPE.to_owned()),
        };
        context.reply_number(bytes);
        Ok(())
    }
}

/// `SPILL.STATS`.
pub struct Statistics;

impl Command for Statistics {
    const NAME: &'static CStr = c"spill.stats";
    const FLAGS: &'static CStr = c"readonly fast";
    const KEYS: (c_int, c_int, c_int) = (0, 0, 0);
    const ARITY: Arity = Arity::Exactly(1);

    fn run(context: &Context<'_>, _: &[Text<'_>]) -> Result<(), String> {
        let figures = statistics::figures();
        context.reply_map(figures.len());
        for (name, figure) in figures {
            context.reply_word(name);
            context.reply_number(figure);
        }
        Ok(())
    }
}
