//! RESP commands.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("resp", bytes));
