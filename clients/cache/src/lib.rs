//! A cache over a page store: values of up to 1 GiB under byte-string keys, many in one call.
//!
//! The store's keys have 96 bits. Here a key's 64-bit hash names an object of the store, and the object's entry 0 is a
//! [`Record`] with the whole key. Gets compare it, so two keys with the same hash never return each other's bytes. A
//! short value lies in the record, a longer one in up to 64 parts beside it (docs/adr/0029-keys-of-bytes.md).
//!
//! ```
//! use spillway_cache::{Cache, Get, Options, Put};
//!
//! # fn main() -> Result<(), spillway_cache::Error> {
//! let cache = Cache::open("embed:?capacity=64M", &Options::default())?;
//! assert_eq!(cache.put(&[Put { key: b"key", value: b"a value" }])[0].as_ref().ok(), Some(&true));
//! let mut value = [0; 16];
//! let mut gets = [Get { key: b"key", room: &mut value }];
//! assert_eq!(cache.get(&mut gets)[0].as_ref().ok(), Some(&Some(7)));
//! assert_eq!(&value[..7], b"a value");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod batches;
mod cache;
mod error;
mod get;
mod pool;
mod put;
mod record;

pub use batches::{Batches, Completion, Kind, Memory, Settings};
pub use cache::{Cache, Options};
pub use error::Error;
pub use get::{Found, Get};
pub use put::Put;
pub use record::{Body, KEY_BYTES_MAX, Malformed, Record, VALUE_BYTES_MAX};
pub use spillway_client::Statistics;
