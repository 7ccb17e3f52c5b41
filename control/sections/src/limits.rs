//! Limits of a guest.

/// Longest name of a guest.
pub const NAME_BYTES_MAX: usize = 64;
/// Most virtio-mem devices of a guest.
pub const DEVICES_MAX: u8 = 16;
