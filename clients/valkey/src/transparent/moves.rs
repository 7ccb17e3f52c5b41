//! Moving a string to the store, and putting one thing in the place of another, which nobody hears of.

use crate::server::{Context, Found, Key, Kind, OwnText, Text};
use crate::value::Value;

/// Digits of the longest number that the server keeps in no memory beside the key's, its sign included.
const NUMBER_BYTES_MAX: usize = 20;
/// The longest string that the server keeps in one piece with its object, as long as no command has changed it.
const EMBEDDED_BYTES_MAX: usize = 44;

/// Puts a string into the store; whether it went.
pub fn send_away(context: &Context<'_>, name: &Text<'_>) -> bool {
    let bytes = match Key::peek(context, name).kind::<Value>() {
        Kind::Plain(bytes) if Value::may_spill(bytes as u64) => bytes,
        Kind::Ours(value) => value.inline_bytes().map_or(0, <[u8]>::len),
        _ => 0,
    };
    // Looking at the bytes of a string that is short changes how the server keeps it.
    let encoding =
        if (1..=EMBEDDED_BYTES_MAX).contains(&bytes) { encoding(context, name) } else { None };
    if bytes == 0 || encoding.as_deref() == Some(b"int") {
        return false;
    }
    let mut key = Key::quiet(context, name);
    let apart = encoding.as_deref() == Some(b"raw");
    let value = match key.find::<Value>() {
        // What a number was made into by a command that appends would come back in another encoding. The look at it has
        // changed how the server keeps it, if it was not apart.
        Found::Plain(bytes) if is_number(bytes) => {
            let text = (!apart).then(|| OwnText::new(bytes));
            if let Some(text) = text {
                move_to(context, &mut key, |key| key.set_plain(text.text()));
            }
            return false;
        }
        Found::Plain(bytes) => Value::spilled_string(bytes, apart),
        Found::Ours(value) => value.inline_bytes().and_then(Value::spilled),
        _ => None,
    };
    value.is_some_and(|value| move_to(context, &mut key, |key| key.set(value)))
}

/// How the server keeps a string.
fn encoding(context: &Context<'_>, name: &Text<'_>) -> Option<Vec<u8>> {
    let reply = context.call(c"OBJECT", &[b"ENCODING", name.bytes()]);
    reply.as_ref().and_then(|reply| reply.whole().bytes()).map(<[u8]>::to_vec)
}

/// Whether these bytes are a number.
fn is_number(bytes: &[u8]) -> bool {
    let number = |text: &str| text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    bytes.len() <= NUMBER_BYTES_MAX && std::str::from_utf8(bytes).is_ok_and(number)
}

/// Puts something else under a key, which keeps its time to live and how it has been used.
pub fn move_to(
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
