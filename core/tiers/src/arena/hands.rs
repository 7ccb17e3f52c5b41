//! Per-core caches of freed frames, for the next stores on the same core.
//!
//! A page that replaces another allocates a frame and frees one. Frames are scattered over the
//! chunks, so without this cache, cores that overwrite pages contend for each other's lanes and
//! chunks at every second page.

use super::{Arena, CHUNK_FRAMES, LANES};
use crate::apart::expect_page;
use crate::sync::{AtomicU32, Ordering};

/// Number of caches; more cores share them.
pub(super) const HANDS: usize = 64;

/// Frames of a cache.
const HELD: usize = 8;

/// Frames' numbers plus one, or 0.
#[derive(Debug, Default)]
pub(super) struct Hand([AtomicU32; HELD]);

impl Hand {
    /// Adds a frame, if there is space.
    #[inline]
    fn take_up(&self, frame: u32) -> bool {
        let from_nothing = |place: &AtomicU32| {
            let taken_up = |held: u32| (held == 0).then_some(frame + 1);
            place.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken_up).is_ok()
        };
        self.0.iter().any(from_nothing)
    }

    /// Takes a frame, if there is one.
    #[inline]
    fn put_down(&self) -> Option<u32> {
        let held = |place: &&AtomicU32| place.load(Ordering::Relaxed) != 0;
        self.0.iter().filter(held).find_map(|place| place.swap(0, Ordering::AcqRel).checked_sub(1))
    }
}

impl Arena {
    /// Like [`Self::release`]; a freed frame stays in the cache for `lane`'s next store, if the
    /// cache has space.
    #[inline]
    pub fn release_at_hand(&self, lane: usize, frame: u32) {
        if !self.meta(frame).drop_reference() {
            return;
        }
        self.forget_shared(frame);
        // Frames of reserves and spans are not cached.
        let is_common =
            self.chunk(frame / CHUNK_FRAMES).lane.load(Ordering::Relaxed) < LANES as u32;
        if !is_common || !self.hands[lane % HANDS].take_up(frame) {
            self.give_frame(frame);
        }
    }

    /// Prefetches the frame that `lane` takes next from its cache, which was written long ago, while
    /// the caller does something else.
    #[inline]
    pub fn expect_at_hand(&self, lane: usize) {
        let places = self.hands[lane % HANDS].0.0.iter();
        let mut held = places.map(|place| place.load(Ordering::Relaxed));
        if let Some(next) = held.find(|&held| held != 0) {
            expect_page(self.address(next - 1));
        }
    }

    /// A frame from `lane`'s cache.
    #[inline]
    pub(super) fn take_at_hand(&self, lane: usize) -> Option<u32> {
        self.hands[lane % HANDS].put_down()
    }

    /// Empties the caches, so that their chunks can also be returned.
    pub fn empty_hands(&self) {
        for lane in 0..HANDS {
            while let Some(frame) = self.take_at_hand(lane) {
                self.give_frame(frame);
            }
        }
    }

    /// A frame from any core's cache.
    pub(super) fn take_at_any_hand(&self) -> Option<u32> {
        (0..HANDS).find_map(|lane| self.take_at_hand(lane))
    }

    /// How many frames are cached.
    pub(super) fn frames_at_hand(&self) -> u64 {
        let places = self.hands.iter().flat_map(|hand| &hand.0.0);
        places.filter(|place| place.load(Ordering::Relaxed) != 0).count() as u64
    }
}
