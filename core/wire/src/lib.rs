//! Encoding and decoding of every protocol that Spillway speaks: bytes in, values out. No I/O.
//!
//! Between hosts that is NVMe over TCP (specifications: NVM Express Base 2.0, TCP Transport 1.0, NVM
//! Command Set 1.0, Key Value Command Set 1.0); within a host the same commands in shared memory.
//! Numbers are little-endian unless something else is said. For whatever speaks nothing else there
//! is NBD.

#![forbid(unsafe_code)]

mod bytes;
mod error;

pub mod auth;
pub mod fabrics;
pub mod identify;
pub mod kv;
pub mod log_page;
pub mod nbd;
pub mod nvme;
pub mod nvme_tcp;
pub mod programs;
pub mod resp;
pub mod ring;

pub use error::Error;
