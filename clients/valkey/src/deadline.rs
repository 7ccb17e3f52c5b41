//! How long a command may wait for the store.

use std::time::{Duration, Instant};

/// When all reads of one command must have ended.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// For a save, and for a thread that only a client waits for. Each answer of the store still has its time.
    pub const NONE: Self = Self(None);

    /// This long from now.
    pub fn after(time: Duration) -> Self {
        Self(Some(Instant::now() + time))
    }

    /// The time, if there is one.
    pub const fn at(self) -> Option<Instant> {
        self.0
    }

    /// Whether it is over.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }
}
