//! The server's module interface: a small handwritten binding to the functions that this module uses.
//!
//! All unsafe code of the module is here. The modules above it see contexts, keys, values and dumps as Rust types that
//! live no longer than the server's call.

mod allocator;
mod blocking;
mod context;
mod data_type;
mod filter;
mod foreground;
mod key;
mod keyspace;
mod permission;
mod register;
mod table;

pub use allocator::ServerAllocator;
pub use blocking::{Waiting, Work};
pub use context::{Context, Level, NotifyClass, OwnText, Reply, Text, log, now_ms};
pub use data_type::{CommandLog, DataType, Digest, Sink, Source, register as register_type};
pub use filter::{Arrival, Name, Told, is_paused, memory_limit, memory_used, register_filter};
pub use foreground::{fail_dump, listen as listen_for_dumps};
pub use key::{Found, Key, Kind, Usage};
pub use keyspace::{Change, is_loading, modules_changed, observe};
pub use permission::{Asker, denied};
pub use register::{
    Arity, Command, InfoSection, attach, before_sleep, on_fork, register_command,
    register_for_native, register_information, within_onload,
};
pub use table::{RawContext, RawString};
