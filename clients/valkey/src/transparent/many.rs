//! MGET of keys some of whose values are in the store: they are read together, and stay there.

use super::back::put_back;
use super::pressure;
use crate::commands::reply;
use crate::deadline::Deadline;
use crate::many::{Wanted, read_all};
use crate::server::{Context, Key, Kind, Reply, Text};
use crate::value::{HOT_USES, Value};

/// Replies to an MGET of these keys, if it meets a value of the module. Returns whether it replied.
///
/// # Errors
/// The error reply, when a value can't be read.
pub fn answer(
    context: &Context<'_>,
    names: &[Text<'_>],
    deadline: Deadline,
) -> Result<bool, String> {
    let (wanted, is_hot): (Vec<Wanted>, Vec<bool>) =
        names.iter().map(|name| want(context, name)).unzip();
    let is_plain = |wanted: &Wanted| matches!(wanted, Wanted::Nothing);
    if wanted.iter().all(is_plain) {
        return Ok(false);
    }
    let plain: Vec<&[u8]> = names
        .iter()
        .zip(&wanted)
        .filter(|(_, wanted)| is_plain(wanted))
        .map(|(name, _)| name.bytes())
        .collect();
    // Read all values before the first reply: one that can't be read fails the whole command.
    let values = read_all(wanted, deadline).map_err(|error| error.to_string())?;
    let plain = of_server(context, &plain)?;
    let mut plain = (0..).map(|at| plain.as_ref().and_then(|reply| reply.part(at)?.bytes()));
    context.reply_array(names.len());
    for ((name, value), is_hot) in names.iter().zip(values).zip(is_hot) {
        let Some(bytes) = value else {
            reply(context, plain.next().flatten());
            continue;
        };
        context.reply_bytes(&bytes);
        if is_hot && pressure::has_room() {
            put_back(context, name, &bytes);
        }
    }
    Ok(true)
}

/// What a key holds of the module's, and whether it has been read so often that it should come back. Counts a use.
fn want(context: &Context<'_>, name: &Text<'_>) -> (Wanted, bool) {
    if !matches!(Key::peek(context, name).kind::<Value>(), Kind::Ours(_)) {
        return (Wanted::Nothing, false);
    }
    match Key::read(context, name).kind::<Value>() {
        Kind::Ours(value) => (Wanted::of(value), value.used() >= HOT_USES),
        _ => (Wanted::Nothing, false),
    }
}

/// The server's own answer for the other keys: their strings keep their encodings.
fn of_server(context: &Context<'_>, names: &[&[u8]]) -> Result<Option<Reply>, String> {
    if names.is_empty() {
        return Ok(None);
    }
    context.call(c"MGET", names).map(Some).ok_or("ERR MGET can't be carried out".to_owned())
}
