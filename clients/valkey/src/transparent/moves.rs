//! Moving a string between the server and the store, which nobody hears of.

use crate::server::{Context, Found, Key, Kind, OwnText, Text};
use crate::value::Value;

/// Shorter strings stay: their key alone takes as much.
const BYTES_MIN: usize = 64;

/// Makes a plain string of a key's value, if it is one of the module's; whether it was.
///
/// # Errors
/// The answer, when its bytes can't be had.
pub fn bring_back(context: &Context<'_>, name: &Text<'_>) -> Result<bool, String> {
    let mut key = Key::quiet(context, name);
    let Kind::Ours(value) = key.kind::<Value>() else { return Ok(false) };
    let text = OwnText::new(&value.read().map_err(|error| error.to_string())?);
    move_to(&mut key, |key| key.set_plain(text.text()));
    Ok(true)
}

/// Puts a plain string into the store; whether it went.
pub fn send_away(context: &Context<'_>, name: &Text<'_>) -> bool {
    let mut key = Key::quiet(context, name);
    match key.kind::<Value>() {
        Kind::Plain(bytes) if bytes >= BYTES_MIN => {}
        _ => return false,
    }
    let Found::Plain(bytes) = key.find::<Value>() else { return false };
    let Some(value) = Value::spilled(bytes) else { return false };
    move_to(&mut key, |key| key.set(value))
}

/// Puts something else under a key, which keeps its time to live and how it has been used.
fn move_to(key: &mut Key<'_>, set: impl FnOnce(&mut Key<'_>) -> bool) -> bool {
    let (until, usage) = (key.expires_ms(), key.usage());
    let moved = set(key);
    if let Some(at_ms) = until {
        key.expire_at(at_ms);
    }
    key.set_usage(usage);
    moved
}
