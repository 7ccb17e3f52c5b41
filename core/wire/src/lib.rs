//! Encoding and decoding of every protocol that Spillway speaks: bytes in, values out. No I/O.
//!
//! Between hosts that is NVMe over TCP; within a host the same commands in shared memory. For
//! clients without NVMe there is NBD. Numbers are little-endian, except where a module says otherwise.
//!
//! Each structure of NVMe is a `repr(C)` type whose fields have the specification's names and whose
//! bytes are the structure's. Target and client encode and decode through it. Its comment gives the
//! section and the figure: *Base 2.1* is the NVM Express Base Specification, revision 2.1 (what is used
//! of it is the same in revision 2.0), *TCP 1.0* the TCP Transport Specification, *NVM Command Set 1.0*
//! and *Key Value Command Set 1.0* those of the command sets.

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
