//! The device that a borrower of memory swaps onto: slabs, each with one or two copies on lenders or in a local file.
//!
//! ```text
//!  device    FanOut: a spillway_block::Device. Slabs may be moved and holders forgotten under traffic
//!    slabs     which copies of a slab there are, and which of them are lost
//!    round     a group of pages carried out together: locks, seals, conclusions
//!    wave      carries to all holders at once what a round needs next
//!    change    what a request needs besides whole pages; discards
//!    moving    copies a slab to a new place
//!  holder    a loan or the file: threads that carry lots of pages there    lot: their buffers
//!    lender    the transport that the caller hands in    backup: the file    behind: its pages on their way
//!  seal, table   AES-256-GCM; tag and version of every page stay here
//!  loss, counters, settings, error
//! ```
//!
//! What is promised, and what makes it so:
//!
//! - *Never wrong bytes.* A page is opened with the tag and version that stay here, so what a holder forges, mixes up or
//!   replays fails authentication; the other copy is asked, and that holder is not used any more.
//! - *Nothing acknowledged is lost with one holder.* A write is acknowledged when all live copies of its slab have it; the
//!   file has it when it is in the buffer that is written behind, which is read like the file and lost only with the keys. A
//!   copy that fails or takes too long is marked lost before the write is acknowledged, and never read again.
//! - *A bounded stall.* A holder has the time of [`Settings::request_timeout`]; then the other copy alone serves, for all
//!   slabs at once. The last copy of a slab is never given up: it fails requests, and may come back.
//! - *A fence.* A place that was replaced or lost is not touched again; [`FanOut::forget`] returns when nothing is on its
//!   way there any more.
//! - *No allocation on the way of a page* after the start: a kernel that swaps has no memory to give. All buffers are made,
//!   and written once, with the device; what a lender's transport needs is its own affair.

mod backup;
mod behind;
mod change;
mod counters;
mod device;
mod error;
mod holder;
mod lender;
mod locks;
mod loss;
mod lot;
mod moving;
mod page;
mod round;
mod scratch;
pub mod seal;
mod settings;
mod slabs;
mod table;
mod wave;

pub use backup::BackupFile;
pub use counters::Counters;
pub use device::FanOut;
pub use error::Error;
pub use holder::Holder;
pub use lender::{BATCH_PAGES, Carried, Lender};
pub use loss::{Cause, Loss};
pub use page::Page;
pub use settings::{SLAB_BYTES, Settings};
pub use slabs::{Place, Standing};
