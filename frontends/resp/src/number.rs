//! Numbers for INCRBYFLOAT, as Redis reads, adds and writes them: the x87 format, with a mantissa of 64 bits.

use crate::natural::Natural;

/// A text of this length or longer is no number, bytes.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Digits of a result after the decimal point.
const FRACTION_DIGITS: usize = 17;
/// Bits of a mantissa.
const MANTISSA_BITS: i32 = 64;
/// The exponent of the smallest number above 0, and the first power of two that is infinite.
const EXPONENT_MIN: i32 = -16_445;
const EXPONENT_END: i32 = 16_384;
/// Numbers with a larger decimal exponent are infinite. Those below its negative are 0.
const DECIMAL_END: i64 = 5000;

/// The reason why there is no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsummed {
    /// One of the texts is no number.
    NoNumber,
    /// The sum or the increment is infinite.
    Infinite,
}

/// A number: mantissa * 2^exponent. The highest bit of the mantissa is set, except for subnormal numbers and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extended {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

impl Extended {
    const ZERO: Self = Self { negative: false, mantissa: 0, exponent: EXPONENT_MIN };

    /// The nearest number to `number` * 2^`exponent`. `number` is not 0. `None` if the result is infinite or 0.
    fn nearest(negative: bool, number: u128, exponent: i32) -> Option<Self> {
        let bits = (u128::BITS - number.leading_zeros()) as i32;
        let shift = (bits - MANTISSA_BITS).max(EXPONENT_MIN - exponent);
        let mut mantissa = match u32::try_from(shift) {
            Ok(shift) => shifted(number, shift),
            Err(_) => number << shift.unsigned_abs(),
        };
        let mut exponent = exponent + shift;
        if mantissa >> MANTISSA_BITS != 0 {
            (mantissa, exponent) = (mantissa >> 1, exponent + 1);
        }
        let fits = mantissa != 0 && exponent + MANTISSA_BITS <= EXPONENT_END;
        fits.then_some(Self { negative, mantissa: mantissa as u64, exponent })
    }

    /// Parses a number like `strtold`. `None` if the text is no number, or if the number is infinite or rounds to 0.
    fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        match text {
            [b'0', b'x' | b'X', rest @ ..] => hexadecimal(negative, rest),
            _ => decimal(negative, text),
        }
    }

    fn plus(self, other: Self) -> Option<Self> {
        const GUARD_BITS: i32 = 60;
        let (high, low) =
            if self.exponent < other.exponent { (other, self) } else { (self, other) };
        let wide = |it: Self| u128::from(it.mantissa) << GUARD_BITS;
        // The lowest guard bit is set if bits were shifted out.
        let distance = (high.exponent - low.exponent) as u32;
        let low_wide = wide(low).checked_shr(distance).unwrap_or(0);
        let lost = low_wide.checked_shl(distance).unwrap_or(0) != wide(low);
        let (high_wide, low_wide) = (wide(high), low_wide | u128::from(lost));
        let exponent = high.exponent - GUARD_BITS;
        let (negative, sum) = match (high.negative == low.negative, high_wide < low_wide) {
            (true, _) => (high.negative, high_wide + low_wide),
            (false, true) => (low.negative, low_wide - high_wide),
            (false, false) => (high.negative, high_wide - low_wide),
        };
        if sum == 0 { Some(Self::ZERO) } else { Self::nearest(negative, sum, exponent) }
    }

    /// Formats the number like `%.17Lf`, without zeros at the end.
    fn write(self) -> String {
        let (whole, fraction) = if self.exponent >= 0 {
            (Natural::shifted(self.mantissa, self.exponent as usize).text(), String::new())
        } else {
            let scale = 10_u128.pow(FRACTION_DIGITS as u32);
            let scaled = shifted(u128::from(self.mantissa) * scale, self.exponent.unsigned_abs());
            ((scaled / scale).to_string(), format!("{:017}", scaled % scale))
        };
        let fraction = fraction.trim_end_matches('0');
        let is_zero = whole == "0" && fraction.is_empty();
        let sign = if self.negative && !is_zero { "-" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{fraction}")
    }
}

/// `number` / 2^`bits`, rounded to the nearest integer, ties to even.
const fn shifted(number: u128, bits: u32) -> u128 {
    if bits >= u128::BITS {
        return 0;
    }
    let (floor, rest, half) = (number >> bits, number & ((1 << bits) - 1), (1 << bits) >> 1);
    let up = bits > 0 && (rest > half || rest == half && floor & 1 == 1);
    if up { floor + 1 } else { floor }
}

/// Parses one or more digits with at most one point. Gives the values of the digits, and how many follow the point.
fn digits(text: &[u8], radix: u32) -> Option<(Vec<u8>, i64)> {
    let point = text.iter().position(|&byte| byte == b'.');
    let behind = point.map_or(0, |point| text.len() - point - 1);
    let digit = |&byte: &u8| char::from(byte).to_digit(radix).map(|digit| digit as u8);
    let others = |(at, _): &(usize, &u8)| Some(*at) != point;
    let digits: Option<Vec<u8>> =
        text.iter().enumerate().filter(others).map(|(_, byte)| digit(byte)).collect();
    digits.filter(|digits| !digits.is_empty()).map(|digits| (digits, behind as i64))
}

/// Splits a text into the part before the exponent's letter, and the exponent.
fn split(text: &[u8], letter: u8) -> Option<(&[u8], i64)> {
    let Some(end) = text.iter().position(|byte| byte.eq_ignore_ascii_case(&letter)) else {
        return Some((text, 0));
    };
    let (negative, digits) = match &text[end + 1..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // All larger exponents have the same result.
    let add = |sum: i64, digit: &u8| (sum * 10 + i64::from(digit - b'0')).min(1 << 40);
    let exponent = digits.iter().fold(0, add);
    Some((&text[..end], if negative { -exponent } else { exponent }))
}

fn decimal(negative: bool, text: &[u8]) -> Option<Extended> {
    let (text, exponent) = split(text, b'e')?;
    let (digits, behind) = digits(text, 10)?;
    let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
    let digits = &digits[zeros..];
    let exponent = exponent - behind;
    let size = digits.len() as i64 + exponent;
    if digits.is_empty() {
        return Some(Extended::ZERO);
    }
    if size.abs() > DECIMAL_END {
        return None;
    }
    let (mut number, mut divisor) = (Natural::default(), Natural::shifted(1, 0));
    digits.iter().for_each(|&digit| number.times_plus(10, digit.into()));
    match exponent {
        0.. => number.times_ten_to(exponent as usize),
        _ => divisor.times_ten_to(exponent.unsigned_abs() as usize),
    }
    let (quotient, exponent) = number.quotient(divisor);
    Extended::nearest(negative, quotient, exponent)
}

fn hexadecimal(negative: bool, text: &[u8]) -> Option<Extended> {
    let (text, exponent) = split(text, b'p')?;
    let (digits, behind) = digits(text, 16)?;
    let mut exponent = exponent - 4 * behind;
    let mut number = 0_u128;
    for digit in digits {
        if number >> 120 == 0 {
            number = number << 4 | u128::from(digit);
        } else {
            number |= u128::from(digit != 0);
            exponent += 4;
        }
    }
    if number == 0 {
        return Some(Extended::ZERO);
    }
    // Numbers beyond these exponents are infinite or 0.
    Extended::nearest(negative, number, exponent.clamp(-100_000, 100_000) as i32)
}

fn is_infinity(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity")
}

/// The sum of two numbers.
///
/// # Errors
/// [`Unsummed`].
pub fn sum(number: &[u8], increment: &[u8]) -> Result<String, Unsummed> {
    // `None` is infinity.
    let read = |text| match is_infinity(text) {
        true => Ok(None),
        false => Extended::parse(text).map(Some).ok_or(Unsummed::NoNumber),
    };
    let (Some(number), Some(increment)) = (read(number)?, read(increment)?) else {
        return Err(Unsummed::Infinite);
    };
    number.plus(increment).map(Extended::write).ok_or(Unsummed::Infinite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_redis() {
        for (a, b, expected) in [
            ("0", "1", "1"),
            ("1", "0.25", "1.25"),
            ("1", "-1.1", "-0.1"),
            ("3.0", "1.0", "4"),
            ("17179869184", "1.5", "17179869185.5"),
            ("17179869184", "17179869184", "34359738368"),
            ("1e2", "-.5", "99.5"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("-5", "5", "0"),
            ("-0.0", "0", "0"),
            ("9.99999999999999999", "0.000000000000000014", "10"),
            ("-0.5", "0.25", "-0.25"),
            ("1000", "-1", "999"),
            ("5.", "1", "6"),
            // Rounding of the x87.
            ("0", "123456789.987654321", "123456789.98765432099753525"),
            ("1e17", "5.0e-3", "100000000000000000.0078125"),
            ("123456789.987654321", "9223372036854775807", "9223372036978232597"),
            ("0", "18446744073709551617", "18446744073709551616"),
            ("0", "1e22", "10000000000000000000000"),
            ("1e-4000", "1e-4940", "0"),
            ("1e300", "-1e300", "0"),
            ("0x10", "0x.8p1", "17"),
            ("0x1.8P-1", "-0X0", "0.75"),
            ("0e99999", "1", "1"),
        ] {
            assert_eq!(sum(a.as_bytes(), b.as_bytes()).as_deref(), Ok(expected), "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            " 1",
            "1 ",
            "abc",
            "1e",
            "1.2.3",
            "--1",
            ".",
            "1\0",
            "nan",
            "1e99999",
            "0x",
            "0x1p",
            "1e5000",
            "1e-5000",
            "0x1p99999",
            "0x1p-99999",
            "0x0e5p-99999",
            "e5",
            "1e+",
        ] {
            assert_eq!(sum(b"1", text.as_bytes()), Err(Unsummed::NoNumber), "{text:?}");
        }
        assert_eq!(sum(b"1", b"+inf"), Err(Unsummed::Infinite));
        assert_eq!(sum(b"inf", b"-Infinity"), Err(Unsummed::Infinite));
        assert_eq!(sum(b"inf", b"no"), Err(Unsummed::NoNumber));
        assert_eq!(sum(b"9e4931", b"9e4931"), Err(Unsummed::Infinite));
    }

    #[test]
    fn the_smallest_and_the_largest_numbers_are_read() {
        let smallest = Extended { negative: false, mantissa: 1, exponent: EXPONENT_MIN };
        assert_eq!(Extended::parse(b"3.7e-4951"), Some(smallest));
        assert_eq!(Extended::parse(b"0x1p-16445"), Some(smallest));
        let largest =
            Extended { negative: true, mantissa: u64::MAX, exponent: EXPONENT_END - MANTISSA_BITS };
        assert_eq!(Extended::parse(b"-1.18973149535723176502e4932"), Some(largest));
        assert_eq!(Extended::parse(b"-1.18973149535723176509e4932"), None);
        assert_eq!(largest.plus(largest), None);
        assert_eq!(largest.plus(smallest), Some(largest));
    }
}
