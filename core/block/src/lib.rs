//! The block device that frontends serve: the trait [`Device`], and ranges of bytes as pages.
//!
//! Frontends serve any [`Device`]: the device over the page store (`core/block-store`) and the borrowed
//! device of lending (`core/fanout`). This crate does not depend on the store, so a frontend that serves
//! only devices does not link it.

#![forbid(unsafe_code)]

mod error;
mod exports;
mod extent;
mod geometry;
mod parts;
mod traits;

pub use error::Error;
pub use exports::{ExportInfo, Exports, NoExports, fresh_uuid};
pub use extent::{Extent, fill_extents};
pub use geometry::{BlockSize, Geometry};
pub use parts::{Part, parts, whole_pages};
pub use traits::{Data, Device, Request};
