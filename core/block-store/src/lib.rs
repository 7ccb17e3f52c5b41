//! Block devices over the page store: sparse, elastic, reserved in full.
//!
//! A [`BlockDevice`] is a range of bytes kept as 4 KiB pages in a persistent pool of its own. A page
//! that was never written, or was deallocated, takes no memory and reads as zeros. By default the pool
//! is *reserved*: the store sets memory for all its pages aside when the device is created. It then never
//! refuses a write, because a kernel that swaps onto the device can't put the page elsewhere.

#![forbid(unsafe_code)]

mod device;
mod error;
mod stripes;

pub use device::BlockDevice;
pub use error::Error;
pub use stripes::Stripes;
