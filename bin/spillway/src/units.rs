//! Sizes and durations as people write them.

use std::ops::RangeInclusive;
use std::time::Duration;

use spillway_types::Size;

/// Bytes in a page, the unit in which memory is managed.
pub const PAGE_BYTES: u64 = 4096;

/// Longest emulated link delay. With a longer one a run looks hung.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// Bounds of the time to wait for an answer.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Bounds of the time after which what does not answer counts as lost.
const LOSS_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(86_400);

/// Bounds of the time between two samples of a daemon's clients.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Reads a size in bytes: `4096`, `64M`, `64MB`, `64MiB`, `2g`. All steps are factors of 1024.
///
/// # Errors
/// A line that says what is invalid.
pub fn parse_size(text: &str) -> Result<u64, String> {
    spillway_types::parse_size(text).map_err(|error| format!("'{text}': {error}"))
}

/// Reads a short duration: `0`, `500ns`, `4us`, `1ms`.
///
/// # Errors
/// A line that says what is invalid.
pub fn parse_delay(text: &str) -> Result<Duration, String> {
    let delay = parse_duration(text)?;
    if delay > LONGEST_DELAY {
        return Err(format!("'{text}' is longer than the limit for an emulated delay, 1s"));
    }
    Ok(delay)
}

/// Reads a time to wait for an answer: `500ms`, `3s`.
///
/// # Errors
/// A line that says what is invalid.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    if !TIMEOUTS.contains(&timeout) {
        return Err(format!("'{text}' is not a valid time to wait; use 100ms to 60s"));
    }
    Ok(timeout)
}

/// Reads the time after which what does not answer counts as lost: `500ms`, `3600s`.
///
/// # Errors
/// A line that says what is invalid.
pub fn parse_loss_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    if !LOSS_TIMEOUTS.contains(&timeout) {
        return Err(format!("'{text}' is not a valid time to wait; use 100ms to 86400s"));
    }
    Ok(timeout)
}

/// Reads the time between two samples: `100ms`, `1s`.
///
/// # Errors
/// A line that says what is invalid.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if !INTERVALS.contains(&interval) {
        return Err(format!("'{text}' is not a valid interval; use 100ms to 3600s"));
    }
    Ok(interval)
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let number: u64 =
        number.parse().map_err(|_| format!("'{text}' is not a duration; write one such as 4us"))?;
    let unit_ns = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "" if number == 0 => 0,
        _ => return Err(format!("'{text}' needs a unit: ns, us, ms or s")),
    };
    Ok(Duration::from_nanos(number.saturating_mul(unit_ns)))
}

/// Formats a size in the largest unit of which it has at least one: `64.0 MiB`, `17 B`.
pub fn show_size(bytes: u64) -> String {
    Size(bytes).to_string()
}

/// Bytes of a count of pages. A gauge that is briefly negative counts as 0.
pub fn pages_to_bytes(pages: i64) -> u64 {
    u64::try_from(pages).unwrap_or(0).saturating_mul(PAGE_BYTES)
}

fn split(text: &str) -> (&str, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_steps_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17b", 17),
            ("64M", 64 << 20),
            ("64mb", 64 << 20),
            ("64MiB", 64 << 20),
            ("3g", 3 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "M", "-1M", "1.5G", "64 M", "64X", "64i", "64iB", "64Mi B", "99999999999999T"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn delays_need_a_unit_and_end_at_a_second() {
        assert_eq!(parse_delay("0"), Ok(Duration::ZERO));
        assert_eq!(parse_delay("4us"), Ok(Duration::from_micros(4)));
        assert_eq!(parse_delay("30µs"), Ok(Duration::from_micros(30)));
        for text in ["4", "us", "2s", "-4us", "99999999999999999s"] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_with_their_unit() {
        assert_eq!(show_size(17), "17 B");
        assert_eq!(show_size(64 << 20), "64.0 MiB");
        assert_eq!(show_size(1 << 50), "1024.0 TiB");
    }
}
