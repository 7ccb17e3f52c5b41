//! Turns page faults into store requests.
//!
//! The path of a page: a fault arrives (`handler`, or the SIGBUS handler of the in-thread mode),
//! [`fault`] looks the page up in the [`table`] and brings it in from the store; `evict` chooses
//! victims and moves them to `staging`, `retire` from there to the store. `program` handles the
//! calls of the program's threads, `dropped` what they drop by advice, `change` their changes of
//! mappings, and `fork` forks; [`tree`] is the state that all processes of a run share; `far` uses
//! the blade; `start` starts the tasks, `main_task` and `watcher` end them, and `broken` does if
//! nothing else is safe.
//!
//! All of this runs inside a foreign program, much of it on tasks unknown to the C library: no
//! thread-local storage, no locks of the standard library, and system calls through rustix.

mod batched_counters;
mod broken;
mod buffers;
mod change;
mod choice;
mod costs;
mod crowding;
mod dropped;
mod error;
mod event_lock;
mod evict;
mod evicting;
mod far;
pub mod fault;
mod fork;
mod full;
mod handler;
mod holds;
mod in_thread;
mod inherited;
pub mod link;
mod main_task;
mod pager;
mod parking;
mod places;
mod plan;
mod processes;
mod program;
mod quiesce;
pub mod record;
pub mod regions;
mod registrar;
mod registrar_slot;
mod rest;
mod retire;
mod staging;
mod start;
pub mod streams;
pub mod table;
pub mod tree;
pub mod unpaged;
pub mod unserved;
mod watcher;
mod ways;

pub use broken::place_of;
pub use buffers::Buffers;
pub use change::{Change, Remap};
pub use error::Error;
pub use fork::NEEDED_MAX;
pub use holds::Hold;
pub use pager::Pager;
pub use start::keep_device;
pub use watcher::PAGER_ENDED;
pub use ways::Ways;
