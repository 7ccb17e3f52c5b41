//! Latency histograms of commands. Each thread that executes commands has a [`Recorder`] of its own, so recording takes
//! no lock, allocates nothing and shares no cache line with other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Upper bounds of a histogram's buckets, nanoseconds. One more bucket without a bound follows.
pub const BOUNDS_NS: [u64; 14] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    10_000_000_000,
];
const BUCKETS: usize = BOUNDS_NS.len() + 1;

/// What a command does. Each kind has a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// Gets a value.
    Get,
    /// Puts a value.
    Put,
    /// Removes values.
    Remove,
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write,
    /// Discards blocks, or fills them with zeros.
    Discard,
    /// Makes completed writes durable.
    Flush,
    /// Anything else.
    Other,
}

impl CommandKind {
    const COUNT: usize = Self::Other as usize + 1;

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Remove => "remove",
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// The latencies of one kind of commands at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// Commands in each bucket of [`BOUNDS_NS`], and in the one without a bound.
    pub counts: [u64; BUCKETS],
    /// The sum of all latencies, nanoseconds.
    pub sum_ns: u64,
}

impl LatencyHistogram {
    /// Adds the commands of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_ns += other.sum_ns;
    }
}

/// A live histogram.
#[derive(Debug, Default)]
struct Live {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Live {
    fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|&bound| bound < ns);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn sample(&self) -> LatencyHistogram {
        LatencyHistogram {
            counts: std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed)),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// The histograms of one recorder, on cache lines of their own. Processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([Live; CommandKind::COUNT]);

/// The latencies of a front end's commands, by kind.
#[derive(Debug)]
pub struct Latencies {
    kinds: &'static [CommandKind],
    /// Those without a recorder are used by the next one, so there are only as many as recorders at one time.
    shards: Mutex<Vec<Arc<Shard>>>,
}

impl Latencies {
    /// No commands yet. `kinds` are those that the front end has.
    pub const fn new(kinds: &'static [CommandKind]) -> Self {
        Self { kinds, shards: Mutex::new(Vec::new()) }
    }

    fn shards(&self) -> MutexGuard<'_, Vec<Arc<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A recorder for a thread that executes commands.
    pub fn recorder(&self) -> Recorder {
        let mut shards = self.shards();
        // Recorders are made only under the lock, so a shard that nothing else refers to stays free.
        if let Some(free) = shards.iter().find(|shard| Arc::strong_count(shard) == 1) {
            return Recorder(Arc::clone(free));
        }
        let shard = Arc::<Shard>::default();
        shards.push(Arc::clone(&shard));
        Recorder(shard)
    }

    /// The latencies of each kind, since the front end began.
    pub fn histograms(&self) -> Vec<(CommandKind, LatencyHistogram)> {
        let shards = self.shards();
        let of = |kind: CommandKind| {
            let mut sum = LatencyHistogram::default();
            shards.iter().for_each(|shard| sum.add(&shard.0[kind as usize].sample()));
            (kind, sum)
        };
        self.kinds.iter().copied().map(of).collect()
    }
}

/// Records the latencies of one thread's commands.
#[derive(Debug)]
pub struct Recorder(Arc<Shard>);

impl Recorder {
    /// Records that the daemon has worked on a command for `time`.
    pub fn record(&self, kind: CommandKind, time: Duration) {
        self.0.0[kind as usize].record(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: &[CommandKind] = &[CommandKind::Get, CommandKind::Put];

    fn counts(latencies: &Latencies) -> Vec<u64> {
        let count = |histogram: LatencyHistogram| histogram.counts.iter().sum();
        latencies.histograms().into_iter().map(|(_, histogram)| count(histogram)).collect()
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let (latencies, mut expected) = (Latencies::new(KINDS), LatencyHistogram::default());
        let recorder = latencies.recorder();
        for (at, bound) in BOUNDS_NS.into_iter().enumerate() {
            recorder.record(CommandKind::Put, Duration::from_nanos(bound));
            recorder.record(CommandKind::Put, Duration::from_nanos(bound + 1));
            expected.counts[at] += 1;
            expected.counts[at + 1] += 1;
            expected.sum_ns += 2 * bound + 1;
        }
        recorder.record(CommandKind::Put, Duration::ZERO);
        expected.counts[0] += 1;
        let got = latencies.histograms();
        assert_eq!(
            got,
            [(CommandKind::Get, LatencyHistogram::default()), (CommandKind::Put, expected)]
        );
    }

    #[test]
    fn what_a_thread_has_recorded_stays_when_another_takes_its_place() {
        let latencies = Latencies::new(KINDS);
        let (one, two) = (latencies.recorder(), latencies.recorder());
        one.record(CommandKind::Get, Duration::from_secs(20));
        two.record(CommandKind::Get, Duration::from_secs(1));
        drop(one);
        let three = latencies.recorder();
        three.record(CommandKind::Put, Duration::ZERO);
        assert_eq!(counts(&latencies), [2, 1]);
        assert_eq!(latencies.shards().len(), 2);
        assert!(!Arc::ptr_eq(&two.0, &three.0), "two threads have different shards");
    }

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        use CommandKind::{Discard, Flush, Get, Other, Put, Read, Remove, Write};
        let all = [Get, Put, Remove, Read, Write, Discard, Flush, Other];
        assert_eq!(all.len(), CommandKind::COUNT);
        let names: std::collections::HashSet<_> = all.map(CommandKind::name).into_iter().collect();
        assert_eq!(names.len(), CommandKind::COUNT);
    }
}
