//! A frame that each core has freed, at hand for what it stores next.
//!
//! A page that replaces another takes a frame and frees one. Frames lie where they may among the
//! chunks, so without this cores that overwrite pages meet at each other's lanes and chunks at every
//! second page.

use super::{Arena, CHUNK_FRAMES, LANES};
use crate::sync::{AtomicU32, Ordering};

/// Cores beyond this many share hands.
pub(super) const HANDS: usize = 64;

/// A frame's number plus one, or 0.
pub(super) type Hand = AtomicU32;

impl Arena {
    /// Like [`Self::release`]; a frame that is free by this stays at hand for the next that `lane`
    /// stores, if its hand is empty.
    #[inline]
    pub fn release_at_hand(&self, lane: usize, frame: u32) {
        if !self.meta(frame).drop_reference() {
            return;
        }
        self.forget_shared(frame);
        // Frames of reserves and spans stay what they are.
        let is_common =
            self.chunk(frame / CHUNK_FRAMES).lane.load(Ordering::Relaxed) < LANES as u32;
        let hand = &self.hands[lane % HANDS];
        let was_empty = |held: u32| (held == 0).then_some(frame + 1);
        if !is_common || hand.fetch_update(Ordering::AcqRel, Ordering::Relaxed, was_empty).is_err()
        {
            self.give_frame(frame);
        }
    }

    /// The frame that `lane` has at hand.
    #[inline]
    pub(super) fn take_at_hand(&self, lane: usize) -> Option<u32> {
        let hand = &self.hands[lane % HANDS];
        if hand.load(Ordering::Relaxed) == 0 {
            return None;
        }
        hand.swap(0, Ordering::AcqRel).checked_sub(1)
    }

    /// Gives back what cores have at hand, so that the chunks can be given back too.
    pub fn empty_hands(&self) {
        for frame in (0..HANDS).filter_map(|lane| self.take_at_hand(lane)) {
            self.give_frame(frame);
        }
    }

    /// A frame that any core has at hand.
    pub(super) fn take_at_any_hand(&self) -> Option<u32> {
        (0..HANDS).find_map(|lane| self.take_at_hand(lane))
    }

    /// How many frames are at hand.
    pub(super) fn frames_at_hand(&self) -> u64 {
        let held = |hand: &&crate::Apart<Hand>| hand.load(Ordering::Relaxed) != 0;
        self.hands.iter().filter(held).count() as u64
    }
}
