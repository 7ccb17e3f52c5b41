//! The copies of each slab, and which of them are lost.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use crate::holder::Holder;
use crate::latency::preferred;

/// Copies of a slab.
pub const COPIES: usize = 2;
/// The index of the copy that is being made, after the copies.
pub const TARGET: usize = COPIES;

/// Where a copy of a slab lies.
#[derive(Clone, Debug)]
pub struct SlabLocation {
    /// The holder.
    pub holder: Arc<Holder>,
    /// The number of the slab at the holder.
    pub slab: u32,
}

impl SlabLocation {
    pub(crate) fn is_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.holder, &other.holder)
    }
}

/// The state of a slab's copy.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Where it lies.
    pub place: SlabLocation,
    /// The copy failed, and is not used any more.
    pub is_lost: bool,
    /// Pages whose last write it has missed.
    pub behind_pages: u32,
}

/// A slab. `places[TARGET]` is where a copy is being made.
#[derive(Debug)]
pub struct Slab {
    places: [Option<SlabLocation>; COPIES + 1],
    /// A bit for each place that is not used any more. A thread holds the device's `losing` lock to
    /// set the bit of a copy.
    lost: AtomicU8,
    /// The copy that is read first.
    preferred: AtomicU8,
}

impl Slab {
    pub fn new([first, second]: [Option<SlabLocation>; COPIES]) -> Self {
        Self { places: [first, second, None], lost: AtomicU8::new(0), preferred: AtomicU8::new(0) }
    }

    /// The place of a copy, or of the one being made, if it is in use.
    pub fn live(&self, copy: usize) -> Option<&SlabLocation> {
        self.places[copy].as_ref().filter(|_| self.lost.load(Ordering::Acquire) & 1 << copy == 0)
    }

    /// The place of a copy, in use or not.
    pub fn place(&self, copy: usize) -> Option<&SlabLocation> {
        self.places[copy].as_ref()
    }

    /// The state of a copy that has missed the last writes of so many pages.
    pub fn standing(&self, copy: usize, behind_pages: u32) -> Option<Standing> {
        let place = self.places[copy].clone()?;
        Some(Standing { place, is_lost: self.live(copy).is_none(), behind_pages })
    }

    /// Sets the place of a copy, or none.
    pub fn set(&mut self, copy: usize, place: Option<SlabLocation>) {
        self.places[copy] = place;
        *self.lost.get_mut() &= !(1 << copy);
    }

    /// Removes the place in which a copy was made, and returns it.
    pub fn take_target(&mut self) -> Option<SlabLocation> {
        *self.lost.get_mut() &= !(1 << TARGET);
        self.places[TARGET].take()
    }

    /// Marks a place as not used any more.
    pub fn lose(&self, copy: usize) {
        self.lost.fetch_or(1 << copy, Ordering::AcqRel);
    }

    /// The copies that a change leaves out, a bit each: their holder has stopped answering, and that of another copy has
    /// not.
    pub fn stalled(&self) -> u8 {
        // Each is looked at once: it may change meanwhile.
        let is_stalled: [Option<bool>; COPIES] = core::array::from_fn(|copy| {
            self.live(copy).map(|place| place.holder.pulse().is_stalled())
        });
        let bits = |wanted| {
            let those = (0..COPIES).filter(|copy| is_stalled[*copy] == Some(wanted));
            those.fold(0, |bits, copy| bits | 1 << copy)
        };
        if bits(false) == 0 { 0 } else { bits(true) }
    }

    /// The copy that is read first: the one whose holder answers, else the faster one. A probe is for the other one, so
    /// that its time stays known.
    pub fn first_source(&self, is_probe: bool) -> usize {
        let [Some(first), Some(second)] = [self.live(0), self.live(1)] else { return 0 };
        let pulses = [first.holder.pulse(), second.holder.pulse()];
        let last = usize::from(self.preferred.load(Ordering::Relaxed));
        let better = preferred(last, pulses.map(|pulse| pulse.latency.mean_us()));
        self.preferred.store(better as u8, Ordering::Relaxed);
        let other = 1 - better;
        let is_better_slow = pulses[better].is_slow();
        if is_better_slow != pulses[other].is_slow() {
            return if is_better_slow { other } else { better };
        }
        if is_probe { other } else { better }
    }
}
