//! Lines of the log that others can cause as often as they like.

/// Lets one line through in each second, and counts the others.
#[derive(Debug, Default)]
pub struct Seldom {
    /// None before the first line.
    next_ms: Option<u64>,
    left_out: u64,
}

impl Seldom {
    /// Time between two lines, ms.
    pub const INTERVAL_MS: u64 = 1000;

    /// Whether a line may be written now: then how many were left out since the last one.
    pub fn line(&mut self, now_ms: u64) -> Option<u64> {
        if self.next_ms.is_some_and(|next| now_ms < next) {
            self.left_out += 1;
            return None;
        }
        self.next_ms = Some(now_ms.saturating_add(Self::INTERVAL_MS));
        Some(core::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_says_how_many_are_missing() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.line(5000), Some(0));
        for at in 5000..5999 {
            assert_eq!(seldom.line(at), None);
        }
        assert_eq!(seldom.line(6000), Some(999));
        assert_eq!(seldom.line(6999), None);
        assert_eq!(seldom.line(9000), Some(1));
        assert_eq!(seldom.line(20_000), Some(0));
    }
}
