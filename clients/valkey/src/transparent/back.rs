//! Bringing a string back from the store, invisibly to clients.

use super::moves::move_to;
use super::written;
use crate::deadline::Deadline;
use crate::server::{Context, Key, Kind, OwnText, Text};
use crate::value::Value;

/// Turns a key's value into a plain string, if it is one of the module's. Returns whether it was.
///
/// # Errors
/// The error reply, when its bytes can't be read.
pub fn bring_back(
    context: &Context<'_>,
    name: &Text<'_>,
    deadline: Deadline,
) -> Result<bool, String> {
    if !matches!(Key::peek(context, name).kind::<Value>(), Kind::Ours(_)) {
        return Ok(false);
    }
    let mut key = Key::quiet(context, name);
    let Kind::Ours(value) = key.kind::<Value>() else { return Ok(false) };
    let text = value.text(deadline).map_err(|error| error.to_string())?;
    let apart = value.was_apart();
    place(context, &mut key, &text, apart);
    written::came_back(context, name);
    Ok(true)
}

/// The same for several keys.
///
/// # Errors
/// The error reply of the first value that can't be read.
pub fn bring_back_keys(
    context: &Context<'_>,
    names: &[Text<'_>],
    deadline: Deadline,
) -> Result<(), String> {
    names.iter().try_for_each(|name| bring_back(context, name, deadline).map(|_| ()))
}

/// Turns a key's value, whose bytes are `bytes`, into a plain string.
pub fn put_back(context: &Context<'_>, name: &Text<'_>, bytes: &[u8]) {
    let mut key = Key::quiet(context, name);
    if let Kind::Ours(value) = key.kind::<Value>() {
        let apart = value.was_apart();
        place(context, &mut key, &OwnText::new(bytes), apart);
    }
}

/// Replaces a key's value by a string, which the server stores as it did before.
fn place(context: &Context<'_>, key: &mut Key<'_>, text: &OwnText, apart: bool) {
    move_to(context, key, |key| {
        let set = key.set_plain(text.text());
        if apart {
            key.keep_apart();
        }
        set
    });
}
