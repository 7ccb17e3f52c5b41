//! What a block device is to those who serve one: the trait [`Device`], and ranges of bytes as pages.
//!
//! Frontends serve whatever is a [`Device`]. The device over the page store is one
//! (`core/block-store`), and so is the device of lending (`core/fanout`). This crate knows no store,
//! so a frontend that serves devices alone links none.

#![forbid(unsafe_code)]

mod error;
mod exports;
mod extent;
mod geometry;
mod parts;
mod traits;

pub use error::Error;
pub use exports::{ExportInfo, Exports, fresh_uuid};
pub use extent::{Extent, fill_extents};
pub use geometry::{BlockSize, Geometry};
pub use parts::{Part, parts, whole_pages};
pub use traits::{Data, Device, Request};
