//! libvirt's RPC over its Unix socket: the few calls that resizing a domain needs.
//!
//! ```text
//!  AUTH_LIST, AUTH_POLKIT   who may come in
//!  CONNECT_OPEN             qemu:///system, or qemu:///session for a libvirtd of an ordinary user
//!  DOMAIN_LOOKUP_BY_NAME    the domain
//!  DOMAIN_GET_XML_DESC      its virtio-mem devices, and what each has: what `virsh dumpxml` prints
//!  DOMAIN_UPDATE_DEVICE     another requested size: what `virsh update-memory-device` does
//! ```
//!
//! QEMU's monitor belongs to libvirt and is never touched. Every call has a deadline, every buffer a limit. The crate
//! does not know who decides on sizes.

#![forbid(unsafe_code)]

mod client;
mod description;
mod error;
mod wire;

pub use client::{Connection, DomainHandle, SOCKETS, usual_socket};
pub use description::{Description, MemoryDevice};
pub use error::Error;
pub use wire::MESSAGE_BYTES_MAX;
