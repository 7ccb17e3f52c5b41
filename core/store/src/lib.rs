//! The page store: clients, pools, objects, indexes.
//!
//! A [`Store`] is shared by reference between any number of tasks. Its index is divided into
//! shards, each with a lock that is never held during a copy of a value: a reader pins the frame
//! under the lock and copies afterwards; a writer fills a private frame and then publishes it. So
//! every operation on a handle takes effect at one instant under its shard's lock.

mod batch;
mod blade;
mod capacity;
mod chains;
mod client;
mod config;
mod demote;
mod disk;
mod error;
mod evict;
mod file_tier;
mod flush;
mod flushed;
mod get;
mod index;
mod list;
mod listing;
mod long;
mod look;
mod migrate;
mod pack;
mod pool;
mod pools;
mod position;
mod put;
mod reopen;
mod reserved;
mod reuse;
mod samplers;
mod scan;
mod scratch;
mod shard;
mod sharing;
mod slot;
mod store;
mod tables;

pub use client::ClientInfo;
pub use config::{ClientConfig, Config, Dedup, DiskConfig};
pub use error::Error;
pub use flushed::Flushed;
pub use get::{PageRef, Shown, Tier, Value};
pub use long::{Begun, Found, LongGet, LongPut};
pub use put::Filled;
pub use reopen::Kept;
pub use scan::SharedMemory;
pub use scratch::{Packer, Scratch};
pub use spillway_reuse::Curve;
pub use spillway_tiers::{Backing, DiskCounters, DiskError, DiskTrouble, PageBuf};
pub use spillway_types::{
    Answer, ClientId, Get, Key, Lifetime, PAGE_BYTES, PoolId, PoolInfo, PoolSpec, PoolSpecError,
    Put, Refusal, Request, Sharing, Statistics, VALUE_BYTES_MAX,
};
pub use store::Store;
