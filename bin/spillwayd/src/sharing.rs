//! With `store.dedup`, looks for equal values that do not share memory yet, a few at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use spillway_store::{Packer, Store};

/// Values checked between two pauses. Readers of the statistics wait at most that long.
const BATCH_VALUES: usize = 256;
/// The pause, which gives some 4,000 values per second.
const REST: Duration = Duration::from_millis(62);
/// The pause between two passes over the store.
const REST_AT_END: Duration = Duration::from_secs(1);

/// The thread that looks for equal values.
#[derive(Debug)]
pub struct Sharing {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sharing {
    /// Starts it.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(store: &Arc<Store>) -> anyhow::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let (its, seen) = (Arc::clone(store), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("sharing".into())
            .spawn(move || run(&its, &seen))
            .context("can't start to look for equal pages")?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic would have ended the daemon earlier.
            let _ = thread.join();
        }
    }
}

fn run(store: &Store, ends: &AtomicBool) {
    let mut packer = Packer::new();
    while !ends.load(Ordering::Acquire) {
        let looked_at = store.scan_for_equals(BATCH_VALUES, &mut packer);
        thread::park_timeout(rest_after(looked_at));
    }
}

/// How long the thread pauses after this many values. Fewer than the limit means that a pass is complete.
const fn rest_after(looked_at: usize) -> Duration {
    if looked_at < BATCH_VALUES { REST_AT_END } else { REST }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_rest_is_at_the_end_of_the_store() {
        let rests = [0, BATCH_VALUES - 1, BATCH_VALUES, BATCH_VALUES + 63].map(rest_after);
        assert_eq!(rests, [REST_AT_END, REST_AT_END, REST, REST]);
    }
}
