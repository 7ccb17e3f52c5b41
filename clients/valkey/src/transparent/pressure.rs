//! How much of the server's memory may be used before strings leave.

use std::sync::OnceLock;

use crate::server::memory_used;

/// The share of `maxmemory` from which on strings leave; 0 for always, also without a limit.
static LOW: OnceLock<f32> = OnceLock::new();
/// The share from which on strings leave in commands.
const NEAR: f32 = 0.97;
/// The same of memory that values which are left inline and other types take, where strings leave always.
const LOW_OF_ALWAYS: f32 = 0.85;

/// Between the share at which the hand begins and the one at which it ends.
const GAP: f32 = 0.005;

/// Sets the low mark, a percentage of `maxmemory`.
pub fn start(low_percent: u8) {
    LOW.get_or_init(|| f32::from(low_percent) / 100.0);
}

/// Whether every string leaves behind the command that writes it.
pub fn is_always() -> bool {
    LOW.get() == Some(&0.0)
}

/// The share of `maxmemory` from which on the hand looks for cold strings.
pub fn low() -> f32 {
    LOW.get().copied().filter(|&low| low > 0.0).unwrap_or(LOW_OF_ALWAYS)
}

/// The share at which the hand, once it has begun, ends. So many strings leave one after the other, for which the store is
/// woken once, and there is room for those that come back meanwhile.
pub fn enough() -> f32 {
    low() - GAP
}

/// The share from which on the hand gets more of the server's time: two thirds of the way to the limit.
pub fn high() -> f32 {
    low() + (1.0 - low()) * 2.0 / 3.0
}

/// Whether so much is used that strings leave.
pub fn is_above_low() -> bool {
    memory_used() >= low()
}

/// Whether the server is about to evict keys, or to refuse commands. What is left is for commands that find the store
/// slow: evicting what lies there frees next to nothing.
pub fn is_near_limit(used: f32) -> bool {
    used > NEAR
}
