//! Numbers as Redis reads and writes them: integers, and decimal fractions for INCRBYFLOAT.

/// Most bytes of a number with a fraction.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Digits behind the point that a result keeps.
const FRACTION_DIGITS: i64 = 17;
/// Most digits before the point: those of the largest x87 number, which Redis uses.
const WHOLE_DIGITS_MAX: i64 = 4932;

/// Why there is no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsummed {
    /// One of them is no number.
    NoNumber,
    /// The sum, or what is added, is infinite.
    Infinite,
}

/// A decimal number: digits, least first, from the one worth 10^`lowest` on.
#[derive(Debug)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    lowest: i64,
}

impl Decimal {
    fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let end = rest.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(rest.len());
        let (mantissa, exponent) = rest.split_at(end);
        let exponent = match exponent {
            [] => 0,
            [_, b'+', digits @ ..] => i64::from(small(digits)?),
            [_, b'-', digits @ ..] => -i64::from(small(digits)?),
            [_, digits @ ..] => i64::from(small(digits)?),
        };
        let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
        let fraction = mantissa.len().saturating_sub(point + 1);
        let mut digits = Vec::with_capacity(mantissa.len());
        for (at, &byte) in mantissa.iter().enumerate().rev() {
            match byte {
                _ if at == point => {}
                b'0'..=b'9' => digits.push(byte - b'0'),
                _ => return None,
            }
        }
        let lowest = exponent - fraction as i64;
        // What is smaller than any digit that is kept, or beyond all bounds, need not be added exactly.
        let fits = lowest >= -2 * TEXT_BYTES_MAX as i64
            && lowest + digits.len() as i64 <= 2 * WHOLE_DIGITS_MAX;
        (!digits.is_empty() && fits).then_some(Self { negative, digits, lowest })
    }

    /// The digits from 10^`lowest` on, in all `count` of them.
    fn aligned(&self, lowest: i64, count: usize) -> Vec<i8> {
        let mut aligned = vec![0; count];
        let shift = (self.lowest - lowest) as usize;
        for (at, &digit) in self.digits.iter().enumerate() {
            aligned[shift + at] = if self.negative { -(digit as i8) } else { digit as i8 };
        }
        aligned
    }

    fn plus(&self, other: &Self) -> Self {
        let lowest = self.lowest.min(other.lowest);
        let highest = |it: &Self| it.lowest + it.digits.len() as i64;
        let count = (highest(self).max(highest(other)) - lowest) as usize + 2;
        let other = other.aligned(lowest, count);
        let mut sum: Vec<i8> =
            self.aligned(lowest, count).iter().zip(other).map(|(a, b)| a + b).collect();
        let negative = sum.iter().rev().find(|&&digit| digit != 0).is_some_and(|&digit| digit < 0);
        if negative {
            sum.iter_mut().for_each(|digit| *digit = -*digit);
        }
        let mut carry = 0;
        let digits = sum.into_iter().map(|digit| {
            let digit = digit + carry;
            carry = digit.div_euclid(10);
            digit.rem_euclid(10) as u8
        });
        Self { negative, digits: digits.collect(), lowest }
    }

    /// Rounds to what is kept behind the point.
    fn rounded(mut self) -> Self {
        let cut = -FRACTION_DIGITS - self.lowest;
        if cut <= 0 {
            return self;
        }
        let cut = cut as usize;
        let up = self.digits.get(cut - 1).is_some_and(|&digit| digit >= 5);
        self.digits.drain(..cut.min(self.digits.len()));
        self.lowest = -FRACTION_DIGITS;
        self.digits.push(0);
        let mut at = 0;
        let mut carry = up;
        while carry {
            self.digits[at] += 1;
            carry = self.digits[at] == 10;
            if carry {
                self.digits[at] = 0;
            }
            at += 1;
        }
        self
    }

    fn write(&self) -> String {
        let digit = |place: i64| {
            let at = usize::try_from(place - self.lowest).ok();
            at.and_then(|at| self.digits.get(at)).copied().unwrap_or(0)
        };
        let highest = (self.lowest + self.digits.len() as i64).max(1);
        let first = (0..highest).rev().find(|&place| digit(place) != 0).unwrap_or(0);
        let last = (self.lowest.min(0)..0).find(|&place| digit(place) != 0);
        let mut text = String::new();
        let is_zero = self.digits.iter().all(|&digit| digit == 0);
        if self.negative && !is_zero {
            text.push('-');
        }
        let character = |place| char::from(b'0' + digit(place));
        text.extend((0..=first).rev().map(character));
        if let Some(last) = last {
            text.push('.');
            text.extend((last..0).rev().map(character));
        }
        text
    }

    fn is_infinite(&self) -> bool {
        let highest = self.digits.iter().rposition(|&digit| digit != 0);
        highest.is_some_and(|at| self.lowest + at as i64 >= WHOLE_DIGITS_MAX)
    }
}

fn small(digits: &[u8]) -> Option<u16> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

fn is_infinity(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity")
}

/// The sum of two decimal numbers, exact to 17 digits behind the point.
///
/// # Errors
/// [`Unsummed`].
pub fn sum(number: &[u8], increment: &[u8]) -> Result<String, Unsummed> {
    if is_infinity(number) || is_infinity(increment) {
        return Err(Unsummed::Infinite);
    }
    let number = Decimal::parse(number).ok_or(Unsummed::NoNumber)?;
    let increment = Decimal::parse(increment).ok_or(Unsummed::NoNumber)?;
    let sum = number.plus(&increment).rounded();
    if sum.is_infinite() { Err(Unsummed::Infinite) } else { Ok(sum.write()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_decimal_numbers() {
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
            ("9.99999999999999999", "0.000000000000000014", "10"),
            ("1.23456789012345678901", "0", "1.23456789012345679"),
            ("-0.5", "0.25", "-0.25"),
            ("1000", "-1", "999"),
            ("5.", "1", "6"),
        ] {
            assert_eq!(sum(a.as_bytes(), b.as_bytes()).as_deref(), Ok(expected), "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", " 1", "1 ", "abc", "1e", "1.2.3", "--1", ".", "1\0", "nan", "1e99999"] {
            assert_eq!(sum(b"1", text.as_bytes()), Err(Unsummed::NoNumber), "{text:?}");
        }
        assert_eq!(sum(b"1", b"+inf"), Err(Unsummed::Infinite));
        assert_eq!(sum(b"9e4931", b"9e4931"), Err(Unsummed::Infinite));
    }
}
