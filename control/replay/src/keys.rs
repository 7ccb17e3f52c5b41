//! What a client calls the pages that it puts.

/// The meaning of a client's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// Its pages. A page that is read back is removed from the store, and put again when it leaves.
    #[default]
    Pages,
    /// Pages of a program under `spillway run` whose blade is the store. The copy of a page that is read back stays
    /// while the page is unchanged, unless the store is short of room (docs/adr/0032-clean-copies-below.md).
    Run,
    /// Slots of a swap disk. The store is told when a slot is free, as by Linux's frontswap. A slot that was read back
    /// stays valid until its page is written.
    Frontswap,
    /// Slots of a swap disk. A slot that was read back stays valid until its page is written; then the slot is free.
    /// The store is not told: it notices when the slot is written again or its whole cluster is discarded.
    Slots,
}
