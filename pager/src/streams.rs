//! Detects walks through memory, so that pages are brought in ahead of them.
//!
//! It tracks sixteen walks, each by its last page and stride. A fault at the expected next page of
//! a walk doubles the prefetch distance, up to [`MOST_AHEAD`] pages; a fault near the last page of
//! a walk gives it a new stride; any other replaces the oldest walk.

use spillway_platform::lock::Lock;

/// Most pages brought in by one fault, the faulting page included.
pub const MOST_AHEAD: usize = 32;
const WALKS: usize = 16;
/// Strides longer than this are not followed, pages.
const LONGEST_STRIDE: i64 = 64;
/// A stride other than +1 is confirmed after this many steps.
const STEPS_TO_BELIEVE: u8 = 2;

#[derive(Clone, Copy)]
struct Walk {
    last: i64,
    stride: i64,
    ahead: u16,
    steps: u8,
}

/// What to bring in: `count` pages from the faulting one on, `stride` pages apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Pages, the faulting one included; at least 1.
    pub count: usize,
    /// Distance between them, pages; never 0.
    pub stride: i64,
}

/// The walks under way.
pub struct Streams {
    walks: Lock<Walks>,
}

struct Walks {
    list: [Walk; WALKS],
    oldest: usize,
}

impl Streams {
    /// No walks.
    #[must_use]
    pub fn new() -> Self {
        let far = Walk { last: i64::MIN / 2, stride: 1, ahead: 1, steps: 0 };
        Self { walks: Lock::new(Walks { list: [far; WALKS], oldest: 0 }) }
    }

    /// A fault on this page number: how far ahead to serve it.
    pub fn fault(&self, page: usize) -> Ahead {
        self.walks.lock().fault(page as i64)
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Walks {
    fn fault(&mut self, page: i64) -> Ahead {
        if let Some(walk) = self.list.iter_mut().find(|w| w.last + w.stride == page) {
            walk.steps = walk.steps.saturating_add(1);
            if walk.stride == 1 || walk.steps >= STEPS_TO_BELIEVE {
                walk.ahead = (walk.ahead * 2).min(MOST_AHEAD as u16);
            }
            let count = usize::from(walk.ahead);
            walk.last = page + walk.stride * (count as i64 - 1);
            return Ahead { count, stride: walk.stride };
        }
        let near = |w: &&mut Walk| w.last != page && (page - w.last).abs() <= LONGEST_STRIDE;
        if let Some(walk) = self.list.iter_mut().find(near) {
            *walk = Walk { last: page, stride: page - walk.last, ahead: 1, steps: 0 };
        } else {
            self.list[self.oldest] = Walk { last: page, stride: 1, ahead: 1, steps: 0 };
            self.oldest = (self.oldest + 1) % WALKS;
        }
        Ahead { count: 1, stride: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(pages: impl Iterator<Item = usize>) -> Vec<Ahead> {
        let streams = Streams::new();
        let mut served = std::collections::HashSet::new();
        let mut answers = Vec::new();
        for page in pages {
            if served.contains(&page) {
                continue;
            }
            let ahead = streams.fault(page);
            for k in 0..ahead.count as i64 {
                served.insert((page as i64 + k * ahead.stride) as usize);
            }
            answers.push(ahead);
        }
        answers
    }

    #[test]
    fn a_sequential_walk_is_served_ever_further_ahead() {
        let counts: Vec<_> = walk(1000..1100).iter().map(|a| a.count).collect();
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 32, 32]);
    }

    #[test]
    fn a_backward_and_a_strided_walk_are_followed() {
        assert!(walk((0..200).rev()).iter().any(|a| a.stride == -1 && a.count == MOST_AHEAD));
        assert!(walk((0..4000).step_by(7)).iter().any(|a| a.stride == 7 && a.count == MOST_AHEAD));
    }

    #[test]
    fn two_walks_do_not_disturb_each_other() {
        let both = (0..500).flat_map(|k| [10_000 + k, 90_000 + k]);
        assert!(walk(both).iter().filter(|a| a.count == MOST_AHEAD).count() > 20);
    }

    #[test]
    fn jumps_bring_nothing_ahead() {
        assert!(walk((0..300).map(|k| k * 7919 % 100_003)).iter().all(|a| a.count == 1));
    }
}
