//! What paged programs and the daemon say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("programs", bytes));
