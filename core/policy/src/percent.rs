//! Exact percentages.

use std::fmt;
use std::str::FromStr;

/// Units in one per cent.
const PER_CENT: u32 = 10_000;

/// A percentage from 0 to 100 with up to four decimals, stored exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u32);

/// The text is not a [`Percent`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a percentage: write a number above 0 and up to 100, such as 0.75")]
pub struct PercentError(String);

impl Percent {
    /// A percentage of whole hundredths: 75 is 0.75 %.
    pub const fn hundredths(hundredths: u32) -> Self {
        Self(hundredths * (PER_CENT / 100))
    }

    /// The percentage as a number.
    pub fn get(self) -> f64 {
        f64::from(self.0) / f64::from(PER_CENT)
    }

    /// This percentage of `pages`, rounded down.
    pub const fn of(self, pages: u64) -> u64 {
        let whole = 100 * PER_CENT as u128;
        (pages as u128 * self.0 as u128 / whole) as u64
    }

    /// `pages` reduced by this percentage, rounded down.
    pub const fn taken_from(self, pages: u64) -> u64 {
        let whole = 100 * PER_CENT as u128;
        (pages as u128 * (whole - self.0 as u128) / whole) as u64
    }
}

impl FromStr for Percent {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let error = || PercentError(text.chars().take(32).collect());
        if whole.is_empty() || !digits(whole) || !digits(decimals) || decimals.len() > 4 {
            return Err(error());
        }
        let whole: u32 = whole.parse().ok().filter(|&whole| whole <= 100).ok_or_else(error)?;
        let decimals: u32 = format!("{decimals:0<4}").parse().map_err(|_| error())?;
        let parts = whole * PER_CENT + decimals;
        if parts == 0 || parts > 100 * PER_CENT { Err(error()) } else { Ok(Self(parts)) }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / PER_CENT, self.0 % PER_CENT);
        f.pad(text.trim_end_matches('0').trim_end_matches('.'))
    }
}
