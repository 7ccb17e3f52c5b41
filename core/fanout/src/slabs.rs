//! The copies of each slab, and which of them are lost.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use crate::holder::Holder;

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
}

/// A slab. `places[TARGET]` is where a copy is being made.
#[derive(Debug)]
pub struct Slab {
    places: [Option<SlabLocation>; COPIES + 1],
    /// A bit for each place that is not used any more. A thread holds the device's `losing` lock to
    /// set the bit of a copy.
    lost: AtomicU8,
}

impl Slab {
    pub fn new([first, second]: [Option<SlabLocation>; COPIES]) -> Self {
        Self { places: [first, second, None], lost: AtomicU8::new(0) }
    }

    /// The place of a copy, or of the one being made, if it is in use.
    pub fn live(&self, copy: usize) -> Option<&SlabLocation> {
        self.places[copy].as_ref().filter(|_| self.lost.load(Ordering::Acquire) & 1 << copy == 0)
    }

    /// The place of a copy, in use or not.
    pub fn place(&self, copy: usize) -> Option<&SlabLocation> {
        self.places[copy].as_ref()
    }

    /// The state of a copy.
    pub fn standing(&self, copy: usize) -> Option<Standing> {
        let place = self.places[copy].clone()?;
        Some(Standing { place, is_lost: self.live(copy).is_none() })
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

    /// Whether a copy besides `copy` is in use.
    pub fn has_other(&self, copy: usize) -> bool {
        (0..COPIES).any(|other| other != copy && self.live(other).is_some())
    }
}
