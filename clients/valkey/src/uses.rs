//! How often a value was read recently.

use std::sync::atomic::{AtomicU32, Ordering};

/// Seconds in which a count halves.
const HALF_LIFE_S: u32 = 60;
/// Bits of the count; the rest is the time of the last use.
const COUNT_BITS: u32 = 8;

/// A decaying count and the time of its last increment, in one word. Only the server's thread changes it.
#[derive(Debug, Default)]
pub struct Uses(AtomicU32);

impl Uses {
    /// Counts a use at a time in seconds. Returns the number of recent uses, which halves every minute since the last
    /// one.
    pub fn add(&self, now_s: u32) -> u8 {
        let word = self.0.load(Ordering::Relaxed);
        let now_s = now_s << COUNT_BITS >> COUNT_BITS;
        // The clock is truncated, and may be set back. After a wrap-around an old count is kept in part or not at all.
        let passed_s = now_s.wrapping_sub(word >> COUNT_BITS) << COUNT_BITS >> COUNT_BITS;
        let count = (word & 0xff).checked_shr(passed_s / HALF_LIFE_S).unwrap_or(0);
        let count = (count + 1).min(u32::from(u8::MAX)) as u8;
        self.0.store(now_s << COUNT_BITS | u32::from(count), Ordering::Relaxed);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_count_and_decay() {
        let uses = Uses::default();
        assert_eq!((uses.add(1_000_000), uses.add(1_000_000)), (1, 2));
        assert_eq!(uses.add(1_000_059), 3);
        // The count halves each minute.
        assert_eq!((uses.add(1_000_119), uses.add(1_000_239)), (2, 1));
        for _ in 0..1000 {
            uses.add(1_000_240);
        }
        assert_eq!(uses.add(1_000_240), 255);
        assert_eq!(uses.add(1_100_000), 1);
        assert_eq!(uses.add(5), 1);
    }
}
