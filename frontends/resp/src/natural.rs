//! Natural numbers of any length, with the operations that reading and writing decimal fractions needs.

use std::cmp::Ordering;

/// The number of decimal digits that fit a limb.
const DIGITS: usize = 9;
const TEN_TO_DIGITS: u32 = 1_000_000_000;

/// A natural number: 32-bit limbs, least significant first, without zeros at the end.
#[derive(Clone, Debug, Default)]
pub struct Natural(Vec<u32>);

impl Natural {
    /// `number` * 2^`bits`.
    pub fn shifted(number: u64, bits: usize) -> Self {
        let mut natural = Self(vec![number as u32, (number >> 32) as u32]);
        natural.trim();
        natural.shift(bits);
        natural
    }

    /// Multiplies by `factor`, and adds `added`.
    pub fn times_plus(&mut self, factor: u32, added: u32) {
        let mut carry = u64::from(added);
        for limb in &mut self.0 {
            carry += u64::from(*limb) * u64::from(factor);
            *limb = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    /// Multiplies by 10^`exponent`.
    pub fn times_ten_to(&mut self, exponent: usize) {
        (0..exponent / DIGITS).for_each(|_| self.times_plus(TEN_TO_DIGITS, 0));
        self.times_plus(10_u32.pow((exponent % DIGITS) as u32), 0);
    }

    /// The number of bits without leading zeros.
    pub fn bits(&self) -> usize {
        self.0.last().map_or(0, |last| self.0.len() * 32 - last.leading_zeros() as usize)
    }

    /// Multiplies by 2^`bits`.
    pub fn shift(&mut self, bits: usize) {
        if self.0.is_empty() {
            return;
        }
        self.times_plus(1 << (bits % 32), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, bits / 32));
    }

    /// Subtracts `other` if it is not larger than `self`. True if it subtracted.
    fn take(&mut self, other: &Self) -> bool {
        if self.compare(other) == Ordering::Less {
            return false;
        }
        let mut borrow = 0;
        for (at, limb) in self.0.iter_mut().enumerate() {
            let taken = u64::from(other.0.get(at).copied().unwrap_or(0)) + borrow;
            let left = u64::from(*limb).wrapping_sub(taken);
            *limb = left as u32;
            borrow = u64::from(left >> 32 != 0);
        }
        self.trim();
        true
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn trim(&mut self) {
        let zeros = self.0.iter().rev().take_while(|&&limb| limb == 0).count();
        self.0.truncate(self.0.len() - zeros);
    }

    /// The quotient and exponent with `self` / `divisor` = quotient * 2^exponent. The quotient has at least 100 bits.
    /// Its last bit is also set if there is a remainder. Neither number is zero.
    pub fn quotient(mut self, mut divisor: Self) -> (u128, i32) {
        const STEPS: usize = 102;
        let exponent = self.bits() as i32 - divisor.bits() as i32 - STEPS as i32;
        // The highest bits of both are at the same position then.
        match exponent + STEPS as i32 {
            longer @ 0.. => divisor.shift(longer as usize),
            shorter => self.shift(shorter.unsigned_abs() as usize),
        }
        let mut quotient = 0;
        for _ in 0..=STEPS {
            quotient = quotient << 1 | u128::from(self.take(&divisor));
            self.shift(1);
        }
        (quotient | u128::from(!self.0.is_empty()), exponent)
    }

    /// The number in decimal digits.
    pub fn text(mut self) -> String {
        let mut parts = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0;
            for limb in self.0.iter_mut().rev() {
                let number = rest << 32 | u64::from(*limb);
                *limb = (number / u64::from(TEN_TO_DIGITS)) as u32;
                rest = number % u64::from(TEN_TO_DIGITS);
            }
            self.trim();
            parts.push(rest);
        }
        let mut text = parts.pop().unwrap_or(0).to_string();
        parts.iter().rev().for_each(|part| text.push_str(&format!("{part:09}")));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn natural(text: &str) -> Natural {
        let mut natural = Natural::default();
        text.bytes().for_each(|byte| natural.times_plus(10, (byte - b'0').into()));
        natural
    }

    #[test]
    fn numbers_are_read_and_written() {
        for text in ["0", "1", "999999999", "1000000000", "340282366920938463463374607431768211456"]
        {
            assert_eq!(natural(text).text(), text);
        }
        assert_eq!(Natural::shifted(3, 70).text(), "3541774862152233910272");
        let mut ten = natural("1");
        ten.times_ten_to(20);
        assert_eq!((ten.bits(), ten.text()), (67, format!("1{}", "0".repeat(20))));
    }

    #[test]
    fn quotients_are_exact_to_their_last_bit() {
        let (quotient, exponent) = natural("1").quotient(natural("3"));
        // Binary 0.010101...
        assert_eq!(quotient >> 4, (1_u128 << (-exponent - 4)) / 3);
        assert_eq!(quotient & 1, 1);
        for (a, b) in [("7000", "7"), ("1", "1024"), ("123456789012345678901234567890", "1")] {
            let (quotient, exponent) = natural(a).quotient(natural(b));
            let value = quotient as f64 * f64::from(exponent).exp2();
            let expected = a.parse::<f64>().unwrap() / b.parse::<f64>().unwrap();
            assert!((value / expected - 1.0).abs() < 1e-15, "{a} / {b}");
        }
    }
}
