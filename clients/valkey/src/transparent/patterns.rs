//! The keys that SORT's patterns, MIGRATE's list and DEBUG's digests refer to.

use super::back::{bring_back, bring_back_keys};
use crate::commands::{Act, each_value};
use crate::deadline::Deadline;
use crate::server::{Context, OwnText, Text};
use crate::spill::spill;

/// Brings back the values that a SORT reads beside its own key.
pub fn bring_back_for_sort(
    context: &Context<'_>,
    arguments: &[Text<'_>],
    deadline: Deadline,
) -> Result<(), String> {
    let Some(key) = arguments.get(1) else { return Ok(()) };
    let patterns: Vec<(&[u8], &[u8])> = arguments
        .windows(2)
        .skip(2)
        .filter(|pair| is_word(&pair[0], b"by") || is_word(&pair[0], b"get"))
        .filter_map(|pair| split(pair[1].bytes()))
        .collect();
    if patterns.is_empty() {
        return Ok(());
    }
    // Only the elements, in any order. The command itself reports a key that is neither a list nor a set.
    let elements = context.call(c"SORT", &[key.bytes(), b"BY", b"nosort"]);
    let Some(elements) = elements.as_ref().map(|reply| reply.whole()) else { return Ok(()) };
    for at in 0..elements.parts() {
        let Some(element) = elements.part(at).and_then(|part| part.bytes()) else { continue };
        for (before, behind) in &patterns {
            let name = OwnText::new(&[before, element, behind].concat());
            bring_back(context, name.text(), deadline)?;
        }
    }
    Ok(())
}

/// Brings back the values that a MIGRATE sends.
pub fn bring_back_for_migrate(
    context: &Context<'_>,
    arguments: &[Text<'_>],
    deadline: Deadline,
) -> Result<(), String> {
    let listed = arguments.iter().position(|argument| is_word(argument, b"keys"));
    let behind = listed.map_or(&[][..], |at| &arguments[at + 1..]);
    bring_back_keys(context, arguments.get(3..4).unwrap_or_default(), deadline)?;
    bring_back_keys(context, behind, deadline)
}

/// Brings back the values that DEBUG DIGEST or DIGEST-VALUE covers, if the server permits DEBUG to every client.
/// Refuses all other subcommands: under its own name, the server would have checked them.
pub fn bring_back_for_digest(
    context: &Context<'_>,
    arguments: &[Text<'_>],
    deadline: Deadline,
) -> Result<(), String> {
    let allowed = context.call(c"CONFIG", &[b"GET", b"enable-debug-command"]);
    let allowed = allowed.as_ref().and_then(|reply| reply.part(1)).and_then(|part| part.bytes());
    if allowed != Some(b"yes") {
        return Err(
            "ERR DEBUG DIGEST with values in the store needs enable-debug-command yes".to_owned()
        );
    }
    match arguments {
        // All values take as long as they take; each has a deadline of its own.
        [_, word] if is_word(word, b"digest") => {
            let back: Act = |context, name| bring_back(context, name, spill().deadline());
            each_value(context, back).map(|_| ())
        }
        [_, word, names @ ..] if is_word(word, b"digest-value") => {
            bring_back_keys(context, names, deadline)
        }
        _ => Err("ERR unknown subcommand of DEBUG under this name".to_owned()),
    }
}

fn is_word(argument: &Text<'_>, word: &[u8]) -> bool {
    argument.bytes().eq_ignore_ascii_case(word)
}

/// The parts of a pattern before and after its star, if it refers to keys of strings.
fn split(pattern: &[u8]) -> Option<(&[u8], &[u8])> {
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let behind = &pattern[star + 1..];
    // With a field, the pattern refers to a hash.
    let field = behind.windows(2).position(|pair| pair == b"->");
    if field.is_some_and(|at| at + 2 < behind.len()) {
        None
    } else {
        Some((&pattern[..star], behind))
    }
}
