//! The section pool: host memory reserved for guests, in files that QEMU maps.
//!
//! ```text
//! DIR/GUEST/boot      the guest's boot memory, reserved in full
//! DIR/GUEST/device    the first virtio-mem device, as long as the device may become; a hole where nothing is reserved
//! DIR/GUEST/device2   further devices
//! DIR/GUEST/counted   memory that comes from elsewhere, counted by the file's length: boot memory, and devices counted1, ...
//! ```
//!
//! DIR lies on hugetlbfs or tmpfs. A section is a range of a device's file. It is reserved (fallocate(2)) before the
//! guest may plug it and punched after the guest has unplugged it. Both steps are counted against the pool's
//! capacity, by guest:
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
//! Free sections may be lent ([`Pool::lend`]), and are recalled when a guest needs them: the borrower takes that much
//! host memory elsewhere. This is possible only on tmpfs, where free sections take no memory.
//!
//! The files are the only record. A pool that is opened again reads their sizes and allocated blocks: how much of a
//! file is allocated, not where. Reservations take the lowest holes, because a guest plugs there. Memory that was
//! reserved but not plugged, by an interrupted order or a killed daemon, would lie above a hole once the guest unplugs
//! a lower section. So it is found and released whenever the guest rests.
//!
//! The crate does not know QEMU's monitor, nor which component decides on sizes: the caller passes the size to
//! [`Pool::settle_device`].

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
