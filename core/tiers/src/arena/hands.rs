//! Frames that each core has freed, at hand for what it stores next.
//!
//! A page that replaces another takes a frame and frees one. Frames lie where they may among the
//! chunks, so without this cores that overwrite pages meet at each other's lanes and chunks at every
//! second page.

use super::{Arena, CHUNK_FRAMES, LANES};
use crate::apart::expect_page;
use crate::sync::{AtomicU32, Ordering};

/// Cores beyond this many share hands.
pub(super) const HANDS: usize = 64;

/// Frames that a hand holds.
const HELD: usize = 8;

/// Frames' numbers plus one, or 0.
#[derive(Debug, Default)]
pub(super) struct Hand([AtomicU32; HELD]);

impl Hand {
    /// Takes a frame up, if there is room.
    #[inline]
    fn take_up(&self, frame: u32) -> bool {
        let from_nothing = |place: &AtomicU32| {
            let taken_up = |held: u32| (held == 0).then_some(frame + 1);
            place.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken_up).is_ok()
        };
        self.0.iter().any(from_nothing)
    }

    /// Puts a frame down, if there is one.
    #[inline]
    fn put_down(&self) -> Option<u32> {
        let held = |place: &&AtomicU32| place.load(Ordering::Relaxed) != 0;
        self.0.iter().filter(held).find_map(|place| place.swap(0, Ordering::AcqRel).checked_sub(1))
    }
}

impl Arena {
    /// Like [`Self::release`]; a frame that is free by this stays at hand for the next that `lane`
    /// stores, if its hand has room.
    #[inline]
    pub fn release_at_hand(&self, lane: usize, frame: u32) {
        if !self.meta(frame).drop_reference() {
            return;
        }
        self.forget_shared(frame);
        // Frames of reserves and spans stay what they are.
        let is_common =
            self.chunk(frame / CHUNK_FRAMES).lane.load(Ordering::Relaxed) < LANES as u32;
        if !is_common || !self.hands[lane % HANDS].take_up(frame) {
            self.give_frame(frame);
        }
    }

    /// Fetches the frame that `lane` takes next if it has some at hand, which was written long ago: it
    /// is on its way while the caller does something else.
    #[inline]
    pub fn expect_at_hand(&self, lane: usize) {
        let places = self.hands[lane % HANDS].0.0.iter();
        let mut held = places.map(|place| place.load(Ordering::Relaxed));
        if let Some(next) = held.find(|&held| held != 0) {
            expect_page(self.address(next - 1));
        }
    }

    /// A frame that `lane` has at hand.
    #[inline]
    pub(super) fn take_at_hand(&self, lane: usize) -> Option<u32> {
        self.hands[lane % HANDS].put_down()
    }

    /// Gives back what cores have at hand, so that the chunks can be given back too.
    pub fn empty_hands(&self) {
        for lane in 0..HANDS {
            while let Some(frame) = self.take_at_hand(lane) {
                self.give_frame(frame);
            }
        }
    }

    /// A frame that any core has at hand.
    pub(super) fn take_at_any_hand(&self) -> Option<u32> {
        (0..HANDS).find_map(|lane| self.take_at_hand(lane))
    }

    /// How many frames are at hand.
    pub(super) fn frames_at_hand(&self) -> u64 {
        let places = self.hands.iter().flat_map(|hand| &hand.0.0);
        places.filter(|place| place.load(Ordering::Relaxed) != 0).count() as u64
    }
}
