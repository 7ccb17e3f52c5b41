//! Commands about values that are numbers.

use spillway_wire::resp::integer;

use super::{Call, Outcome};
use crate::arguments::NO_INTEGER;
use crate::database::{Content, LockedKey};
use crate::number::{Unsummed, sum};
use crate::trouble::{Refused, Trouble};

/// Longest value that can be a number, bytes.
const NUMBER_BYTES_MAX: u64 = 5 << 10;

/// The value as a copy. `None` if it is too long to be a number.
fn text(place: &LockedKey<'_>) -> Option<Vec<u8>> {
    if place.length() > NUMBER_BYTES_MAX {
        return None;
    }
    let mut text = Vec::new();
    place.copy(0, place.length(), &mut text);
    Some(if place.is_taken() { text } else { b"0".to_vec() })
}

fn set(place: &mut LockedKey<'_>, text: &str) -> Result<(), Trouble> {
    let expires_ms = place.footer().map_or(0, |footer| footer.expires_ms);
    place.put(Content::Inline(&[text.as_bytes()]), expires_ms)
}

fn add(call: &mut Call<'_>, increment: i64) -> Outcome {
    let sum = call.at(1, |place, _| {
        let Some(number) = text(place).as_deref().and_then(integer) else {
            return Ok(Err(NO_INTEGER));
        };
        let Some(sum) = number.checked_add(increment) else {
            return Ok(Err(Refused::line("ERR increment or decrement would overflow")));
        };
        set(place, &sum.to_string())?;
        Ok(Ok(sum))
    })??;
    call.integer(sum)
}

pub(super) fn incr(call: &mut Call<'_>) -> Outcome {
    add(call, 1)
}

pub(super) fn decr(call: &mut Call<'_>) -> Outcome {
    add(call, -1)
}

pub(super) fn incrby(call: &mut Call<'_>) -> Outcome {
    let increment = call.arguments.integer(2)?;
    add(call, increment)
}

pub(super) fn decrby(call: &mut Call<'_>) -> Outcome {
    let decrement = call.arguments.integer(2)?;
    let increment = decrement.checked_neg();
    add(call, increment.ok_or(Refused::line("ERR decrement would overflow"))?)
}

pub(super) fn incrbyfloat(call: &mut Call<'_>) -> Outcome {
    let increment = call.arguments.get(2);
    let sum = call.at(1, |place, _| {
        let number = text(place);
        let sum =
            number.as_deref().map_or(Err(Unsummed::NoNumber), |number| sum(number, increment));
        let sum = match sum {
            Ok(sum) => sum,
            Err(Unsummed::NoNumber) => {
                return Ok(Err(Refused::line("ERR value is not a valid float")));
            }
            Err(Unsummed::Infinite) => {
                return Ok(Err(Refused::line("ERR increment would produce NaN or Infinity")));
            }
        };
        set(place, &sum)?;
        Ok(Ok(sum))
    })??;
    call.output.reply().bulk(sum.as_bytes());
    Ok(())
}
