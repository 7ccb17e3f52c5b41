//! The tmem disk: a vhost-user-blk backend for the guests of a host.
//!
//! A guest's write of a page becomes a put into its client's pool. If the store refuses the put, the page
//! goes to the disk's backing file. So an unmodified guest that swaps onto the disk swaps into the store, up
//! to its client's target ([`Disk`] has the rules). The virtqueues lie in memory that the guest's QEMU
//! shares; everything read from it is copied before it is checked.

mod ages;
mod attachment;
mod backing;
mod chain;
mod config;
mod config_space;
mod connection;
mod counters;
mod demote;
mod disk;
mod empty;
mod error;
mod group;
mod inflight;
mod map;
mod memory;
mod queue;
mod request;
mod resumed;
mod server;
mod service;
mod slice;

pub use ages::UNREAD_AFTER;
pub use attachment::{GuestState, Occupied};
pub use backing::check;
pub use chain::DescriptorTable;
pub use config::{DiskConfig, Kind};
pub use counters::DiskStatistics;
pub use demote::Demoted;
pub use disk::Disk;
pub use error::Error;
pub use server::Server;
pub use service::Service;

/// Longest disk, bytes. For each block its map takes one byte of memory and its ages four.
pub const BYTES_MAX: u64 = 1 << 40;
