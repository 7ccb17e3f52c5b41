//! Moving a string between the server and the store, which nobody hears of.

use super::written;
use crate::server::{Context, Found, Key, Kind, Text};
use crate::value::Value;

/// Digits of the longest number that the server keeps in no memory beside the key's, its sign included.
const NUMBER_BYTES_MAX: usize = 20;

/// Makes a plain string of a key's value, if it is one of the module's; whether it was.
///
/// # Errors
/// The answer, when its bytes can't be had.
pub fn bring_back(context: &Context<'_>, name: &Text<'_>) -> Result<bool, String> {
    let mut key = Key::quiet(context, name);
    let Kind::Ours(value) = key.kind::<Value>() else { return Ok(false) };
    let text = value.text().map_err(|error| error.to_string())?;
    move_to(context, &mut key, |key| key.set_plain(text.text()));
    written::came_back(context, name);
    Ok(true)
}

/// Puts a string into the store; whether it went.
pub fn send_away(context: &Context<'_>, name: &Text<'_>) -> bool {
    let mut key = Key::quiet(context, name);
    let wanted = match key.kind::<Value>() {
        Kind::Plain(bytes) => Value::may_spill(bytes as u64),
        Kind::Ours(value) => value.inline_bytes().is_some(),
        _ => false,
    };
    if !wanted {
        return false;
    }
    let value = match key.find::<Value>() {
        Found::Plain(bytes) if is_number(bytes) => None,
        Found::Plain(bytes) => Value::spilled(bytes),
        Found::Ours(value) => value.inline_bytes().and_then(Value::spilled),
        _ => None,
    };
    value.is_some_and(|value| move_to(context, &mut key, |key| key.set(value)))
}

/// Whether the server keeps these bytes as a number.
fn is_number(bytes: &[u8]) -> bool {
    let number = |text: &str| text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    bytes.len() <= NUMBER_BYTES_MAX && std::str::from_utf8(bytes).is_ok_and(number)
}

/// Puts something else under a key, which keeps its time to live and how it has been used.
fn move_to(
    context: &Context<'_>,
    key: &mut Key<'_>,
    set: impl FnOnce(&mut Key<'_>) -> bool,
) -> bool {
    context.without_new_events(|| {
        let (until, usage) = (key.expires_ms(), key.usage());
        let moved = set(key);
        if let Some(at_ms) = until {
            key.expire_at(at_ms);
        }
        key.set_usage(usage);
        moved
    })
}

#[cfg(test)]
mod tests {
    use super::is_number;

    #[test]
    fn what_the_server_keeps_as_a_number_stays() {
        for (text, number) in [
            ("0", true),
            ("-9223372036854775808", true),
            ("9223372036854775808", false),
            ("01", false),
            ("+1", false),
            ("-0", false),
            ("1.5", false),
            ("", false),
            (" 1", false),
        ] {
            assert_eq!(is_number(text.as_bytes()), number, "{text}");
        }
    }
}
