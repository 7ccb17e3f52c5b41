//! How much of the server's memory may be in use before strings move.

use std::sync::OnceLock;

use crate::server::{Context, memory_limit, memory_used};

/// The share of `maxmemory` above which strings move. 0: always, even without a limit.
static LOW: OnceLock<f32> = OnceLock::new();
/// The share above which strings move during commands.
const NEAR: f32 = 0.97;
/// The low mark when strings always move: values that stay inline and other types still use memory.
const LOW_OF_ALWAYS: f32 = 0.85;

/// The distance between the share at which the hand begins and the one at which it ends.
const GAP: f32 = 0.005;

/// Sets the low mark, as a percentage of `maxmemory`.
pub fn start(low_percent: u8) {
    LOW.get_or_init(|| f32::from(low_percent) / 100.0);
}

/// Whether the low mark is set.
pub fn is_set() -> bool {
    LOW.get().is_some()
}

/// Whether every string moves as soon as the command that writes it has finished.
pub fn is_always() -> bool {
    LOW.get() == Some(&0.0)
}

/// The share of `maxmemory` above which the hand looks for cold strings.
pub fn low() -> f32 {
    LOW.get().copied().filter(|&low| low > 0.0).unwrap_or(LOW_OF_ALWAYS)
}

/// The share at which the hand ends. The gap batches strings, so that the store is woken once for many, and leaves room
/// for those that come back meanwhile.
pub fn enough() -> f32 {
    low() - GAP
}

/// The share above which the hand gets more of the server's time: two thirds of the way from the low mark to the limit.
pub fn high() -> f32 {
    low() + (1.0 - low()) * 2.0 / 3.0
}

/// Whether memory use has reached the low mark.
pub fn is_above_low() -> bool {
    memory_used() >= low()
}

/// Whether a value that is read often may come back into the server.
pub fn has_room() -> bool {
    !is_above_low() && !is_always()
}

/// Whether these bytes have room for a while: the server evicts nothing, and moves no strings during commands.
pub fn has_room_for(context: &Context<'_>, bytes: u64) -> bool {
    let needed = |limit: u64| f64::from(memory_used()) * limit as f64 + bytes as f64;
    memory_limit(context)
        .is_some_and(|limit| limit == 0 || needed(limit) <= f64::from(NEAR) * limit as f64)
}

/// Whether the server is about to evict keys or refuse commands. The remainder is for commands that run while the store
/// is slow: evicting values that lie there frees almost nothing.
pub fn is_near_limit(used: f32) -> bool {
    used > NEAR
}
