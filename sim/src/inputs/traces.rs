//! Block traces.

use spillway_replay::blocks::read;
use spillway_replay::keys::Keys;

/// Most events for a byte of a trace: a request of 64 MiB touches 16384 pages, each a put and a get.
const EVENTS_MAX: usize = 2 * 16_384 + 2;

/// Reads bytes as a block trace.
pub(super) fn traces(bytes: &[u8]) {
    if let Ok(trace) = read(bytes, "fuzz", 4, Keys::Pages) {
        assert!(trace.events.len() <= bytes.len() * EVENTS_MAX, "events without end");
    }
}
