//! Drops idle page cache gradually while no task waits for memory, so that it becomes free and can be returned. The
//! kernel takes the coldest pages first (memory.reclaim of the root control group, cgroup v2 since Linux 5.19). Pages
//! that were in use after all are soon read again. The kernel counts these refaults, and this module then pauses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::setpriority_process;

use crate::watch::{REFAULTS_QUIET, STALLED_QUIET_US, Sample, Terms};

/// Time between two steps.
const STEP: Duration = Duration::from_secs(1);
/// A step drops one part in this many of the page cache.
const PART: u64 = 64;
/// Largest step: dropping this much takes some milliseconds.
const STEP_MOST: u64 = 64 << 20;
/// Smallest step.
const STEP_LEAST: u64 = 256 << 10;
/// How long no task must have waited for memory before a step.
const QUIET_TIME: Duration = Duration::from_secs(10);
/// Shortest pause after dropped pages were read again.
const PAUSE: Duration = Duration::from_secs(60);
/// How often the pause can double, if pressure follows each step.
const DOUBLED_MOST: u32 = 4;
/// Stack size of the thread. It only writes a file, and its stack is locked in memory.
const STACK: usize = 64 << 10;
/// The lowest priority.
const LAST: i32 = 19;

/// Decides when to drop page cache, and how much. A state machine: its input is timestamped samples, its
/// output a number of bytes.
#[derive(Clone, Debug)]
pub struct Idle {
    last: Option<(Duration, Sample)>,
    not_before: Duration,
    /// Pauses that followed a step within a minute, in a row.
    pauses: u32,
    /// Dropped since the last pause, bytes.
    dropped: u64,
}

impl Idle {
    /// Starts with a pause.
    pub fn new(now: Duration) -> Self {
        Self { last: None, not_before: now + QUIET_TIME, pauses: 0, dropped: 0 }
    }

    /// Returns how much to drop now, and how much was dropped before a pause that begins now. Call it about once a
    /// second.
    pub fn step(&mut self, now: Duration, sample: &Sample, terms: &Terms) -> (Option<u64>, u64) {
        let Some((at, before)) = self.last else {
            self.last = Some((now, *sample));
            return (None, 0);
        };
        if now < at + STEP {
            return (None, 0);
        }
        self.last = Some((now, *sample));
        if is_pressed(now - at, &before, sample) {
            return (None, self.pause(now));
        }
        if sample.total != before.total {
            self.not_before = self.not_before.max(now + QUIET_TIME);
        }
        if now < self.not_before {
            return (None, 0);
        }
        if now >= self.not_before + PAUSE {
            self.pauses = 0;
        }
        let bytes = (sample.cached / PART).min(STEP_MOST);
        ((is_useful(sample, terms) && bytes >= STEP_LEAST).then_some(bytes), 0)
    }

    /// Records how much was dropped.
    pub fn dropped(&mut self, bytes: u64) {
        self.dropped = self.dropped.saturating_add(bytes);
    }

    /// Pauses: for some seconds, or for a minute if some was dropped before, and longer if that repeats. Returns how
    /// much was dropped before the pause.
    pub fn pause(&mut self, now: Duration) -> u64 {
        let dropped = std::mem::take(&mut self.dropped);
        let time = if dropped > 0 {
            self.pauses = (self.pauses + 1).min(DOUBLED_MOST + 1);
            PAUSE * (1 << (self.pauses - 1))
        } else {
            QUIET_TIME
        };
        self.not_before = self.not_before.max(now + time);
        dropped
    }
}

fn is_pressed(time: Duration, before: &Sample, now: &Sample) -> bool {
    let of_second = |count: u64| (count as f64 / time.as_secs_f64()) as u64;
    of_second(now.stalled_us.saturating_sub(before.stalled_us)) >= STALLED_QUIET_US
        || of_second(now.refaults.saturating_sub(before.refaults)) > REFAULTS_QUIET
        || now.swap_ins != before.swap_ins
}

/// Whether memory that the host could take is still in the cache.
fn is_useful(sample: &Sample, terms: &Terms) -> bool {
    let kept = (2 * terms.reserve).saturating_add(sample.used_cache);
    let offered = sample.available.saturating_sub(kept);
    sample.available > 2 * terms.reserve && offered < sample.returnable
}

/// Makes the kernel drop page cache, on a thread of its own because this may block.
#[derive(Debug)]
pub struct Reclaimer {
    file: PathBuf,
    /// Whether the kernel can exclude programs' memory.
    knows_swappiness: bool,
    running: Option<(u64, JoinHandle<io::Result<()>>)>,
}

impl Reclaimer {
    /// The root control group below `root`; none if the kernel has no memory.reclaim.
    pub fn open(root: &Path) -> Option<Self> {
        let file = root.join("sys/fs/cgroup/memory.reclaim");
        file.exists().then_some(Self { file, knows_swappiness: true, running: None })
    }

    /// Behaves like a kernel that can't exclude programs' memory.
    #[cfg(test)]
    pub fn forget_swappiness(&mut self) {
        self.knows_swappiness = false;
    }

    /// Whether the last drop has ended, even if that was not noticed yet.
    #[cfg(test)]
    pub fn is_done(&self) -> bool {
        self.running.as_ref().is_none_or(|(_, thread)| thread.is_finished())
    }

    /// Whether no drop is in progress.
    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// Starts to drop `bytes`.
    ///
    /// # Errors
    /// There are no threads left, or the kernel would also swap: dropping page cache is not worth that.
    pub fn start(&mut self, bytes: u64, has_swap: bool) -> io::Result<()> {
        if has_swap && !self.knows_swappiness {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel would swap programs out for it",
            ));
        }
        let file = self.file.clone();
        let how = if self.knows_swappiness { " swappiness=0" } else { "" };
        let work = move || {
            let _ = setpriority_process(None, LAST);
            fs::write(file, format!("{bytes}{how}"))
        };
        let thread = thread::Builder::new().stack_size(STACK).spawn(work)?;
        self.running = Some((bytes, thread));
        Ok(())
    }

    /// The result of a drop that has ended: how much was dropped.
    ///
    /// # Errors
    /// The kernel found too little to drop.
    pub fn ended(&mut self) -> Option<io::Result<u64>> {
        self.running.as_ref().filter(|(_, thread)| thread.is_finished())?;
        let (bytes, thread) = self.running.take()?;
        // A panic would have ended the agent.
        let done = thread.join().unwrap_or(Ok(()));
        match done {
            // The next attempt does not exclude programs' memory: it starts only without swap space.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.knows_swappiness => {
                self.knows_swappiness = false;
                Some(Ok(0))
            }
            done => Some(done.map(|()| bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TERMS: Terms = Terms { reserve: 64 * MIB, most: 4096 * MIB, block: 128 * MIB };

    /// A guest of 2 GiB, most of whose available memory is page cache.
    fn sample() -> Sample {
        Sample {
            total: 2048 * MIB,
            available: 1300 * MIB,
            cached: 1280 * MIB,
            used_cache: 1280 * MIB,
            returnable: 1536 * MIB,
            ..Sample::default()
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Passes a sample each second. Returns the time and size of each step.
    fn run(idle: &mut Idle, seconds: std::ops::Range<u64>, sample: &Sample) -> Vec<(u64, u64)> {
        let step = |second| {
            let bytes = idle.step(at(second), sample, &TERMS).0?;
            idle.dropped(bytes);
            Some((second, bytes))
        };
        seconds.filter_map(step).collect()
    }

    #[test]
    fn small_steps_begin_when_nothing_has_waited_for_a_while() {
        let mut idle = Idle::new(at(0));
        let steps = run(&mut idle, 0..14, &sample());
        assert_eq!(steps, [10, 11, 12, 13].map(|second| (second, 20 * MIB)));
        let large = Sample { cached: 8 << 30, available: 8 << 30, returnable: 9 << 30, ..sample() };
        assert_eq!(idle.step(at(14), &large, &TERMS), (Some(64 * MIB), 0));
        let small = Sample { cached: 15 * MIB, ..sample() };
        assert_eq!(idle.step(at(15), &small, &TERMS), (None, 0));
        // The dropped amount is reported when a pause begins.
        let pressed = Sample { refaults: 1000, ..small };
        assert_eq!(idle.step(at(16), &pressed, &TERMS), (None, 80 * MIB));
    }

    #[test]
    fn any_pressure_is_a_pause_which_grows_when_it_follows_again_and_again() {
        for pressed in [
            Sample { refaults: 65, ..sample() },
            Sample { stalled_us: 10_000, ..sample() },
            Sample { swap_ins: 1, ..sample() },
        ] {
            let mut idle = Idle::new(at(0));
            run(&mut idle, 0..62, &sample());
            assert_eq!(run(&mut idle, 62..122, &pressed), []);
            assert_eq!(run(&mut idle, 122..123, &pressed).len(), 1, "{pressed:?}");
        }
        let (mut idle, mut pressed, mut second) = (Idle::new(at(0)), sample(), 10);
        run(&mut idle, 0..11, &pressed);
        for minutes in [1, 2, 4, 8, 16, 16] {
            pressed.refaults += 100;
            let pause = 1 + minutes * 60;
            let steps = run(&mut idle, second + 1..second + 1 + pause, &pressed);
            second += pause;
            assert_eq!(steps, [(second, 20 * MIB)], "{minutes}");
        }
        // After a minute without pressure the pauses start short again.
        run(&mut idle, second + 1..second + 100, &pressed);
        pressed.refaults += 100;
        assert_eq!(run(&mut idle, second + 100..second + 160, &pressed), []);
        assert_eq!(run(&mut idle, second + 160..second + 161, &pressed).len(), 1);
    }

    #[test]
    fn pressure_before_anything_was_dropped_and_another_size_are_a_short_rest() {
        let mut idle = Idle::new(at(0));
        run(&mut idle, 0..5, &sample());
        let pressed = Sample { refaults: 1000, ..sample() };
        assert_eq!(run(&mut idle, 5..16, &pressed), [(15, 20 * MIB)]);
        let smaller = Sample { total: 1920 * MIB, ..pressed };
        assert_eq!(run(&mut idle, 16..27, &smaller), [(26, 20 * MIB)]);
    }

    #[test]
    fn another_size_does_not_shorten_a_pause() {
        let mut idle = Idle::new(at(0));
        run(&mut idle, 0..62, &sample());
        let pressed = Sample { swap_ins: 1, ..sample() };
        assert_eq!(run(&mut idle, 62..70, &pressed), []);
        let grown = Sample { total: 4096 * MIB, ..pressed };
        assert_eq!(run(&mut idle, 70..122, &grown), []);
        assert_eq!(run(&mut idle, 122..123, &grown).len(), 1);
    }

    #[test]
    fn pressure_in_a_pause_does_not_shorten_it() {
        let mut idle = Idle::new(at(0));
        run(&mut idle, 0..62, &sample());
        let pressed = Sample { swap_ins: 1, ..sample() };
        assert_eq!(run(&mut idle, 62..70, &pressed), []);
        // Nothing was dropped since, so the pause is only some seconds.
        let again = Sample { swap_ins: 2, ..sample() };
        assert_eq!(run(&mut idle, 70..122, &again), []);
        assert_eq!(run(&mut idle, 122..123, &again).len(), 1);
        // It extends a pause that is nearly over.
        let mut idle = Idle::new(at(0));
        run(&mut idle, 0..5, &sample());
        assert_eq!(run(&mut idle, 5..15, &pressed), []);
        assert_eq!(run(&mut idle, 15..25, &again), []);
        assert_eq!(run(&mut idle, 25..26, &again).len(), 1);
    }

    #[test]
    fn nothing_is_dropped_where_nothing_more_could_be_given() {
        for useless in [
            Sample { returnable: 0, ..sample() },
            // All of it is offered without that.
            Sample { returnable: 500 * MIB, used_cache: 500 * MIB, ..sample() },
            // The reserve is almost reached.
            Sample { available: 128 * MIB, ..sample() },
        ] {
            assert_eq!(run(&mut Idle::new(at(0)), 0..100, &useless), [], "{useless:?}");
        }
    }

    fn ended(reclaimer: &mut Reclaimer) -> io::Result<u64> {
        let start = std::time::Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(60));
            if let Some(ended) = reclaimer.ended() {
                return ended;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_kernel_is_told_to_leave_programs_alone() {
        let root = tempfile::tempdir().unwrap();
        assert!(Reclaimer::open(root.path()).is_none(), "no such kernel");
        let file = root.path().join("sys/fs/cgroup/memory.reclaim");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        let mut reclaimer = Reclaimer::open(root.path()).unwrap();
        assert!(reclaimer.is_idle() && reclaimer.ended().is_none());
        reclaimer.start(7 * MIB, true).unwrap();
        assert!(!reclaimer.is_idle());
        assert_eq!(ended(&mut reclaimer).unwrap(), 7 * MIB);
        assert_eq!(fs::read_to_string(&file).unwrap(), "7340032 swappiness=0");
        // An older kernel does not support this.
        reclaimer.knows_swappiness = false;
        assert!(reclaimer.start(MIB, true).is_err() && reclaimer.is_idle());
        reclaimer.start(MIB, false).unwrap();
        assert_eq!(ended(&mut reclaimer).unwrap(), MIB);
        assert_eq!(fs::read_to_string(&file).unwrap(), "1048576");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        reclaimer.start(MIB, false).unwrap();
        assert!(ended(&mut reclaimer).is_err());
    }
}
