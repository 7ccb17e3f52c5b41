//! MGET of keys some of whose values are in the store: they are read together, and stay there.

use super::back::put_back;
use super::pressure;
use crate::commands::reply;
use crate::deadline::Deadline;
use crate::fetch::{Fetched, wait_for_all};
use crate::many::{Wanted, read_all};
use crate::server::{Context, Key, Kind, Reply, Text};
use crate::spill::spill;
use crate::value::{HOT_USES, Value};

/// Replies to an MGET of these keys, if it meets a value of the module, or makes its client wait. Returns whether it did.
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
    if wanted.iter().all(is_plain) {
        return Ok(false);
    }
    let hot = is_hot.clone();
    let later = move |context: &Context<'_>, arguments: &[Text<'_>], fetched: &Fetched| {
        let names = &arguments[1..];
        let wanted = names.iter().map(|name| content(Key::peek(context, name).kind())).collect();
        reply_all(context, names, wanted, &hot, (Some(fetched), spill().deadline()))
    };
    if !wait_for_all(context, wanted.iter().map(Wanted::in_store), later) {
        reply_all(context, names, wanted, &is_hot, (None, deadline))?;
    }
    Ok(true)
}

fn is_plain(wanted: &Wanted) -> bool {
    matches!(wanted, Wanted::Nothing)
}

/// Replies with what was fetched, what is read until the deadline, and the server's own answer for plain keys. Puts those
/// that are hot back.
fn reply_all(
    context: &Context<'_>,
    names: &[Text<'_>],
    wanted: Vec<Wanted>,
    is_hot: &[bool],
    (fetched, deadline): (Option<&Fetched>, Deadline),
) -> Result<(), String> {
    let plain: Vec<&[u8]> = names
        .iter()
        .zip(&wanted)
        .filter(|(_, wanted)| is_plain(wanted))
        .map(|(name, _)| name.bytes())
        .collect();
    // Read all values before the first reply: one that can't be read fails the whole command.
    let values = read_all(wanted, fetched, deadline)?;
    let plain = of_server(context, &plain)?;
    let mut plain = (0..).map(|at| plain.as_ref().and_then(|reply| reply.part(at)?.bytes()));
    context.reply_array(names.len());
    for ((name, value), is_hot) in names.iter().zip(values).zip(is_hot) {
        let Some(bytes) = value else {
            reply(context, plain.next().flatten());
            continue;
        };
        context.reply_bytes(&bytes);
        if *is_hot && pressure::has_room() {
            put_back(context, name, &bytes);
        }
    }
    Ok(())
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

/// What a key holds of the module's.
fn content(kind: Kind<'_, Value>) -> Wanted {
    match kind {
        Kind::Ours(value) => Wanted::of(value),
        _ => Wanted::Nothing,
    }
}

/// The server's own answer for the other keys: their strings keep their encodings.
fn of_server(context: &Context<'_>, names: &[&[u8]]) -> Result<Option<Reply>, String> {
    if names.is_empty() {
        return Ok(None);
    }
    context.call(c"MGET", names).map(Some).ok_or("ERR MGET can't be carried out".to_owned())
}
