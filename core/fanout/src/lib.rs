//! The device that a borrower of memory swaps onto: slabs, each with one or two copies on lenders or
//! in a local file.
//!
//! ```text
//!  device      FanOut: a spillway_block::Device. Slabs can move and holders be forgotten under traffic
//!    slabs       which copies each slab has, and which of them are lost
//!    batch       pages that are processed together: locks, seals, results
//!    dispatch    sends the next requests of a batch to all holders at once; next: what a page needs next
//!    change      requests for parts of pages; discards
//!    moving      copies a slab to a new place
//!    behind      which pages a copy has missed; mender: copies them once its holder answers
//!  holder      a loan or the file, and its workers        request: the slots of requests to it
//!    pulse       whether it answers; latency: how fast it is read
//!    lender      the transport that the caller hands in
//!    backup      the local file                           write_back: the buffer in front of it
//!  seal, table AES-256-GCM; tag and version of every page stay here
//!  loss        reports of lost holders to the notifier
//!  counters, settings, error
//! ```
//!
//! The device gives these guarantees:
//!
//! - *Never wrong bytes.* A page is opened with the tag and version that stay here. A page that a
//!   holder forges, mixes up or replays fails authentication: the device asks the other copy, and
//!   gives that holder up.
//! - *Nothing acknowledged is lost with one holder.* A write is acknowledged when all live copies of
//!   its slab have it. The file has it once it is in the write-back buffer, which is read like the
//!   file and lost only with the keys. A copy that fails is marked lost before the write is
//!   acknowledged, and is never read again. One that takes too long is behind for the page, which is
//!   not read from it until it has been copied there.
//! - *A bounded stall.* A read that takes longer than usual is sent to the other copy too. A write has
//!   the time of [`Settings::request_timeout`]. Then the other copy alone serves, for all slabs at
//!   once, and a holder that stays away for [`Settings::stall_max`] is given up. The last copy of a
//!   slab is never given up: requests wait for it for [`Settings::last_copy_wait`], and fail only then.
//! - *A fence.* A place that was replaced or lost is not touched again. [`FanOut::forget`] returns
//!   when no request to it is in flight.
//! - *No allocation on the path of a page* after the start: a kernel that swaps has no memory to
//!   give. All buffers are made, and written once, with the device. The lender's transport is
//!   responsible for its own memory.

#![forbid(unsafe_code)]

mod backup;
mod batch;
mod behind;
mod change;
mod counters;
mod device;
mod dispatch;
mod error;
mod holder;
mod latency;
mod lender;
mod locks;
mod loss;
mod mender;
mod mending;
mod moving;
mod next;
mod page;
mod pulse;
mod request;
mod scratch;
pub mod seal;
mod settings;
mod slabs;
mod table;
mod write_back;

pub use backup::BackupFile;
pub use counters::Counters;
pub use device::FanOut;
pub use error::Error;
pub use holder::Holder;
pub use lender::{BATCH_PAGES, Lender, PageOutcome};
pub use loss::{Cause, Effect, Loss, Report};
pub use page::Page;
pub use settings::{SLAB_BYTES, Settings};
pub use slabs::{SlabLocation, Standing};
