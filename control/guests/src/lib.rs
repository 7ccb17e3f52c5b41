//! Guests that grow and shrink while they run, by memory sections and without ACPI: M. Bielski, A. Rigo, R. Pacalet,
//! "Dynamic guest memory resizing: paravirtualized approach", 2019, on virtio-mem, its descendant in the kernel.
//!
//! Nothing here does I/O or reads a clock: whoever drives it hands in events with the monotonic time, and carries out the
//! actions that come back.

pub mod agent;
mod error;

pub use error::Error;
