//! `SPILL.SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.

use std::borrow::Cow;
use std::ffi::{CStr, c_int};

use super::permit;
use super::read::{bytes_of, reply};
use super::set_options::{Life, SetOptions};
use crate::server::{Arity, Command, Context, Found, Key, NotifyClass, OwnText, Text, now_ms};
use crate::value::Value;

/// The command.
pub struct Set;

impl Command for Set {
    const NAME: &'static CStr = c"spill.set";
    const FLAGS: &'static CStr = c"write deny-oom";
    const KEYS: (c_int, c_int, c_int) = (1, 1, 1);
    const ARITY: Arity = Arity::AtLeast(3);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        permit(context, c"set", &arguments[1..])?;
        let [_, name, value, texts @ ..] = arguments else { return Err(super::SYNTAX.to_owned()) };
        let texts: Vec<&[u8]> = texts.iter().map(Text::bytes).collect();
        let options = SetOptions::parse(&texts, now_ms())?;
        let mut key = Key::write(context, name);
        let found = key.find();
        let there = !matches!(found, Found::Nothing);
        let before = if options.get { bytes_of(&found)?.map(Cow::into_owned) } else { None };
        if options.must_exist.is_some_and(|must| must != there) {
            reply(context, before.as_deref());
            return Ok(());
        }
        let until = match options.life {
            Life::Endless => None,
            Life::Kept => key.expires_ms(),
            Life::Until(at_ms) => Some(at_ms),
        };
        put(context, &mut key, name, value, until)?;
        if let Life::Until(_) = options.life {
            context.notify(NotifyClass::Generic, c"expire", name);
        }
        if options.get {
            reply(context, before.as_deref());
        } else {
            context.reply_word(c"OK");
        }
        Ok(())
    }
}

/// Puts a value under a key, with its expiry, and notifies watchers, replicas and subscribers.
fn put(
    context: &Context<'_>,
    key: &mut Key<'_>,
    name: &Text<'_>,
    value: &Text<'_>,
    until: Option<i64>,
) -> Result<(), String> {
    if !key.set(Value::new(value.bytes())) {
        return Err("ERR the key can't be written".to_owned());
    }
    let mut sent: Vec<&Text<'_>> = vec![name, value];
    let (option, at) =
        (OwnText::new(b"PXAT"), OwnText::new(until.unwrap_or(0).to_string().as_bytes()));
    if let Some(at_ms) = until {
        key.expire_at(at_ms);
        sent.extend([option.text(), at.text()]);
    }
    // Replicate the value as a whole: the command then means the same on any state.
    context.replicate(c"SPILL.SET", &sent);
    context.signal_modified(name);
    context.notify(NotifyClass::String, c"set", name);
    Ok(())
}
