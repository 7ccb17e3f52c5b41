//! Cloud Hypervisor's message when it hands its guest's memory over.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spillway_sim::inputs::read("handover_cloud_hypervisor", bytes));
