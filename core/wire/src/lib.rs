//! Encoding and decoding of Spillway's protocols: bytes in, values out. No I/O.
//!
//! Between hosts the protocol is NVMe over TCP. Within a host the same commands go through a ring in shared memory.
//! Clients without NVMe use NBD or RESP. Supervisors of paged programs have messages of their own. Numbers are
//! little-endian, except where a module says otherwise.
//!
//! Each structure of NVMe is a `repr(C)` type with the layout of the structure. Its fields have the specification's
//! names. Target and client encode and decode through it. Its comment gives the section and the figure: *Base 2.1* is
//! the NVM Express Base Specification, revision 2.1 (the parts used here are the same in revision 2.0), *TCP 1.0* the
//! TCP Transport Specification, *NVM Command Set 1.0* and *Key Value Command Set 1.0* those of the command sets.

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
