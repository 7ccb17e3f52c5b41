//! The timed loop: accesses a page, checks its first word, records the time.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::clock::{Clock, Times};
use crate::compute::Work;
use crate::pages::{Region, signature};
use crate::walk::Walk;

/// The results of the threads of one phase.
pub struct Accesses {
    /// From their common start to the end of the last one, s.
    pub seconds: f64,
    /// The time of each access.
    pub times: Times,
    /// Accesses that found a wrong first word.
    pub wrong: u64,
}

/// What belongs to each access.
#[derive(Clone, Copy)]
pub struct Each {
    /// Percentage of accesses that also write.
    pub write_percent: u32,
    /// The work that follows.
    pub work: Work,
    /// The clock that times it.
    pub clock: Clock,
}

/// Makes `ops_each` accesses along each walk, with one thread for each walk.
pub fn run(region: &Region, walks: &mut [Walk], ops_each: u64, each: Each) -> Accesses {
    let start = Barrier::new(walks.len() + 1);
    let mut sum = Accesses { seconds: 0.0, times: Times::new(), wrong: 0 };
    thread::scope(|scope| {
        let threads: Vec<_> = walks
            .iter_mut()
            .map(|walk| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    touch(region, walk, ops_each, each)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        for thread in threads {
            // A thread that panics aborts the process, so this can't fail.
            let Ok((times, wrong)) = thread.join() else { continue };
            sum.times.merge(&times);
            sum.wrong += wrong;
        }
        sum.seconds = began.elapsed().as_secs_f64();
    });
    sum
}

fn touch(region: &Region, walk: &mut Walk, ops: u64, each: Each) -> (Times, u64) {
    let Each { write_percent, work, clock } = each;
    // Count on the stack, which no side pages: the heap would be managed memory.
    let mut times = Times::new();
    let mut writes = SmallRng::seed_from_u64(1);
    let mut wrong = 0;
    for op in 0..ops {
        let page = walk();
        let writing = writes.random_range(0..100) < write_percent;
        let word = region.word(page);
        let began = Clock::ticks();
        // SAFETY: the page is in the mapping. Other threads may write only its second word, whose value is never used.
        let found = unsafe { word.read_volatile() };
        if writing {
            // SAFETY: as above.
            unsafe { word.add(1).write_volatile(found.wrapping_add(op)) };
        }
        times.add(clock.since_ns(began));
        wrong += u64::from(found != signature(page));
        work.go();
    }
    (times, wrong)
}
