//! With `store.dedup`, looks for equal values that do not share memory yet, a few at a time, and says why
//! it finds none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use spillway_store::{Packer, SharedMemory, Store};

/// Values checked between two pauses. Readers of the statistics wait at most that long.
const BATCH_VALUES: usize = 256;
/// The pause, which gives some 4,000 values per second.
const REST: Duration = Duration::from_millis(62);
/// The pause between two passes over the store.
const REST_AT_END: Duration = Duration::from_secs(1);

/// Among fewer values the log does not complain that no two are equal: of pages, 16 MiB.
const VALUES_MIN: u64 = 4096;

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
    let mut watch = Watch::default();
    while !ends.load(Ordering::Acquire) {
        let looked_at = store.scan_for_equals(BATCH_VALUES, &mut packer);
        if is_complete(looked_at)
            && let Some(line) = store.shared_memory().and_then(|found| watch.look(&found))
        {
            tracing::warn!("{line}");
        }
        thread::park_timeout(rest_after(looked_at));
    }
}

/// Whether a pass over the store ended with a scan of so many values.
const fn is_complete(looked_at: usize) -> bool {
    looked_at < BATCH_VALUES
}

/// How long the thread pauses after a scan of so many values.
const fn rest_after(looked_at: usize) -> Duration {
    if is_complete(looked_at) { REST_AT_END } else { REST }
}

/// Whether values share memory, and whether the log says that they don't.
#[derive(Default)]
struct Watch {
    complained: bool,
}

impl Watch {
    /// A line for the log when a complete pass found nothing shared, with the reasons. The next line is due only after
    /// values have shared memory.
    fn look(&mut self, found: &SharedMemory) -> Option<String> {
        if found.values != 0 {
            self.complained = false;
        }
        if found.values != 0 || found.scanned_values < VALUES_MIN || self.complained {
            return None;
        }
        self.complained = true;
        Some(format!("store.dedup saves nothing: {}", reasons(found)))
    }
}

/// Why none of the values of a pass share memory.
fn reasons(found: &SharedMemory) -> String {
    let &SharedMemory { scanned_values: all, sealed_values: sealed, unfit_values: unfit, .. } =
        found;
    let mut text = format!("of {all} values no two are equal within a client or a `domain`");
    if sealed != 0 {
        text += &format!(
            "; {sealed} are as long as pages that a run has sealed under a key of its own, so that no two can be equal"
        );
    }
    if unfit != 0 {
        text += &format!("; {unfit} have a length that is never shared");
    }
    text + "; runs with --blade share equal pages only if --share gives them one key"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_rest_is_at_the_end_of_the_store() {
        let rests = [0, BATCH_VALUES - 1, BATCH_VALUES, BATCH_VALUES + 63].map(rest_after);
        assert_eq!(rests, [REST_AT_END, REST_AT_END, REST, REST]);
    }

    fn found(values: u64, sealed_values: u64, unfit_values: u64) -> SharedMemory {
        let scanned_values = 5000;
        SharedMemory {
            values,
            scanned_values,
            sealed_values,
            unfit_values,
            ..SharedMemory::default()
        }
    }

    #[test]
    fn that_nothing_is_shared_is_said_once_until_something_is() {
        let mut watch = Watch::default();
        let few = SharedMemory { scanned_values: VALUES_MIN - 1, ..SharedMemory::default() };
        let passes = [few, found(2, 0, 0), found(0, 0, 0), found(0, 9, 9), few, found(2, 0, 0)];
        let said = passes.map(|pass| watch.look(&pass).is_some());
        assert_eq!(said, [false, false, true, false, false, false]);
        assert!(watch.look(&found(0, 0, 0)).is_some());
    }

    #[test]
    fn the_line_has_the_reasons_that_there_are() {
        let line = |sealed, unfit| Watch::default().look(&found(0, sealed, unfit)).unwrap();
        let [plain, sealed, unfit] = [line(0, 0), line(4711, 0), line(0, 1234)];
        for line in [&plain, &sealed, &unfit] {
            assert!(line.contains("of 5000 values") && line.contains("--share"), "{line}");
        }
        assert!(!plain.contains("sealed") && !plain.contains("length"), "{plain}");
        assert!(sealed.contains("4711 are as long") && !sealed.contains("length"), "{sealed}");
        assert!(unfit.contains("1234 have a length") && !unfit.contains("sealed"), "{unfit}");
    }
}
