//! Commands about parts of values.

use std::sync::Arc;

use spillway_store::LongGet;
use spillway_wire::resp::integer;

use super::strings::put;
use super::{Call, Outcome};
use crate::arguments::Given;
use crate::chunks;
use crate::database::{Content, Database, LockedKey};
use crate::record::{Footer, INLINE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::trouble::{Refused, Trouble};

/// Zeros that fill the gap between the end of a value and a part that is set behind it.
const ZEROS: [u8; 4096] = [0; 4096];
const TOO_LONG: Refused =
    Refused::line("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// The bytes of a value.
enum Source {
    Bytes(Vec<u8>),
    Parts(Vec<LongGet>),
}

impl Source {
    /// The present value of a key.
    fn of(place: &mut LockedKey<'_>) -> Result<Self, Trouble> {
        if place.is_inline() {
            let mut bytes = Vec::new();
            place.copy(0, place.length(), &mut bytes);
            return Ok(Self::Bytes(bytes));
        }
        Ok(place.parts()?.map_or(Self::Bytes(Vec::new()), Self::Parts))
    }

    /// A value that arrived with a command. Keep `given` while you use the result: its drop removes the chunks.
    fn given(database: &Database, given: &Given<'_>) -> Result<Self, Trouble> {
        let chunks = match given {
            Given::Bytes(bytes) => return Ok(Self::Bytes(bytes.to_vec())),
            Given::Chunks(chunks) => chunks,
        };
        let footer =
            Footer { value_bytes: chunks.total(), chunks: chunks.object(), ..Footer::default() };
        let parts = chunks::parts(&database.store, database.pool(), &footer)?;
        // A chunk was refused, or has vanished since.
        parts.map(Self::Parts).ok_or(Trouble::Full)
    }

    fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Parts(parts) => parts.iter().map(|part| part.length() as u64).sum(),
        }
    }

    /// Calls `take` with bytes `from` to `to`, exclusive, in order.
    fn show(&self, from: u64, to: u64, mut take: impl FnMut(&[u8])) {
        let mut at = 0;
        let mut one = |bytes: &[u8]| {
            let end = at + bytes.len() as u64;
            let (first, last) = (from.max(at), to.min(end));
            if first < last {
                take(&bytes[(first - at) as usize..(last - at) as usize]);
            }
            at = end;
        };
        match self {
            Self::Bytes(bytes) => one(bytes),
            Self::Parts(parts) => parts.iter().for_each(|part| part.parts().for_each(&mut one)),
        }
    }
}

/// Puts `given` into the value at `offset`, and fills a gap before it with zeros. Gives the new length.
fn overwrite(
    place: &mut LockedKey<'_>,
    database: &Arc<Database>,
    given: &Given<'_>,
    offset: u64,
) -> Result<u64, Trouble> {
    let (old, new) = (Source::of(place)?, Source::given(database, given)?);
    let end = offset + new.length();
    let total = old.length().max(end);
    let expires_ms = place.footer().map_or(0, |footer| footer.expires_ms);
    let compose = |take: &mut dyn FnMut(&[u8])| {
        old.show(0, offset, &mut *take);
        let mut gap = offset.saturating_sub(old.length()) as usize;
        while gap > 0 {
            let now = gap.min(ZEROS.len());
            take(&ZEROS[..now]);
            gap -= now;
        }
        new.show(0, new.length(), &mut *take);
        old.show(end, total, &mut *take);
    };
    if total <= INLINE_BYTES_MAX as u64 {
        let mut bytes = Vec::with_capacity(total as usize);
        compose(&mut |part| bytes.extend_from_slice(part));
        place.put(Content::Inline(&[&bytes]), expires_ms)?;
    } else {
        let mut chunks = database.begin_chunks(total);
        compose(&mut |part| chunks.push(part));
        place.put(Content::Chunks(chunks), expires_ms)?;
    }
    Ok(total)
}

pub(super) fn append(call: &mut Call<'_>) -> Outcome {
    let (database, given) = (call.database()?, call.arguments.value(2));
    let appended = call.at(1, |place, output| {
        let offset = place.length();
        if offset + given.length() > VALUE_BYTES_MAX {
            return Ok(false);
        }
        let length = match offset {
            0 => {
                let (length, expires_ms) =
                    (given.length(), place.footer().map_or(0, |footer| footer.expires_ms));
                put(place, given, expires_ms)?;
                length
            }
            _ => overwrite(place, &database, &given, offset)?,
        };
        output.reply().integer(length as i64);
        Ok(true)
    })?;
    if appended { Ok(()) } else { Err(TOO_LONG) }
}

pub(super) fn setrange(call: &mut Call<'_>) -> Outcome {
    let offset = call.arguments.integer(2)?;
    let Ok(offset) = u64::try_from(offset) else {
        return Err(Refused::line("ERR offset is out of range"));
    };
    let (database, given) = (call.database()?, call.arguments.value(3));
    if given.length() > 0 && offset.saturating_add(given.length()) > VALUE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    call.at(1, |place, output| {
        let length = match given.length() {
            0 => place.length(),
            _ => overwrite(place, &database, &given, offset)?,
        };
        output.reply().integer(length as i64);
        Ok(())
    })
}

/// The byte and the bit in it to which argument 2 refers.
fn bit(call: &Call<'_>) -> Result<(u64, u8), Refused> {
    let wrong = Refused::line("ERR bit offset is not an integer or out of range");
    let offset = integer(call.arguments.get(2)).and_then(|offset| u64::try_from(offset).ok());
    match offset.filter(|offset| offset / 8 < VALUE_BYTES_MAX) {
        Some(offset) => Ok((offset / 8, 7 - (offset % 8) as u8)),
        None => Err(wrong),
    }
}

/// One byte of a value; 0 beyond its end.
fn byte(place: &mut LockedKey<'_>, at: u64) -> Result<u8, Trouble> {
    let mut byte = 0;
    if place.is_inline() {
        let mut one = Vec::new();
        place.copy(at.min(place.length()), (at + 1).min(place.length()), &mut one);
        byte = one.first().copied().unwrap_or(0);
    } else {
        Source::of(place)?.show(at, at + 1, |part| byte = part[0]);
    }
    Ok(byte)
}

pub(super) fn getbit(call: &mut Call<'_>) -> Outcome {
    let (at, bit) = bit(call)?;
    call.at(1, |place, output| {
        place.count_read();
        output.reply().integer((byte(place, at)? >> bit & 1).into());
        Ok(())
    })
}

pub(super) fn setbit(call: &mut Call<'_>) -> Outcome {
    let (at, bit) = bit(call)?;
    let set = match call.arguments.get(3) {
        b"0" => 0,
        b"1" => 1,
        _ => return Err(Refused::line("ERR bit is not an integer or out of range")),
    };
    let database = call.database()?;
    call.at(1, |place, output| {
        let old = byte(place, at)?;
        let new = [old & !(1 << bit) | set << bit];
        overwrite(place, &database, &Given::Bytes(&new), at)?;
        output.reply().integer((old >> bit & 1).into());
        Ok(())
    })
}

/// The byte range, end exclusive, from `first` to `last` inclusive. Negative numbers count from the end.
fn range(first: i64, last: i64, length: u64) -> (u64, u64) {
    let length = length as i64;
    if first < 0 && last < 0 && first > last {
        return (0, 0);
    }
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (first, last) = (place(first), place(last).min(length - 1));
    if first > last || length == 0 { (0, 0) } else { (first as u64, last as u64 + 1) }
}

pub(super) fn getrange(call: &mut Call<'_>) -> Outcome {
    let (first, last) = (call.arguments.integer(2)?, call.arguments.integer(3)?);
    call.at(1, |place, output| {
        place.count_read();
        let (from, to) = range(first, last, place.length());
        if place.is_inline() {
            output.reply().bulk_header((to - from) as usize);
            place.copy(from, to, output.bytes());
            output.reply().bulk_end();
            return Ok(());
        }
        let parts = place.parts()?.unwrap_or_default();
        // A value that has vanished has no bytes.
        let (from, to) = if parts.is_empty() { (0, 0) } else { (from, to) };
        output.reply().bulk_header((to - from) as usize);
        let mut at = 0;
        for mut part in parts {
            let (begin, end) = (at, at + part.length() as u64);
            at = end;
            if from >= end || to <= begin {
                continue;
            }
            part.advance(from.saturating_sub(begin) as usize);
            part.cut(end.saturating_sub(to) as usize);
            output.push(part);
        }
        output.reply().bulk_end();
        Ok(())
    })
}

pub(super) fn strlen(call: &mut Call<'_>) -> Outcome {
    call.at(1, |place, output| {
        place.count_read();
        output.reply().integer(place.length() as i64);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn ranges_count_from_both_ends() {
        for (first, last, length, expected) in [
            (0, 3, 11, (0, 4)),
            (0, -1, 11, (0, 11)),
            (-4, -1, 11, (7, 11)),
            (5, 3, 11, (0, 0)),
            (5, 5000, 11, (5, 11)),
            (-5000, 10_000, 11, (0, 11)),
            (-1, -5, 11, (0, 0)),
            (0, -100, 4, (0, 1)),
            (0, 0, 0, (0, 0)),
            (i64::MIN, i64::MAX, 2, (0, 2)),
        ] {
            assert_eq!(range(first, last, length), expected, "{first} {last} {length}");
        }
    }
}
