//! The NVMe/TCP client's state machine.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("client", bytes));
