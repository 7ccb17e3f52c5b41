//! Sizes in text form, such as `64M`.

/// Names of the steps of 1024 above a byte.
const STEPS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// The reason why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// It does not begin with a digit.
    Number,
    /// The text after the number is not a unit.
    Unit,
    /// It exceeds 64 bits.
    TooLarge,
}

impl core::fmt::Display for SizeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Number => "not a size; write one such as 64M or 2G",
            Self::Unit => "not a unit of size; use K, M, G or T (steps of 1024)",
            Self::TooLarge => "too large a size",
        })
    }
}

impl core::error::Error for SizeError {}

/// Parses a size into bytes: `4096`, `64M`, `64MB`, `64MiB`, `2g`. Each unit is 1024 times the one before.
///
/// # Errors
/// [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::Number);
    }
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    let step = match unit.as_bytes() {
        [] | [b'b' | b'B'] => 0,
        [letter, rest @ ..] => {
            if !rest.is_empty()
                && !rest.eq_ignore_ascii_case(b"b")
                && !rest.eq_ignore_ascii_case(b"ib")
            {
                return Err(SizeError::Unit);
            }
            match letter.to_ascii_lowercase() {
                b'k' => 1,
                b'm' => 2,
                b'g' => 3,
                b't' => 4,
                _ => return Err(SizeError::Unit),
            }
        }
    };
    number.checked_mul(1 << (10 * step)).ok_or(SizeError::TooLarge)
}

/// A count of bytes, shown with the largest step that leaves at least one whole unit: `64.0 MiB`,
/// `17 B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl core::fmt::Display for Size {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut step = 0;
        let mut value = self.0 as f64;
        while value >= 1024.0 && step + 1 < STEPS.len() {
            value /= 1024.0;
            step += 1;
        }
        if step == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.1} {}", STEPS[step]) }
    }
}
