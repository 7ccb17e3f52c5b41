//! The tmem disk: a vhost-user-blk backend for the guests of a host.
//!
//! A guest's write of a page is a put into its client's pool; when the store refuses it, it goes to the
//! disk's backing file. So a stock guest that swaps onto the disk swaps into the store as far as its
//! client's target goes ([`Disk`] has the rules). The virtqueues lie in memory that the guest's QEMU
//! shares; what is read there is copied before it is looked at.

mod backing;
mod chain;
mod config;
mod config_space;
mod connection;
mod counters;
mod demote;
mod disk;
mod error;
mod group;
mod inflight;
mod map;
mod memory;
mod queue;
mod request;
mod server;
mod service;

pub use backing::check;
pub use chain::DescriptorTable;
pub use config::{DiskConfig, Kind};
pub use counters::DiskStatistics;
pub use demote::Demoted;
pub use disk::Disk;
pub use error::Error;
pub use server::Server;
pub use service::Service;

/// Longest disk: its map takes a byte a block, its ages four.
pub const BYTES_MAX: u64 = 1 << 40;
