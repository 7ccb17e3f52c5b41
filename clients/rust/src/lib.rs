//! One interface to a page store: embedded, over the ring, out of a guest, over NVMe/TCP.
//!
//! ```
//! use spillway_client::{Get, Key, PoolSpec, Put};
//!
//! # fn main() -> Result<(), spillway_client::Error> {
//! let store = spillway_client::open("embed:?capacity=64M")?;
//! let pool = store.open_pool(PoolSpec::PERSISTENT)?;
//! assert_eq!(store.put(pool, Key::new(1, 0), b"a value")?, Put::Stored);
//! let mut value = [0; 16];
//! assert_eq!(store.get(pool, Key::new(1, 0), &mut value)?, Get::Hit(7));
//! assert_eq!(&value[..7], b"a value");
//! # Ok(())
//! # }
//! ```

mod embedded;
mod error;
mod lists;
pub mod nvme_tcp;
mod ring;
mod store;
mod url;

pub use embedded::Embedded;
pub use error::Error;
pub use nvme_tcp::store::NvmeTcp;
pub use ring::{Peer, Ring, RingOptions};
pub use spillway_types::{
    Get, Key, Lifetime, PAGE_BYTES, PoolSpec, Put, Refusal, Sharing, Statistics, VALUE_BYTES_MAX,
};
pub use store::{Operation, Outcome, Pool, PoolInfo, Store};
pub use url::Url;

/// Opens the store that `url` names; see [`Url`] for the kinds.
///
/// # Errors
/// [`Error::Url`] for an invalid URL, and the errors of opening the store.
pub fn open(url: &str) -> Result<Box<dyn Store>, Error> {
    match url.parse()? {
        Url::Embedded { capacity_bytes } => Ok(Box::new(Embedded::open(capacity_bytes)?)),
        Url::Ring { path } => Ok(Box::new(Ring::connect(&path)?)),
        Url::Guest { path, pages } => Ok(Box::new(Ring::connect_from_guest(&path, pages)?)),
        Url::NvmeTcp { tls, host, port, subsystem, options } => {
            Ok(Box::new(NvmeTcp::open(tls, &host, port, subsystem.as_deref(), &options)?))
        }
    }
}

/// Checks that the page's Rust programs compile, and runs those that need no daemon.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clients.md")]
struct Page;
