//! The server's commands under the module's names.

use std::ffi::{CStr, c_int};

use super::back::{bring_back, bring_back_keys, put_back};
use super::many;
use super::moves::{EMBEDDED_BYTES_MAX, encoding};
use super::patterns::{bring_back_for_digest, bring_back_for_migrate, bring_back_for_sort};
use super::pressure;
use super::table::{LETTING_IN, NATIVES, Native, Need, find};
use super::users;
use crate::deadline::Deadline;
use crate::fetch::wait_for;
use crate::server::{
    Arity, Command, Context, Found, Key, Kind, OwnText, Text, Told, register_for_native,
};
use crate::spill::spill;
use crate::value::{HOT_USES, Value};

/// Length of both prefixes of the module's names.
const PREFIX: usize = "spill.do.".len();

/// A command that forwards to one of the server's, by its name.
struct Forwarded;

/// Registers all names.
///
/// # Errors
/// A line, when the server rejects one.
pub fn register(context: &Context<'_>) -> Result<(), String> {
    NATIVES.iter().try_for_each(|native| {
        register_for_native::<Forwarded>(
            context,
            native.checked,
            native.flags,
            native.keys,
            false,
        )?;
        let flags = [native.flags.to_bytes(), b" no-auth\0"].concat();
        let flags = CStr::from_bytes_with_nul(&flags).map_err(|_| "flags with a zero")?;
        register_for_native::<Forwarded>(context, native.letting_in, flags, native.keys, true)
    })
}

impl Command for Forwarded {
    const NAME: &'static CStr = c"spill.do";
    const FLAGS: &'static CStr = c"";
    const KEYS: (c_int, c_int, c_int) = (0, 0, 0);
    const ARITY: Arity = Arity::AtLeast(1);

    fn run(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
        let name = arguments[0].bytes().get(PREFIX..).unwrap_or_default();
        let native = &NATIVES[find(name).ok_or("ERR unknown command")?];
        let asker = context.asker();
        if arguments[0].bytes().starts_with(LETTING_IN) && !users::is_authenticated(context, &asker)
        {
            return Err("NOAUTH Authentication required.".to_owned());
        }
        let deadline = spill().deadline();
        // A user without permission fetches nothing; the server's own command reports the error.
        if context.permits(&asker, native.name, &arguments[1..]) {
            match native.need {
                Need::Answer => {
                    if answer(context, native, arguments, deadline)? {
                        return Ok(());
                    }
                }
                Need::Keys => bring_back_keys(context, keys(native.keys, arguments), deadline)?,
                Need::Patterns => bring_back_for_sort(context, arguments, deadline)?,
                Need::Listed => bring_back_for_migrate(context, arguments, deadline)?,
                Need::Digest => bring_back_for_digest(context, arguments, deadline)?,
            }
        }
        let told = told(context, native, arguments);
        context.forward(&asker, native.name, &arguments[1..], told)
    }
}

/// Where a HyperLogLog says that its last count is out of date: in this bit of this byte.
const OUTDATED: (usize, u8) = (15, 1 << 7);

/// How a command is propagated. A SORT without STORE is not, nor a PFCOUNT that stores no count. A change of a missing
/// key keeps the server's own name: the key is missing elsewhere too.
fn told(context: &Context<'_>, native: &Native, arguments: &[Text<'_>]) -> Told {
    let stores = |text: &Text<'_>| text.bytes().eq_ignore_ascii_case(b"store");
    let absent =
        |name: &Text<'_>| matches!(Key::peek(context, name).kind::<Value>(), Kind::Nothing);
    match (native.need, native.told) {
        (Need::Patterns, _) if !arguments.iter().any(stores) => Told::Never,
        _ if native.name == c"pfcount" && !stores_count(context, arguments) => Told::Never,
        (Need::Keys, Told::UnderOurName | Told::UnderOurNameIfWritten)
            if keys(native.keys, arguments).iter().all(absent) =>
        {
            Told::AsItIs
        }
        _ => native.told,
    }
}

/// Whether a PFCOUNT stores the count that it gives.
fn stores_count(context: &Context<'_>, arguments: &[Text<'_>]) -> bool {
    let [_, name] = arguments else { return false };
    let key = Key::peek(context, name);
    let Kind::Plain(bytes) = key.kind::<Value>() else { return false };
    // Accessing the bytes would change the encoding. If it is a HyperLogLog, the command itself changes the encoding.
    if bytes <= EMBEDDED_BYTES_MAX && encoding(context, name).as_deref() != Some(b"raw") {
        return true;
    }
    let (at, bit) = OUTDATED;
    matches!(key.find::<Value>(), Found::Plain(bytes) if bytes.get(at).is_some_and(|byte| byte & bit != 0))
}

/// The arguments that are keys.
fn keys<'a>((first, last, _): (c_int, c_int, c_int), arguments: &'a [Text<'a>]) -> &'a [Text<'a>] {
    let end = if last < 0 { arguments.len() } else { arguments.len().min(last as usize + 1) };
    arguments.get(first as usize..end).unwrap_or_default()
}

/// Replies from the metadata of a value in the store, if the command meets one. Returns whether it replied.
fn answer(
    context: &Context<'_>,
    native: &Native,
    arguments: &[Text<'_>],
    deadline: Deadline,
) -> Result<bool, String> {
    if native.name == c"scan" {
        return scan(context, arguments);
    }
    if native.name == c"mget" {
        return many::answer(context, &arguments[1..], deadline);
    }
    let [_, name] = arguments else { return Ok(false) };
    if !matches!(Key::peek(context, name).kind::<Value>(), Kind::Ours(_)) {
        return Ok(false);
    }
    let key =
        if native.name == c"type" { Key::peek(context, name) } else { Key::read(context, name) };
    let Kind::Ours(value) = key.kind::<Value>() else { return Ok(false) };
    match native.name.to_bytes() {
        b"type" => context.reply_word(c"string"),
        b"strlen" => context.reply_number(value.bytes()),
        _ => {
            let hot = value.used() >= HOT_USES && pressure::has_room();
            if wait_for(context, value, hot.then_some(put_back)) {
                return Ok(true);
            }
            if hot {
                drop(key);
                bring_back(context, name, deadline)?;
                return Ok(false);
            }
            context.reply_bytes(&value.read(deadline).map_err(|error| error.to_string())?);
        }
    }
    Ok(true)
}

/// Runs SCAN for strings, some of which have the module's type. Returns whether it replied.
fn scan(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<bool, String> {
    let texts: Vec<&[u8]> = arguments.iter().map(Text::bytes).collect();
    let Some(asked) = without_type(&texts) else { return Ok(false) };
    let Some(reply) = context.call(c"SCAN", &asked) else { return Ok(false) };
    let (Some(cursor), Some(keys)) = (reply.part(0).and_then(|part| part.bytes()), reply.part(1))
    else {
        return Ok(false);
    };
    let strings: Vec<&[u8]> = (0..keys.parts())
        .filter_map(|at| keys.part(at).and_then(|part| part.bytes()))
        .filter(|name| {
            let name = OwnText::new(name);
            let key = Key::peek_listed(context, name.text());
            matches!(key.kind::<Value>(), Kind::Plain(_) | Kind::Ours(_))
        })
        .collect();
    context.reply_array(2);
    context.reply_bytes(cursor);
    context.reply_array(strings.len());
    strings.iter().for_each(|name| context.reply_bytes(name));
    Ok(true)
}

/// The arguments of a SCAN for strings, without the TYPE option. `None` for any other SCAN.
fn without_type<'a>(arguments: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
    let (first, options) = arguments.get(1..)?.split_first()?;
    let is_type = |pair: &&[&[u8]]| pair.len() == 2 && pair[0].eq_ignore_ascii_case(b"type");
    // The last TYPE option counts.
    let kind = options.chunks(2).rfind(is_type)?[1];
    if !kind.eq_ignore_ascii_case(b"string") {
        return None;
    }
    let others = options.chunks(2).filter(|pair| !is_type(pair)).flatten();
    Some(std::iter::once(first).chain(others).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::without_type;

    #[test]
    fn a_scan_for_strings_is_carried_out_without_the_type() {
        for (line, expected) in [
            ("scan 0 type string", Some("0")),
            ("scan 7 count 5 TYPE String match k*", Some("7 count 5 match k*")),
            ("scan 0 type string type string", Some("0")),
            ("scan 0 type list type string count 1", Some("0 count 1")),
            ("scan 0 type string type list", None),
            ("scan 0 type string count", Some("0 count")),
            ("scan 0 match type", None),
            ("scan 0 type", None),
            ("scan 0", None),
        ] {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let expected: Option<Vec<&[u8]>> =
                expected.map(|line| line.split(' ').map(str::as_bytes).collect());
            assert_eq!(without_type(&arguments), expected, "{line}");
        }
    }
}
