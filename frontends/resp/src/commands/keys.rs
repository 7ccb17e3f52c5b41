//! Commands about keys that do not return values.

use spillway_wire::resp::integer;

use super::{Call, Outcome};
use crate::trouble::Refused;

/// Longest value that Redis encodes as `embstr`, bytes.
const EMBEDDED_BYTES_MAX: u64 = 44;

fn count(call: &mut Call<'_>, remove: bool) -> Outcome {
    let mut found = 0;
    for at in 1..call.arguments.count() {
        let is_there = call.at(at, |place, _| {
            if remove {
                return Ok(place.remove());
            }
            let is_whole = place.is_whole()?;
            place.count_read();
            Ok(is_whole)
        })?;
        found += i64::from(is_there);
    }
    call.integer(found)
}

pub(super) fn del(call: &mut Call<'_>) -> Outcome {
    count(call, true)
}

pub(super) fn exists(call: &mut Call<'_>) -> Outcome {
    count(call, false)
}

pub(super) fn kind(call: &mut Call<'_>) -> Outcome {
    call.at(1, |place, output| {
        place.count_read();
        output.reply().simple(if place.is_taken() { "string" } else { "none" });
        Ok(())
    })
}

pub(super) fn object(call: &mut Call<'_>) -> Outcome {
    let is = |word| call.arguments.is(1, word);
    if is("help") && call.arguments.count() == 2 {
        let lines = ["OBJECT ENCODING|REFCOUNT <key>", "Tell how the value of a key is kept."];
        call.output.reply().array(lines.len());
        lines.iter().for_each(|line| call.output.reply().simple(line));
        return Ok(());
    }
    if call.arguments.count() != 3 {
        return Err(call.no_subcommand(&["help", "encoding", "refcount", "idletime", "freq"]));
    }
    if is("refcount") {
        return call.at(2, |place, output| {
            place.count_read();
            if place.is_taken() {
                output.reply().integer(1)
            } else {
                output.reply().null()
            }
            Ok(())
        });
    }
    if is("encoding") {
        return call.at(2, |place, output| {
            place.count_read();
            if !place.is_taken() {
                output.reply().null();
                return Ok(());
            }
            let mut text = Vec::new();
            if place.length() <= EMBEDDED_BYTES_MAX {
                place.copy(0, place.length(), &mut text);
            }
            let encoding = match place.length() {
                _ if integer(&text).is_some() => "int",
                0..=EMBEDDED_BYTES_MAX => "embstr",
                _ => "raw",
            };
            output.reply().bulk(encoding.as_bytes());
            Ok(())
        });
    }
    if is("idletime") || is("freq") {
        return Err(Refused::line("ERR the store does not tell when a value was used"));
    }
    Err(call.no_subcommand(&["help"]))
}
