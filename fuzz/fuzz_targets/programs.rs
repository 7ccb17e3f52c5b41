//! Messages between paged programs and the daemon.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("programs", bytes));
