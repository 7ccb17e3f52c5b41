//! The order in which a thread accesses the pages.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use crate::spec::{Pattern, Spec};

/// The exponent that YCSB and most cache studies use.
const ZIPF_EXPONENT: f64 = 0.99;

/// An endless sequence of page numbers.
pub type Walk = Box<dyn FnMut() -> usize + Send>;

/// The walk of thread `thread`. The same spec gives the same walk on every side.
pub fn of(spec: &Spec, thread: usize) -> Walk {
    let pages = spec.pages;
    let share = pages / spec.threads;
    let mut random = SmallRng::seed_from_u64(0x5B11 + thread as u64);
    let once = spec.floor.is_some_and(|floor| floor.local_pages.is_none());
    match (spec.pattern, once) {
        (Pattern::Random, false) => Box::new(move || random.random_range(0..pages)),
        // Without eviction a page faults only once, so draw without replacement.
        (Pattern::Random | Pattern::Zipf, true) => {
            let mut order: Vec<usize> = (thread * share..(thread + 1) * share).collect();
            order.shuffle(&mut random);
            let mut order = order.into_iter().cycle();
            Box::new(move || order.next().unwrap_or(0))
        }
        (Pattern::Sequential, _) => {
            let mut order = (thread * share..(thread + 1) * share).cycle();
            Box::new(move || order.next().unwrap_or(0))
        }
        (Pattern::Zipf, false) => zipf(spec, thread, random),
    }
}

fn zipf(spec: &Spec, thread: usize, mut random: SmallRng) -> Walk {
    let (pages, scan_percent) = (spec.pages, spec.scan_percent);
    let ranks = Zipf::new(pages as f64, ZIPF_EXPONENT).expect("an exponent above 0");
    let mut scanned = thread * (pages / spec.threads);
    Box::new(move || {
        if random.random_range(0..100) < scan_percent {
            scanned = (scanned + 1) % pages;
            return scanned;
        }
        scatter(ranks.sample(&mut random) as usize - 1, pages)
    })
}

/// Spreads neighbouring ranks over the pages, one to one if their number is a power of two.
fn scatter(rank: usize, pages: usize) -> usize {
    let bits = pages.ilog2();
    let mut page = rank.wrapping_mul(0x9E37_79B1) & (pages - 1);
    page ^= page >> (bits / 2);
    page.wrapping_mul(0x85EB_CA6B) & (pages - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_is_one_to_one() {
        let pages = 1 << 12;
        let mut seen = vec![false; pages];
        for rank in 0..pages {
            let page = scatter(rank, pages);
            assert!(!seen[page], "rank {rank} lands on {page} again");
            seen[page] = true;
        }
    }
}
