//! Commands about the expiry of keys.

use super::{Call, Outcome};
use crate::record::Footer;
use crate::trouble::Refused;

/// The unit of a time argument, and where it counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    in_seconds: bool,
    /// The time counts from 1970; otherwise from now.
    is_absolute: bool,
}

impl Unit {
    pub const SECONDS: Self = Self { in_seconds: true, is_absolute: false };
    pub const MILLISECONDS: Self = Self { in_seconds: false, is_absolute: false };
    const AT_SECOND: Self = Self { in_seconds: true, is_absolute: true };
    const AT_MILLISECOND: Self = Self { in_seconds: false, is_absolute: true };

    /// The unit that an option of SET and GETEX names.
    pub fn of(option: &[u8]) -> Option<Self> {
        let named = [
            ("ex", Self::SECONDS),
            ("px", Self::MILLISECONDS),
            ("exat", Self::AT_SECOND),
            ("pxat", Self::AT_MILLISECOND),
        ];
        let is_it = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        named.iter().find(|(name, _)| is_it(name)).map(|(_, unit)| *unit)
    }

    /// The time in milliseconds since 1970. `None` on overflow.
    fn absolute(self, time: i64, now_ms: u64) -> Option<i64> {
        let time = if self.in_seconds { time.checked_mul(1000)? } else { time };
        if self.is_absolute { Some(time) } else { time.checked_add(now_ms as i64) }
    }
}

fn invalid(name: &str) -> Refused {
    Refused::told(format!("ERR invalid expire time in '{name}' command"))
}

/// The time at which a value with a time to live expires, milliseconds since 1970.
///
/// # Errors
/// The time is not positive, or too large. The text is Redis's.
pub(super) fn when(time: i64, unit: Unit, now_ms: u64, name: &str) -> Result<u64, Refused> {
    let when = if time > 0 { unit.absolute(time, now_ms) } else { None };
    when.and_then(|when| u64::try_from(when).ok()).ok_or_else(|| invalid(name))
}

/// The conditions under which EXPIRE and its variants change the time.
#[derive(Clone, Copy, Default)]
struct Only {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Only {
    fn read(call: &Call<'_>) -> Result<Self, Refused> {
        let mut only = Self::default();
        for option in call.arguments.from(3) {
            let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
            match () {
                () if is("nx") => only.if_none = true,
                () if is("xx") => only.if_some = true,
                () if is("gt") => only.if_later = true,
                () if is("lt") => only.if_earlier = true,
                () => {
                    return Err(Refused::quoting("ERR Unsupported option ", option, ""));
                }
            }
        }
        if only.if_none && (only.if_some || only.if_later || only.if_earlier) {
            return Err(Refused::line(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if only.if_later && only.if_earlier {
            return Err(Refused::line("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(only)
    }

    /// Whether the conditions allow a change from `old`, 0 for never, to `new`.
    fn allows(self, old: u64, new: i64) -> bool {
        let old = if old == 0 { i64::MAX } else { old as i64 };
        let has_time = old != i64::MAX;
        !(self.if_none && has_time
            || self.if_some && !has_time
            || self.if_later && (!has_time || new <= old)
            || self.if_earlier && has_time && new >= old)
    }
}

fn change(call: &mut Call<'_>, unit: Unit, name: &str) -> Outcome {
    let only = Only::read(call)?;
    let time = call.arguments.integer(2)?;
    let when = unit.absolute(time, call.now_ms).ok_or_else(|| invalid(name))?;
    let now_ms = call.now_ms as i64;
    call.at(1, |place, output| {
        let changed = place.footer().is_some_and(|footer| only.allows(footer.expires_ms, when));
        if changed && when <= now_ms {
            place.remove();
        } else if changed {
            place.set_expiry(when as u64)?;
        }
        output.reply().integer(changed.into());
        Ok(())
    })
}

pub(super) fn expire(call: &mut Call<'_>) -> Outcome {
    change(call, Unit::SECONDS, "expire")
}

pub(super) fn pexpire(call: &mut Call<'_>) -> Outcome {
    change(call, Unit::MILLISECONDS, "pexpire")
}

pub(super) fn expireat(call: &mut Call<'_>) -> Outcome {
    change(call, Unit::AT_SECOND, "expireat")
}

pub(super) fn pexpireat(call: &mut Call<'_>) -> Outcome {
    change(call, Unit::AT_MILLISECOND, "pexpireat")
}

/// Replies with -2 for a missing key, -1 for one that does not expire, otherwise with the result of `tell`.
fn tell(call: &mut Call<'_>, tell: impl FnOnce(u64, u64) -> u64) -> Outcome {
    let now_ms = call.now_ms;
    call.at(1, |place, output| {
        place.count_read();
        output.reply().integer(match place.footer() {
            None => -2,
            Some(Footer { expires_ms: 0, .. }) => -1,
            Some(footer) => tell(footer.expires_ms, now_ms) as i64,
        });
        Ok(())
    })
}

pub(super) fn ttl(call: &mut Call<'_>) -> Outcome {
    tell(call, |when, now_ms| (when.saturating_sub(now_ms) + 500) / 1000)
}

pub(super) fn pttl(call: &mut Call<'_>) -> Outcome {
    tell(call, u64::saturating_sub)
}

pub(super) fn expiretime(call: &mut Call<'_>) -> Outcome {
    tell(call, |when, _| when.saturating_add(500) / 1000)
}

pub(super) fn pexpiretime(call: &mut Call<'_>) -> Outcome {
    tell(call, |when, _| when)
}

pub(super) fn persist(call: &mut Call<'_>) -> Outcome {
    call.at(1, |place, output| {
        let expires = place.footer().is_some_and(|footer| footer.expires_ms != 0);
        if expires {
            place.set_expiry(0)?;
        }
        output.reply().integer(expires.into());
        Ok(())
    })
}
