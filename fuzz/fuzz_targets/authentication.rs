//! Messages of DH-HMAC-CHAP, and secrets.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("authentication", bytes));
