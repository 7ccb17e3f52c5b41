//! The options of `SPILL.SET`, which are those of SET.

use super::SYNTAX;

/// The options of a SET beyond key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetOptions {
    /// Whether the key must exist (true) or must not (false).
    pub must_exist: Option<bool>,
    /// Whether to reply with the previous value.
    pub get: bool,
    /// How long the value lives.
    pub life: Life,
}

/// How long a value lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// Until it is removed.
    #[default]
    Endless,
    /// As long as the previous value.
    Kept,
    /// Until a time, milliseconds since 1970.
    Until(i64),
}

impl SetOptions {
    /// Parses options; `now_ms` is the time in milliseconds since 1970.
    ///
    /// # Errors
    /// The error reply.
    pub fn parse(texts: &[&[u8]], now_ms: i64) -> Result<Self, &'static str> {
        let mut options = Self::default();
        let mut rest = texts.iter();
        while let Some(text) = rest.next() {
            match text.to_ascii_uppercase().as_slice() {
                b"NX" if options.must_exist != Some(true) => options.must_exist = Some(false),
                b"XX" if options.must_exist != Some(false) => options.must_exist = Some(true),
                b"GET" => options.get = true,
                // As with SET, the same word may appear twice.
                b"KEEPTTL" if !matches!(options.life, Life::Until(_)) => options.life = Life::Kept,
                name @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") if options.life == Life::Endless => {
                    let number = rest.next().ok_or(SYNTAX)?;
                    options.life = Life::Until(until(name, number, now_ms)?);
                }
                _ => return Err(SYNTAX),
            }
        }
        Ok(options)
    }
}

/// The expiry that an option names, in milliseconds since 1970.
fn until(name: &[u8], number: &[u8], now_ms: i64) -> Result<i64, &'static str> {
    const INVALID: &str = "ERR invalid expire time in 'spill.set' command";
    let text = std::str::from_utf8(number).unwrap_or_default();
    let number: i64 = text.parse().map_err(|_| "ERR value is not an integer or out of range")?;
    if number <= 0 {
        return Err(INVALID);
    }
    let unit_ms = if name[0] == b'E' { 1000 } else { 1 };
    let from_ms = if name.ends_with(b"AT") { 0 } else { now_ms };
    number.checked_mul(unit_ms).and_then(|ms| ms.checked_add(from_ms)).ok_or(INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &str) -> Result<SetOptions, &'static str> {
        SetOptions::parse(&texts.split_whitespace().map(str::as_bytes).collect::<Vec<_>>(), 1000)
    }

    #[test]
    fn options_of_set() {
        let default = SetOptions::default();
        assert_eq!(parse(""), Ok(default));
        assert_eq!(
            parse("nx Get"),
            Ok(SetOptions { must_exist: Some(false), get: true, ..default })
        );
        assert_eq!(
            parse("XX KEEPTTL"),
            Ok(SetOptions { must_exist: Some(true), life: Life::Kept, ..default })
        );
        for (texts, at) in [("EX 2", 3000), ("px 5", 1005), ("EXAT 7", 7000), ("PXAT 8", 8)] {
            assert_eq!(
                parse(texts),
                Ok(SetOptions { life: Life::Until(at), ..default }),
                "{texts}"
            );
        }
    }

    #[test]
    fn mistakes() {
        for texts in ["NX XX", "XX NX", "EX", "EX 1 PX 1", "EX 1 KEEPTTL", "KEEPTTL EX 1", "what"] {
            assert_eq!(parse(texts), Err(SYNTAX), "{texts}");
        }
        for texts in ["EX 0", "PX -1", "EX 9223372036854775807", "PX 9223372036854775807"] {
            assert!(parse(texts).unwrap_err().contains("invalid expire"), "{texts}");
        }
        for texts in ["EX x", "EX 9223372036854775808"] {
            assert!(parse(texts).unwrap_err().contains("not an integer"), "{texts}");
        }
    }
}
