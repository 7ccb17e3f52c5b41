//! libvirt's RPC over its Unix socket: the few calls that resizing a domain needs.
//!
//! ```text
//!  AUTH_LIST, AUTH_POLKIT   authenticates
//!  CONNECT_OPEN             opens qemu:///system, or qemu:///session for a libvirtd of an ordinary user
//!  DOMAIN_LOOKUP_BY_NAME    finds the domain
//!  DOMAIN_GET_XML_DESC      reads its virtio-mem devices and their sizes, as `virsh dumpxml` does
//!  DOMAIN_UPDATE_DEVICE     sets a requested size, as `virsh update-memory-device` does
//! ```
//!
//! QEMU's monitor belongs to libvirt: this crate never connects to it. Every call has a deadline and every buffer a
//! limit. The crate does not decide on sizes.

#![forbid(unsafe_code)]

mod client;
mod description;
mod error;
mod wire;

pub use client::{Connection, DomainHandle, SOCKETS, usual_socket};
pub use description::{Description, MemoryDevice};
pub use error::Error;
pub use wire::MESSAGE_BYTES_MAX;
