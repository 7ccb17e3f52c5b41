//! Block devices over the page store: sparse, elastic, reserved in full.
//!
//! A [`BlockDevice`] is a range of bytes kept as 4 KiB pages in a persistent pool of its own. A page
//! that was never written, or was deallocated, takes no memory and reads as zeros. The pool is
//! *reserved* when the device is made: a write within the device is never refused, because a kernel
//! that swaps onto it has nowhere else to go.

#![forbid(unsafe_code)]

mod device;
mod error;
mod stripes;

pub use device::BlockDevice;
pub use error::Error;
pub use stripes::Stripes;
