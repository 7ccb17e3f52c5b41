//! Keys, ids, sizes and statuses: the words every part of Spillway speaks.
//!
//! Nothing here does I/O or depends on another crate. The vocabulary is that of transcendent
//! memory (tmem): a *client* owns *pools*, a pool holds *objects*, an object holds values under
//! an *index*.

#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod access;
mod pool;
mod program;
mod request;
mod seldom;
mod size;
mod slots;
mod status;

pub use access::{Access, Admitted, Denied, Identity, Limits};
pub use pool::{Lifetime, PoolInfo, PoolSpec, PoolSpecError, Sharing};
pub use program::{Orders, PROGRAM_PAGES_MIN, ProgramCounters, Programs, Registration};
pub use request::{Answer, Request};
pub use seldom::{Seldom, SeldomOfPeers, Whose};
pub use size::{Size, SizeError, parse_size};
pub use slots::{ConnectionSlots, Displaced, Peer, SlotLimits, SlotsFull};
pub use status::{Get, Put, Refusal, Statistics};

/// Bytes of a page, the size of the fast path.
pub const PAGE_BYTES: usize = 4096;
/// Most bytes of one value.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// The id of a client (a VM, container, process or application). A store never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The id of a pool for one client. Each member of a shared pool has an id of its own, so the id also identifies the
/// client. A store never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64);

/// Names a value within a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The object, such as a file or a swap area.
    pub object: u64,
    /// The place within the object, such as a page number.
    pub index: u32,
}

impl Key {
    /// The key of `index` in `object`.
    pub const fn new(object: u64, index: u32) -> Self {
        Self { object, index }
    }
}

/// The number of pages that a value of `bytes` counts as: whole pages, at least one.
pub const fn billed_pages(bytes: usize) -> u64 {
    let pages = bytes.div_ceil(PAGE_BYTES);
    if pages == 0 { 1 } else { pages as u64 }
}
