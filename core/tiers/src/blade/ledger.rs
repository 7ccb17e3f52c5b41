//! The ledger of which processes hold which objects on a blade, in memory that all processes of a
//! run share.
//!
//! A process writes to an object of its own. A fork makes the child a holder of all objects of its
//! parent, and from then on neither writes to them. An object can be removed when it has no holder,
//! however the last one ended: the process that finds a killed one releases its objects.

use core::fmt;

use crate::region::Zeroed;
use crate::sync::{AtomicU64, Ordering};

/// Objects that a run can have at the same time.
pub const OBJECTS_MAX: usize = 4096;
/// Processes that can hold objects at the same time. All further processes share the last one, so its
/// objects stay until the end of the run.
pub const HOLDERS_MAX: usize = 1024;

const SHARED_HOLDER: usize = HOLDERS_MAX - 1;
const WORDS: usize = OBJECTS_MAX / u64::BITS as usize;

/// The ledger of a run. All zeros is an empty one, so it can lie in fresh shared memory.
#[repr(C)]
pub struct Ledger {
    /// Objects that were ever made. The next is named by this plus one.
    made: AtomicU64,
    /// The name of the object at each place; 0 is a free place.
    names: [AtomicU64; OBJECTS_MAX],
    /// For each holder a bit for each place.
    held: [[AtomicU64; WORDS]; HOLDERS_MAX],
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for Ledger {}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger of {} objects", self.made.load(Ordering::Relaxed))
    }
}

impl Ledger {
    /// Creates an object for `holder`; returns its place, and its name, which is unique in the run.
    /// `None` if all places are taken.
    pub fn make(&self, holder: usize) -> Option<(u16, u64)> {
        let name = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let place = self.names.iter().position(|taken| {
            let free = |taken| (taken == 0).then_some(name);
            taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).is_ok()
        })?;
        self.word(holder, place)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |bits| Some(bits | bit(place)))
            .ok()?;
        Some((place as u16, name))
    }

    /// Makes `successor` a holder of all objects of `holder`.
    pub fn share(&self, holder: usize, successor: usize) {
        for (from, to) in self.held[holder].iter().zip(&self.held[successor]) {
            let bits = from.load(Ordering::Acquire);
            let _ = to.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| Some(held | bits));
        }
    }

    /// Whether only `holder` holds the object.
    pub fn is_sole(&self, holder: usize, place: u16) -> bool {
        let place = usize::from(place);
        holder != SHARED_HOLDER
            && !(0..HOLDERS_MAX).any(|other| {
                other != holder && self.word(other, place).load(Ordering::Acquire) & bit(place) != 0
            })
    }

    /// Releases an object of `holder`. Returns its name if it has no holder any more: the caller
    /// flushes it on the blade. Two concurrent releases may both get the name.
    pub fn let_go(&self, holder: usize, place: u16) -> Option<u64> {
        if holder == SHARED_HOLDER {
            return None;
        }
        let at = usize::from(place);
        let name = self.names[at].load(Ordering::Acquire);
        let clear = |bits: u64| Some(bits & !bit(at));
        let _ = self.word(holder, at).fetch_update(Ordering::AcqRel, Ordering::Relaxed, clear);
        if name == 0 || !self.is_sole(HOLDERS_MAX, place) {
            return None;
        }
        let free = |now: u64| (now == name).then_some(0);
        self.names[at].fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()
    }

    /// Releases all objects of `holder`. Reports the name of each object without a holder.
    pub fn release(&self, holder: usize, mut unheld: impl FnMut(u64)) {
        for word in 0..WORDS {
            let mut bits = self.held[holder][word].load(Ordering::Acquire);
            while bits != 0 {
                let place = word * u64::BITS as usize + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(name) = self.let_go(holder, place as u16) {
                    unheld(name);
                }
            }
        }
    }

    fn word(&self, holder: usize, place: usize) -> &AtomicU64 {
        &self.held[holder][place / u64::BITS as usize]
    }
}

const fn bit(place: usize) -> u64 {
    1 << (place % u64::BITS as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Box<Ledger> {
        // SAFETY: zeros are an empty ledger.
        unsafe { Box::<Ledger>::new_zeroed().assume_init() }
    }

    #[test]
    fn a_ledger_is_no_longer_than_its_names_and_bits() {
        let bits_bytes = HOLDERS_MAX * OBJECTS_MAX / u8::BITS as usize;
        assert_eq!(size_of::<Ledger>(), (1 + OBJECTS_MAX) * size_of::<u64>() + bits_bytes);
    }

    #[test]
    fn the_last_holder_is_told_the_name() {
        let ledger = ledger();
        let (place, name) = ledger.make(3).unwrap();
        assert!(ledger.is_sole(3, place));
        ledger.share(3, 9);
        assert!(!ledger.is_sole(3, place));
        assert_eq!(ledger.let_go(3, place), None);
        assert!(ledger.is_sole(9, place));
        assert_eq!(ledger.let_go(9, place), Some(name));
        assert_eq!(ledger.let_go(9, place), None);
    }

    #[test]
    fn names_are_never_used_twice_and_places_are() {
        let ledger = ledger();
        let (first, old) = ledger.make(0).unwrap();
        ledger.let_go(0, first).unwrap();
        let (second, new) = ledger.make(0).unwrap();
        assert_eq!(first, second);
        assert_ne!(old, new);
        for _ in 1..OBJECTS_MAX {
            ledger.make(1).unwrap();
        }
        assert_eq!(ledger.make(1), None);
    }

    #[test]
    fn what_a_dead_process_held_alone_is_named_and_what_others_hold_is_not() {
        let ledger = ledger();
        let (_, shared) = ledger.make(0).unwrap();
        ledger.share(0, 1);
        let (_, own) = ledger.make(1).unwrap();
        let mut gone = Vec::new();
        ledger.release(1, |name| gone.push(name));
        assert_eq!(gone, [own]);
        ledger.release(0, |name| gone.push(name));
        assert_eq!(gone, [own, shared]);
    }
}
