//! The section pool: host memory set aside for guests, in files that QEMU maps.
//!
//! ```text
//! DIR/GUEST/boot      what the guest boots with, reserved in full
//! DIR/GUEST/device    the first virtio-mem device, as long as the device may become; a hole where nothing is reserved
//! DIR/GUEST/device2   further devices
//! DIR/GUEST/counted   memory that comes from elsewhere, counted by the file's length: boot memory, and devices counted1, ...
//! ```
//!
//! DIR lies on hugetlbfs or tmpfs. A section is a range of a device's file. It is reserved (fallocate(2)) before the
//! guest may plug it and punched after the guest let go; both ends are counted against the pool's capacity, by guest:
//!
//! ```text
//!           reserve: counted first, then allocated
//!   free ------------------------------------------> set aside
//!     ^                                                  |  QEMU maps it, the guest plugs it, uses it, unplugs it;
//!     |                                                  |  QEMU punches what was unplugged
//!     +--------------------------------------------------+
//!           settle_device: counted down to what the file still holds
//! ```
//!
//! What is free may be lent ([`Pool::lend`]), and is asked back when a guest needs it: whoever borrows takes as much memory from the
//! host elsewhere. That can only be on tmpfs, where free sections take none.
//!
//! The files are the only record. A pool that is opened again reads their sizes and allocated blocks: how much of a file is
//! allocated, not where. Reservations take the lowest holes, since that is where a guest plugs. What was set aside and not
//! plugged, by an order that was broken off or a daemon that was killed half-way, would lie above a hole as soon as the guest
//! unplugs a section further down; so it is found and given back whenever the guest rests.
//!
//! The crate knows nothing of QEMU's monitor or of who decides on sizes: [`Pool::settle_device`] is told the size.

#![forbid(unsafe_code)]

mod accounts;
mod borrower;
mod counted;
#[cfg(test)]
mod crash;
mod error;
mod file;
mod folder;
mod limits;
mod loan;
mod mount;
mod name;
mod pool;
mod unplugged;

pub use accounts::{DeviceUsage, GuestUsage, Usage};
pub use borrower::Borrower;
pub use error::Error;
pub use limits::{DEVICES_MAX, NAME_BYTES_MAX};
pub use mount::{Backing, UNIT_BYTES};
pub use name::GuestFile;
pub use pool::{Pool, SECTION_BYTES, Settings, Settled};
