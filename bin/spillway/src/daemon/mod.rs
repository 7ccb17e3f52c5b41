//! The commands that talk to a daemon.

mod address;
mod api;
mod body;
mod client;
mod dashboard;
mod disk;
mod lend;
mod moving;
mod names;
mod options;
mod policy;
mod pool;
mod reload;
mod serve;
mod stat;
mod target;
mod terminal;
mod top;
mod vm;

pub use client::{ClientCommand, run as client};
pub use dashboard::{Dashboard, run as dashboard};
pub use disk::{DiskCommand, run as disk};
pub use lend::{Lend, run as lend};
pub use options::default_dir;
pub use policy::{Policy, run as policy};
pub use pool::{Pool, run as pool};
pub use reload::{Reload, run as reload};
pub use serve::{Serve, run as serve};
pub use stat::{Stat, run as stat};
pub use target::{Target, run as target};
pub use top::{Top, run as top};
pub use vm::{Vm, run as vm};
