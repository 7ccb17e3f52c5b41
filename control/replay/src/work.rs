//! The memory accesses of programs: the pages that they touch, in phases.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use crate::keys::Keys;
use crate::local::Local;
use crate::trace::Trace;

/// A part of a program. Pages count from 0. A touch of a page stands for all the work on its 4096 bytes at that moment,
/// so it takes microseconds.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Writes pages in order, like loading a data set.
    Fill {
        /// The first page.
        start: u32,
        /// The number of pages.
        pages: u32,
    },
    /// Scans pages in order, several times.
    Scan {
        /// The first page.
        start: u32,
        /// The number of pages.
        pages: u32,
        /// The number of scans.
        passes: u32,
        /// Percentage of touches that write.
        writes: u8,
    },
    /// Touches pages at random: the page of rank r in proportion to 1 / r^skew. A skew of 0 is uniform.
    Zipf {
        /// The first page.
        start: u32,
        /// The number of pages.
        pages: u32,
        /// The exponent.
        skew: f64,
        /// The number of touches.
        touches: u32,
        /// Percentage of touches that write.
        writes: u8,
    },
    /// Scans pages in order, and after each touches one of other pages at random: edges and vertices of a graph, a data
    /// set and a model.
    Join {
        /// The first page of the scan.
        start: u32,
        /// The number of pages.
        pages: u32,
        /// The number of scans.
        passes: u32,
        /// The first of the random pages. They follow a Zipf distribution of exponent 0.8, and are written.
        others_start: u32,
        /// The number of random pages.
        others: u32,
    },
    /// Writes pages that are never read again, like a stream: each after the previous one, from `start`.
    Stream {
        /// The first page.
        start: u32,
        /// The number of pages.
        pages: u32,
    },
    /// Idles.
    Idle {
        /// How long, ms.
        ms: u32,
    },
    /// Marks a shift of demand on the node.
    Shift,
    /// Ends the program and starts it again: frees all pages.
    Restart,
}

/// A program on a client.
#[derive(Clone, Debug)]
pub struct Work {
    /// The client's name.
    pub name: String,
    /// Its own memory, pages.
    pub local_pages: u32,
    /// The meaning of its keys.
    pub keys: Keys,
    /// Computing time for each touch of a page, ns.
    pub think_ns: u32,
    /// Its phases, in order.
    pub phases: Vec<Phase>,
}

impl Work {
    /// Its requests to a store. The same seed gives the same trace.
    pub fn trace(&self, seed: u64) -> Trace {
        let mut local = Local::new(self.name.as_str(), self.local_pages, self.keys);
        let mut random = SmallRng::seed_from_u64(seed);
        for phase in &self.phases {
            self.play(phase, &mut local, &mut random);
        }
        local.finish()
    }

    fn play(&self, phase: &Phase, local: &mut Local, random: &mut SmallRng) {
        let think = self.think_ns;
        match *phase {
            Phase::Fill { start, pages } | Phase::Stream { start, pages } => {
                (start..start + pages).for_each(|page| local.access(page, true, think));
            }
            Phase::Scan { start, pages, passes, writes } => {
                for _ in 0..passes {
                    for page in start..start + pages {
                        local.access(page, writes_now(random, writes), think);
                    }
                }
            }
            Phase::Zipf { start, pages, skew, touches, writes } => {
                let Some(ranks) = Ranks::new(pages, skew) else { return };
                for _ in 0..touches {
                    let page = start + ranks.page(random);
                    local.access(page, writes_now(random, writes), think);
                }
            }
            Phase::Join { start, pages, passes, others_start, others } => {
                let Some(ranks) = Ranks::new(others, 0.8) else { return };
                for _ in 0..passes {
                    for page in start..start + pages {
                        local.access(page, false, think);
                        local.access(others_start + ranks.page(random), true, think);
                    }
                }
            }
            Phase::Idle { ms } => local.sleep(ms),
            Phase::Shift => local.shift(),
            Phase::Restart => local.exit(),
        }
    }
}

fn writes_now(random: &mut SmallRng, per_cent: u8) -> bool {
    match per_cent {
        0 => false,
        100.. => true,
        per_cent => random.next_u32() % 100 < u32::from(per_cent),
    }
}

/// Pages by a Zipf distribution, with the frequent ones spread over the range.
struct Ranks {
    law: Option<Zipf<f32>>,
    pages: u32,
    /// Odd, and coprime to the number of pages.
    step: u64,
}

impl Ranks {
    /// `None` for 0 pages.
    fn new(pages: u32, skew: f64) -> Option<Self> {
        let law = if skew > 0.0 { Zipf::new(pages as f32, skew as f32).ok() } else { None };
        let mut step = 0x9e37_79b1_u64 | 1;
        while gcd(step, u64::from(pages)) > 1 {
            step += 2;
        }
        (pages > 0).then_some(Self { law, pages, step })
    }

    #[inline]
    fn page(&self, random: &mut SmallRng) -> u32 {
        let rank = match &self.law {
            Some(law) => law.sample(random) as u32 - 1,
            None => random.random_range(0..self.pages),
        };
        (u64::from(rank.min(self.pages - 1)) * self.step % u64::from(self.pages)) as u32
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
