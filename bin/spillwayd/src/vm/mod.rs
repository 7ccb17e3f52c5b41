//! Guests that grow and shrink: a thread for each VM connects its state machine (control/guests) with QEMU's monitor
//! or libvirt, the agent's channel and the section pool.

mod agent;
mod attached;
mod driver;
mod handle;
mod layout;
mod libvirt;
mod loan;
mod monitor;
mod options;
mod share;
mod shared;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod windows;

pub use handle::Handle;
pub use share::{at_once, hunger, interval};
pub use start::{Prepared, check};
