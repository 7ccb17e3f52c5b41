//! The configuration.
//!
//! Every setting is a row of a table: its name, default and bounds, whether it can change while the
//! daemon runs, and the field that it sets. The file's reader, `--set`, the reload and
//! docs/config.md all use this table.

mod check;
mod document;
mod field;
mod file;
mod lending;
mod manual;
mod reload;
mod table;
mod table_lend;
mod table_resp;
mod table_vm;
mod values;
mod vms;

pub use check::Clients;
pub use document::document;
pub use file::{Error, read};
pub use lending::machine_settings;
pub use manual::manual;
pub use reload::needs_restart;
#[cfg(test)]
pub use values::LendRoles;
pub use values::{
    Block, Capacity, Config, DeviceUse, Disk, Listen, MemoryLock, NamedClient, Peer, RegistryKind,
    Store, UsedBy, Vm, Way,
};
