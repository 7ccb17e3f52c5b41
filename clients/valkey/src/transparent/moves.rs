//! Moves a string to the store, and replaces a key's value invisibly to clients.

use crate::server::{Context, Found, Key, Kind, OwnText, Text};
use crate::value::Value;

/// Digits of the longest number that the server stores within the key's object, the sign included.
const NUMBER_BYTES_MAX: usize = 20;
/// The longest string that the server stores within its object, until a command changes it.
pub const EMBEDDED_BYTES_MAX: usize = 44;

/// Moves a string to the store. Returns whether it moved.
pub fn send_away(context: &Context<'_>, name: &Text<'_>) -> bool {
    let bytes = match Key::peek(context, name).kind::<Value>() {
        Kind::Plain(bytes) if Value::may_spill(bytes as u64) => bytes,
        Kind::Ours(value) => value.inline_bytes().map_or(0, <[u8]>::len),
        _ => 0,
    };
    // Accessing the bytes of a short string changes its encoding, so ask for the encoding first.
    let encoding =
        if (1..=EMBEDDED_BYTES_MAX).contains(&bytes) { encoding(context, name) } else { None };
    if bytes == 0 || encoding.as_deref() == Some(b"int") {
        return false;
    }
    let mut key = Key::quiet(context, name);
    let apart = encoding.as_deref() == Some(b"raw");
    let value = match key.find::<Value>() {
        // A number that a command such as APPEND has turned into a string would come back in another encoding. Restore
        // the encoding, which the access to its bytes has changed, unless the string was stored apart.
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

/// The server's encoding of a string.
pub fn encoding(context: &Context<'_>, name: &Text<'_>) -> Option<Vec<u8>> {
    let reply = context.call(c"OBJECT", &[b"ENCODING", name.bytes()]);
    reply.as_ref().and_then(|reply| reply.whole().bytes()).map(<[u8]>::to_vec)
}

/// Whether these bytes are a decimal number as the server would store it.
fn is_number(bytes: &[u8]) -> bool {
    let number = |text: &str| text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    bytes.len() <= NUMBER_BYTES_MAX && std::str::from_utf8(bytes).is_ok_and(number)
}

/// Replaces a key's value, and keeps its expiry and usage.
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
