//! The memory accesses of programs: the pages that they touch, in phases.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use crate::local::{Keys, Local};
use crate::trace::Trace;

/// A part of what a program does. Pages are counted from 0; a touch of a page stands for all that is done with its
/// 4096 bytes at that moment, so that it takes microseconds.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Writes pages one after the other, as when a data set is loaded.
    Fill {
        /// The first page.
        start: u32,
        /// How many.
        pages: u32,
    },
    /// Goes through pages in order, several times.
    Scan {
        /// The first page.
        start: u32,
        /// How many.
        pages: u32,
        /// How often.
        passes: u32,
        /// Touches of a hundred that write.
        writes: u8,
    },
    /// Touches pages at random, some more often: rank r in proportion to 1 / r^skew; 0 is evenly.
    Zipf {
        /// The first page.
        start: u32,
        /// How many.
        pages: u32,
        /// The exponent.
        skew: f64,
        /// How many touches.
        touches: u32,
        /// Touches of a hundred that write.
        writes: u8,
    },
    /// Goes through pages in order and touches one of others at random after each: edges and vertices of a graph,
    /// a data set and a model.
    Join {
        /// The first page that is gone through.
        start: u32,
        /// How many.
        pages: u32,
        /// How often.
        passes: u32,
        /// The first page of those at random; they follow a Zipf law of exponent 0.8, and are written.
        others_start: u32,
        /// How many.
        others: u32,
    },
    /// Writes pages that are never looked at again, as a stream does: each beyond the one before, from `start`.
    Stream {
        /// The first page.
        start: u32,
        /// How many.
        pages: u32,
    },
    /// Does nothing.
    Idle {
        /// For so long, ms.
        ms: u32,
    },
    /// The demand of the node shifts here.
    Shift,
    /// Ends the program and starts it anew: all pages are freed.
    Restart,
}

/// A program on a client.
#[derive(Clone, Debug)]
pub struct Work {
    /// The client's name.
    pub name: String,
    /// Its own memory, pages.
    pub local_pages: u32,
    /// What its keys are.
    pub keys: Keys,
    /// Computing for each touch of a page, ns.
    pub think_ns: u32,
    /// What it does, in order.
    pub phases: Vec<Phase>,
}

impl Work {
    /// What it asks of a store. The same seed gives the same.
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

/// Pages by a Zipf law, the frequent ones spread over the range.
struct Ranks {
    law: Option<Zipf<f32>>,
    pages: u32,
    /// Odd and without a factor in common with the number of pages.
    step: u64,
}

impl Ranks {
    /// None of no pages.
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
