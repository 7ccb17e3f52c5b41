//! Guests that grow and shrink while they run, by memory sections and without ACPI: M. Bielski, A. Rigo, R. Pacalet,
//! "Dynamic guest memory resizing: paravirtualized approach", 2019, on virtio-mem, its descendant in the kernel.
//!
//! Nothing here does I/O or reads a clock: the driver passes in events with the monotonic time, and executes the
//! returned actions.

#![forbid(unsafe_code)]

pub mod agent;
pub mod call;
mod check;
mod event;
mod guest;
mod held;
pub mod line;
mod need;
mod needs;
mod plan;
mod resize;
mod settings;
mod share;
mod stage;
pub mod window;

pub use event::{Action, Cause, Device, End, Event, Facts, Order, OrderId, Outcome, Times, Who};
pub use guest::{Guest, View};
pub use line::Error;
pub use settings::{GROWTH_MAX, Settings};
pub use share::{Holder, Step, share, working_bytes};
