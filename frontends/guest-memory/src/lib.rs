//! Guest memory that a virtual machine monitor hands over: its userfaultfd, its regions, its memory files.
//!
//! [`steps`] defines the order of the work on a page, without I/O; [`Guest`] executes the steps on the
//! kernel; [`Manager`] is the process that does so. All state that must outlive the manager lies in the
//! shared [`Map`], in the store's memory files and on the blade, so that a successor can continue
//! wherever the manager was killed (docs/adr/0026-guest-memory-outlives-its-manager.md).

mod busy;
mod error;
mod far;
mod guest;
pub mod handshake;
mod inspect;
mod manager;
mod map;
mod receive;
mod regions;
pub mod steps;

pub use error::Error;
pub use far::{Blade, Far};
pub use guest::{Descriptors, Fatal, Guest};
pub use handshake::Handshake;
pub use inspect::{Inspected, check_registered, inspect};
pub use manager::{Ending, Manager, Settings};
pub use map::{Counter, Map, Mark, PageLocation};
pub use receive::{DESCRIPTORS_MAX, Received, receive};
pub use regions::{Claimed, Layout, Region, Run};

/// Most regions of a guest.
pub const REGIONS_MAX: usize = 1024;
