//! The settings of a device.

use std::time::Duration;

use crate::error::Error;

/// Shortest and longest slab, bytes.
pub const SLAB_BYTES: (u64, u64) = (1 << 20, 1 << 30);

/// Settings of a [`FanOut`](crate::FanOut).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of a slab: a power of two from 1 MiB to 1 GiB.
    pub slab_bytes: u64,
    /// How long a holder may take for a request. After that the other copy serves, if there is one.
    pub request_timeout: Duration,
    /// How long reads and writes wait for a lender with the last copies of their pages, which is
    /// asked again and again; then they fail, and later ones at once, until it answers. As long as the loan's lease: after that the copy is gone.
    pub last_copy_wait: Duration,
    /// How long a copy stays in use whose holder does not answer, while the other copy serves. It is brought up to date
    /// when the holder answers by then; otherwise it is given up.
    pub stall_max: Duration,
    /// Threads that can be inside the device at the same time, movers included. Further ones wait.
    /// Each has some 900 KiB of buffers.
    pub threads_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slab_bytes: 64 << 20,
            request_timeout: Duration::from_secs(2),
            last_copy_wait: Duration::from_secs(30),
            stall_max: Duration::from_secs(30),
            threads_max: 8,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = (SLAB_BYTES.0..=SLAB_BYTES.1).contains(&self.slab_bytes);
        if fits && self.slab_bytes.is_power_of_two() {
            Ok(())
        } else {
            Err(Error::SlabBytes(self.slab_bytes))
        }
    }
}
