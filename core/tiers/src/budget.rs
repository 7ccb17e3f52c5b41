//! The budget that bounds the memory of a store.

use crate::sync::{AtomicU64, Ordering};

/// Who takes from a budget. The later ones leave less to the others: without memory for its index a
/// store can hold nothing, and without memory for checksums it can move nothing to a file. That is what
/// frees memory, so checksums may go beyond the cap: by a 64th of it, no less than 128 KiB and no more
/// than 4 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Chunks of frames.
    Frames,
    /// Chunks that packed pages are to lie in: packing goes on when there is no frame any more.
    Packing,
    /// Index entries.
    Index,
    /// What is known about pages in files.
    Files,
}

/// A cap on bytes that several users take from. It may change: what is taken beyond a lower one stays taken.
#[derive(Debug)]
pub struct Budget {
    taken: AtomicU64,
    cap: AtomicU64,
    packing_bytes: u64,
}

impl Budget {
    /// A budget of `cap` bytes.
    pub const fn new(cap: u64) -> Self {
        Self { taken: AtomicU64::new(0), cap: AtomicU64::new(cap), packing_bytes: 0 }
    }

    /// Keeps `bytes` from frames, for [`Use::Packing`].
    pub(crate) const fn keep_for_packing(&mut self, bytes: u64) {
        self.packing_bytes = bytes;
    }

    /// Whether some is kept for packing.
    pub(crate) const fn keeps_for_packing(&self) -> bool {
        self.packing_bytes != 0
    }

    /// Takes `bytes` if they fit.
    #[must_use]
    pub fn take(&self, bytes: u64, to: Use) -> bool {
        let cap = self.cap_for(to);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(bytes).filter(|&sum| sum <= cap)
            })
            .is_ok()
    }

    /// Takes `bytes` whether or not they fit: they are in use already.
    pub(crate) fn charge(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What a user can take, with all that is taken already: some is kept for others.
    fn cap_for(&self, to: Use) -> u64 {
        let cap = self.cap();
        let of_index = (cap / 64).clamp(128 << 10, 4 << 20);
        match to {
            Use::Frames => cap.saturating_sub(of_index + self.packing_bytes),
            Use::Packing => cap.saturating_sub(of_index / 4),
            Use::Index => cap.saturating_sub(32 << 10),
            Use::Files => cap.saturating_add(of_index),
        }
    }

    /// Bytes that a user can still take.
    pub fn left(&self, to: Use) -> u64 {
        self.cap_for(to).saturating_sub(self.taken())
    }

    /// Gives `bytes` back.
    pub fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes taken now.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Most bytes that can be taken.
    pub fn cap(&self) -> u64 {
        self.cap.load(Ordering::Relaxed)
    }

    /// Changes the cap.
    pub fn set_cap(&self, cap: u64) {
        self.cap.store(cap, Ordering::Relaxed);
    }
}
