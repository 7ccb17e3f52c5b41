//! An oracle that knows each client's future requests.
//!
//! It knows the exact reuse distances of a trace's gets and which pages will be used again. It divides the node so that
//! the clients make the most progress in the next seconds.

use spillway_manager::hull::{Segment, hull, share};
use spillway_reuse::{BUCKETS, bucket, bucket_pages};

use crate::costs::{Costs, Terms};
use crate::trace::{Step, Trace};

/// A client's own time (computing or sleeping) between two marks, ns.
const MARK_NS: u64 = 250_000_000;
/// How many marks it looks ahead.
const AHEAD: usize = 16;
/// How many seconds it looks ahead.
const AHEAD_S: f64 = AHEAD as f64 * MARK_NS as f64 / 1e9;

/// A trace's future requests.
#[derive(Clone, Debug)]
pub struct Future {
    /// The event at which each mark lies.
    marks: Vec<usize>,
    /// Gets by the bucket of their reuse distance, cumulative up to each mark.
    gets: Vec<[u32; BUCKETS]>,
}

impl Future {
    /// Analyses a trace.
    pub fn of(trace: &Trace) -> Self {
        let wanted = wanted_again(trace);
        let mut order = Order::new(trace.keys as usize);
        let mut gets = [0; BUCKETS];
        let mut future = Self { marks: Vec::new(), gets: Vec::new() };
        let mut own_ns = 0;
        for (at, event) in trace.events.iter().enumerate() {
            own_ns += u64::from(event.think_ns);
            if let Step::Sleep(ms) = event.step() {
                own_ns += u64::from(ms) * 1_000_000;
            }
            while future.marks.len() as u64 * MARK_NS <= own_ns {
                future.marks.push(at);
                future.gets.push(gets);
            }
            match event.step() {
                Step::Put(key) => order.touch(key, wanted[at]),
                Step::Get(key) | Step::Take(key) | Step::Read(key) => {
                    if let Some(distance) = order.distance(key) {
                        gets[bucket(distance)] += 1;
                    }
                    order.touch(key, wanted[at]);
                }
                Step::Flush(key) => order.touch(key, false),
                Step::Exit => order.clear(),
                Step::Leave(_) | Step::Sleep(_) | Step::Shift => {}
            }
        }
        future.marks.push(trace.events.len());
        future.gets.push(gets);
        future
    }

    /// Gets of the next seconds, by the bucket of their reuse distance.
    pub(crate) fn soon(&self, at: usize) -> [u32; BUCKETS] {
        let first = self.marks.partition_point(|&mark| mark < at).min(self.marks.len() - 1);
        let last = (first + AHEAD).min(self.marks.len() - 1);
        core::array::from_fn(|bucket| self.gets[last][bucket] - self.gets[first][bucket])
    }
}

/// For each event, whether the next event of its key is a get.
fn wanted_again(trace: &Trace) -> Vec<bool> {
    let mut next = vec![false; trace.keys as usize];
    let mut wanted = vec![false; trace.events.len()];
    for (at, event) in trace.events.iter().enumerate().rev() {
        match event.step() {
            Step::Put(key) | Step::Flush(key) => {
                wanted[at] = core::mem::replace(&mut next[key as usize], false);
            }
            Step::Get(key) | Step::Read(key) => {
                wanted[at] = core::mem::replace(&mut next[key as usize], true)
            }
            // A take also flushes the key.
            Step::Take(key) => next[key as usize] = true,
            Step::Exit => next.fill(false),
            Step::Leave(_) | Step::Sleep(_) | Step::Shift => {}
        }
    }
    wanted
}

/// Keys in the order of their last use. A Fenwick tree counts them over positions, which are renumbered when used up.
#[derive(Debug)]
struct Order {
    place: Vec<u32>,
    key: Vec<u32>,
    counts: Vec<u32>,
    next: usize,
    live: u32,
}

const NONE: u32 = u32::MAX;

impl Order {
    fn new(keys: usize) -> Self {
        let places = (2 * keys).max(2);
        Self {
            place: vec![NONE; keys],
            key: vec![NONE; places],
            counts: vec![0; places + 1],
            next: 0,
            live: 0,
        }
    }

    fn clear(&mut self) {
        self.place.fill(NONE);
        self.key.fill(NONE);
        self.counts.fill(0);
        (self.next, self.live) = (0, 0);
    }

    fn distance(&self, key: u32) -> Option<u64> {
        let place = self.place[key as usize];
        (place != NONE).then(|| {
            let (mut at, mut before) = (place as usize, 0);
            while at > 0 {
                before += self.counts[at];
                at &= at - 1;
            }
            u64::from(self.live - before)
        })
    }

    fn touch(&mut self, key: u32, wanted: bool) {
        let place = core::mem::replace(&mut self.place[key as usize], NONE);
        if place != NONE {
            self.key[place as usize] = NONE;
            self.add(place as usize, u32::MAX);
            self.live -= 1;
        }
        if !wanted {
            return;
        }
        if self.next == self.key.len() {
            self.renumber();
        }
        self.place[key as usize] = self.next as u32;
        self.key[self.next] = key;
        self.add(self.next, 1);
        self.next += 1;
        self.live += 1;
    }

    fn renumber(&mut self) {
        self.counts.fill(0);
        self.next = 0;
        for place in 0..self.key.len() {
            let key = core::mem::replace(&mut self.key[place], NONE);
            if key != NONE {
                self.key[self.next] = key;
                self.place[key as usize] = self.next as u32;
                self.add(self.next, 1);
                self.next += 1;
            }
        }
    }

    fn add(&mut self, place: usize, count: u32) {
        let mut at = place + 1;
        while at < self.counts.len() {
            self.counts[at] = self.counts[at].wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }
}

/// The clients' progress in the next seconds, as a function of their pages.
#[derive(Debug)]
pub(crate) struct Shares {
    total_pages: u64,
    /// For each client its rate of progress at some numbers of pages; 1 with enough memory.
    rates: Vec<Vec<(u64, f64)>>,
}

impl Shares {
    pub(crate) fn new(total_pages: u64, costs: &Costs, soon: Vec<[u32; BUCKETS]>) -> Self {
        Self { total_pages, rates: soon.iter().map(|gets| rates(costs, gets)).collect() }
    }

    /// The shares with the most progress, for clients that hold `used_pages`. The pages that they would have to read
    /// again count against a change. Pages that no client needs are divided equally.
    pub(crate) fn best(&self, terms: &[Terms], used_pages: &[u64]) -> Vec<u64> {
        let hulls: Vec<_> = (self.rates.iter().zip(used_pages))
            .map(|(rates, &used)| {
                let start = rates[0].1;
                let mut at = 0;
                let price = |Segment { pages, slope }: Segment| {
                    let held = used.saturating_sub(at).min(pages) as f64 / pages as f64;
                    at += pages;
                    Segment { pages, slope: slope * (1.0 + held) }
                };
                let points = rates.iter().map(|&(pages, rate)| (pages, rate - start));
                hull(points).into_iter().map(price).collect()
            })
            .collect();
        let mut best = share(self.total_pages, &hulls);
        let left = self.total_pages - best.iter().sum::<u64>();
        let each = left / best.len().max(1) as u64;
        for (share, its) in best.iter_mut().zip(terms) {
            *share = (*share + each).min(its.cap_pages);
        }
        best
    }

    /// The progress with these shares, as a part of the best: of the difference that memory makes.
    pub(crate) fn part_of_best(&self, shares: &[u64]) -> f64 {
        let start: f64 = self.rates.iter().map(|rates| rates[0].1).sum();
        let sum = |shares: &[u64]| -> f64 {
            self.rates.iter().zip(shares).map(|(rates, &pages)| at(rates, pages)).sum()
        };
        let none = vec![0; shares.len()];
        let best = self.best(&vec![Terms::default(); shares.len()], &none);
        let most = sum(&best).max(sum(shares));
        if most - start > 1e-9 { (sum(shares) - start) / (most - start) } else { 1.0 }
    }
}

/// The rates of a client with these gets: at the corners of its curve's hull, and between them.
fn rates(costs: &Costs, gets: &[u32; BUCKETS]) -> Vec<(u64, f64)> {
    let all = gets.iter().sum::<u32>();
    let rate = |served: f64| {
        let missed = f64::from(all) - served;
        let wait_ns = served * costs.hit_ns as f64 + missed * costs.disk_read_ns as f64;
        1.0 / (1.0 + wait_ns / (AHEAD_S * 1e9))
    };
    let mut sum = 0.0;
    let known = (0..BUCKETS).filter(|&at| gets[at] > 0).map(|at| {
        sum += f64::from(gets[at]);
        (bucket_pages(at), sum)
    });
    let mut points = vec![(0, rate(0.0))];
    let (mut pages, mut served) = (0, 0.0);
    for segment in hull(known) {
        for part in 1..=4 {
            let more = segment.pages * part / 4;
            points.push((pages + more, rate(served + segment.slope * more as f64)));
        }
        pages += segment.pages;
        served += segment.slope * segment.pages as f64;
    }
    points
}

fn at(rates: &[(u64, f64)], pages: u64) -> f64 {
    let next = rates.partition_point(|it| it.0 < pages);
    match (next.checked_sub(1).map(|at| rates[at]), rates.get(next)) {
        (Some((from, low)), Some(&(to, high))) => {
            low + (high - low) * (pages - from) as f64 / (to - from).max(1) as f64
        }
        (Some((_, rate)), None) | (None, Some(&(_, rate))) => rate,
        (None, None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Event;

    #[test]
    fn distances_count_pages_that_are_wanted_again() {
        // Key 1 is put and never got, so it does not count.
        let steps = [
            Step::Put(0),
            Step::Put(1),
            Step::Put(2),
            Step::Get(0),
            Step::Get(2),
            Step::Put(3),
            Step::Take(3),
            Step::Get(0),
        ];
        let events = steps.map(|step| Event::new(1000, step)).to_vec();
        let trace = Trace { name: "a".into(), events, keys: 4, ..Trace::default() };
        let soon = Future::of(&trace).soon(0);
        let mut expected = [0; BUCKETS];
        // 0 with 2 after it; 2 with 0 after it; 3 alone; 0 again, followed by no key that is still needed.
        expected[bucket(2)] = 2;
        expected[bucket(1)] = 2;
        assert_eq!(soon, expected);
        assert_eq!(Future::of(&trace).soon(8), [0; BUCKETS]);
    }

    #[test]
    fn the_best_shares_are_the_measure() {
        let costs = Costs::with_disk(1000);
        let mut gets = [0; BUCKETS];
        gets[bucket(100)] = 40_000;
        let shares = Shares::new(150, &costs, vec![gets; 2]);
        let terms = [Terms::default(); 2];
        // With half each, both would wait almost all the time. So one gets all that it needs, and the other the rest.
        let best = shares.best(&terms, &[0, 60]);
        assert_eq!(best, [39, 111], "a bucket reaches to 111");
        assert!(shares.part_of_best(&[111, 39]) > 0.99);
        // (0.247 + 0.247 - 0.182) of (0.909 + 0.137 - 0.182), between points at quarters.
        assert!((shares.part_of_best(&[75, 75]) - 0.36).abs() < 0.01);
        assert_eq!(Shares::new(10, &costs, vec![[0; BUCKETS]]).part_of_best(&[0]), 1.0);
    }
}
