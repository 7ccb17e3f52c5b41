//! The live line of `--progress`, and the summary under it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use spillway_pager::tree::{BUCKETS, Tree};

use crate::stats::{Memory, fault_times, histogram};
use crate::units::show_size;

/// Time between two lines on a terminal, where each line replaces the last.
const ON_TERMINAL: Duration = Duration::from_millis(500);
/// Time between two lines in a log.
const IN_LOG: Duration = Duration::from_secs(5);

/// Counters at one moment, from which a line shows the difference.
#[derive(Clone)]
struct Seen {
    at: Instant,
    first_touches: u64,
    fetches: u64,
    rescues: u64,
    faults: u64,
    times: [u64; BUCKETS],
}

impl Seen {
    fn now(tree: &Tree) -> Self {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let sums = &tree.counters;
        Self {
            at: Instant::now(),
            first_touches: count(&sums.first_touches),
            fetches: count(&sums.fetches),
            rescues: count(&sums.rescues),
            faults: count(&sums.faults),
            times: histogram(tree),
        }
    }

    /// One line for the time between `before` and this moment.
    fn line_since(&self, before: &Self, memory: Memory) -> String {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        let faults = self.faults - before.faults;
        let share = |now: u64, then: u64| {
            if faults == 0 { 0.0 } else { 100.0 * (now - then) as f64 / faults as f64 }
        };
        let times = fault_times(&std::array::from_fn(|at| self.times[at] - before.times[at]));
        format!(
            "local {}, far {} | {:.0} faults/s, p50 {:.0} p99 {:.0} µs | {:.0}% new {:.0}% fetched \
             {:.0}% rescued",
            show_size(memory.local_bytes),
            show_size(memory.far_bytes),
            faults as f64 / seconds,
            micros(times.p50_ns),
            micros(times.p99_ns),
            share(self.first_touches, before.first_touches),
            share(self.fetches, before.fetches),
            share(self.rescues, before.rescues),
        )
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Prints to standard error. On a terminal, each line overwrites the last.
pub struct Progress {
    start: Seen,
    last: Seen,
    terminal: bool,
}

impl Progress {
    /// Starts counting.
    pub fn new(tree: &Tree) -> Self {
        let now = Seen::now(tree);
        Self { start: now.clone(), last: now, terminal: stderr().is_terminal() }
    }

    /// Prints the line if it is due.
    pub fn update(&mut self, tree: &Tree) {
        let interval = if self.terminal { ON_TERMINAL } else { IN_LOG };
        if self.last.at.elapsed() < interval {
            return;
        }
        let now = Seen::now(tree);
        let line = now.line_since(&self.last, Memory::now(tree));
        self.last = now;
        // A closed standard error is the user's choice.
        let _ = if self.terminal {
            write!(stderr(), "\r{}\x1b[K", cut_to_width(&line))
        } else {
            writeln!(stderr(), "spillway: {line}")
        };
    }

    /// Clears the line, so that something else can be printed.
    pub fn clear(&self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    /// The summary of the whole run.
    pub fn finish(&self, tree: &Tree, fullest: Memory) {
        self.clear();
        let end = Seen::now(tree);
        let times = fault_times(&end.times);
        let _ = writeln!(
            stderr(),
            "spillway: {:.1} s, {} faults, p50 {:.1} µs, p99 {:.1} µs\n\
             spillway: at its fullest it held {}: {} local, {} in a store of {}, {} on disk\n\
             spillway: which took {} of memory in all",
            (end.at - self.start.at).as_secs_f64(),
            end.faults,
            micros(times.p50_ns),
            micros(times.p99_ns),
            show_size(fullest.all_local_bytes),
            show_size(fullest.local_bytes),
            show_size(fullest.far_bytes),
            show_size(fullest.store_bytes),
            show_size(fullest.disk_bytes),
            show_size(fullest.total_bytes),
        );
    }
}

/// A line that is too long for the terminal would not be overwritten by the next.
fn cut_to_width(line: &str) -> String {
    let columns = rustix::termios::tcgetwinsize(stderr()).map_or(0, |size| size.ws_col.into());
    // A terminal that does not know its size reports 0.
    let width: usize = if columns == 0 { 80 } else { columns };
    line.chars().take(width - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::settings;
    use crate::shared_tree::SharedTree;

    #[test]
    fn a_line_shows_what_came_since_the_last() {
        let tree = SharedTree::new(&settings()).unwrap();
        tree.counters.faults.store(1000, Relaxed);
        tree.counters.fetches.store(1000, Relaxed);
        let before = Seen::now(&tree);
        tree.counters.faults.store(1200, Relaxed);
        tree.counters.first_touches.store(50, Relaxed);
        tree.counters.fetches.store(1150, Relaxed);
        tree.counters.resident_pages.store(256, Relaxed);
        let mut now = Seen::now(&tree);
        now.at = before.at + Duration::from_secs(2);
        let line = now.line_since(&before, Memory::now(&tree));
        assert!(line.contains("local 1.0 MiB"), "{line}");
        assert!(
            line.contains("100 faults/s, p50 0 p99 0 µs | 25% new 75% fetched 0% rescued"),
            "{line}"
        );
    }
}
