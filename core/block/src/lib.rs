//! Block devices over the page store: sparse, elastic, reserved in full.
//!
//! A [`BlockDevice`] is a range of bytes kept as 4 KiB pages in a persistent pool of its own. A page
//! that was never written, or was deallocated, takes no memory and reads as zeros. The pool is
//! *reserved* when the device is made: a write within the device is never refused, because a kernel
//! that swaps onto it has nowhere else to go.
//!
//! Frontends serve whatever is a [`Device`]; a `BlockDevice` is one, and so is the device of lending (`core/fanout`).

#![forbid(unsafe_code)]

#[path = "../../block-store/src/device.rs"]
mod device;
mod error;
mod exports;
mod extent;
mod geometry;
mod parts;
#[path = "../../block-store/src/stripes.rs"]
mod stripes;
mod traits;

pub use device::BlockDevice;
pub use error::Error;
pub use exports::{ExportInfo, Exports, fresh_uuid};
pub use extent::{Extent, fill_extents};
pub use geometry::{BlockSize, Geometry};
pub use parts::{Part, parts, whole_pages};
pub use stripes::Stripes;
pub use traits::{Data, Device, Request};
