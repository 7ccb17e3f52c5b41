//! Descriptor chains and virtio-blk requests in a guest's memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("virtqueue", bytes));
