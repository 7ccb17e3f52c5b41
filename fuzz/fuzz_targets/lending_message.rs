//! Messages of hosts that lend each other memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("lending_message", bytes));
