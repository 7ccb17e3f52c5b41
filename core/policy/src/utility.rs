//! utility, first cut.

use spillway_reuse::{BUCKETS, Curve, bucket_pages};

use crate::hull::{Segment, hull, share};
use crate::{Outcome, Sample};

/// The policy utility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utility {
    /// What a get that finds nothing costs its client, µs: a read from its disk.
    pub miss_us: u32,
    /// Length of an interval, µs.
    pub interval_us: u64,
}

impl Default for Utility {
    fn default() -> Self {
        Self { miss_us: 500, interval_us: 1_000_000 }
    }
}

/// What is kept of a client from one interval to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    hits: f64,
    misses: f64,
    puts: f64,
    returned: f64,
    put_ever: f64,
    credit: f64,
}

const KEPT: f64 = 0.8;
const PREMIUM: f64 = 3.0;
const HIT_US: f64 = 10.0;
const BUSY_MAX: f64 = 0.98;
const HELD: f64 = 1.15;

impl Utility {
    pub(crate) fn outcomes(&self, total_pages: u64, clients: &[Sample<'_>]) -> Vec<Outcome> {
        let weights: f64 = clients.iter().map(|it| f64::from(it.weight)).sum();
        let fair = |it: &Sample<'_>| (total_pages as f64 * f64::from(it.weight) / weights) as u64;
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut hulls = Vec::new();
        for client in clients {
            let standing = note(client);
            hulls.push(self.hull(client, &standing, fair(client)));
            outcomes.push(Outcome { target_pages: 0, standing });
        }
        // Floors first.
        let floors: Vec<u64> =
            clients.iter().map(|it| it.floor_pages.min(it.cap_pages)).collect();
        let floors = scale(total_pages, &floors);
        let left = total_pages - floors.iter().sum::<u64>();
        let hulls: Vec<_> = (hulls.into_iter().zip(&floors).zip(clients))
            .map(|((hull, &floor), client)| window(&hull, floor, client.cap_pages))
            .collect();
        let mut targets = share(left, &hulls);
        for (target, floor) in targets.iter_mut().zip(&floors) {
            *target += floor;
        }
        // What nobody has a use for: first to those who were refused, then to all.
        spread(total_pages, clients, &mut targets, |it| it.puts_refused > 0);
        spread(total_pages, clients, &mut targets, |_| true);
        for (outcome, target) in outcomes.iter_mut().zip(targets) {
            outcome.target_pages = target;
        }
        outcomes
    }

    fn hull(&self, client: &Sample<'_>, standing: &Standing, fair: u64) -> Vec<Segment> {
        let curve = client.curve.copied().unwrap_or(Curve::EMPTY);
        let live = curve.live_pages.max(client.used_pages).max(1);
        let gets = standing.hits + standing.misses;
        let weight = f64::from(curve.weight());
        let mut points: Vec<(u64, f64)> = Vec::with_capacity(BUCKETS + 1);
        let mut sum = 0.0;
        for at in 0..BUCKETS {
            if curve.gets[at] > 0.0 {
                sum += f64::from(curve.gets[at]);
                points.push((bucket_pages(at), gets * sum / weight));
            }
        }
        let returns = (standing.returned + fair as f64) / (standing.put_ever + fair as f64);
        let hoped = standing.puts * returns.min(1.0);
        let hoped_pages = live.min(fair);
        let mut hoped_points = vec![(hoped_pages, hoped * hoped_pages as f64 / live as f64)];
        hoped_points.extend(points.iter().copied());
        hoped_points.sort_by_key(|it| it.0);
        let busy_us = standing.misses * f64::from(self.miss_us) + standing.hits * HIT_US;
        let computing = 1.0 - (busy_us / self.interval_us as f64).min(BUSY_MAX);
        let factor = f64::from(client.weight) / computing;
        let mut segments = hull(hoped_points);
        // Fair share.
        let mut priced = Vec::with_capacity(segments.len() + 2);
        let mut at = 0;
        for segment in &mut segments {
            let mut rest = segment.pages;
            while rest > 0 {
                let held = client.target_pages.unwrap_or(0).min(live);
                let edges = [fair, held];
                let next = edges.iter().filter(|&&edge| edge > at).min().copied();
                let pages = next.map_or(rest, |edge| rest.min(edge - at));
                let premium = if at < fair { 1.0 + PREMIUM } else { 1.0 };
                let kept = if at < held { HELD } else { 1.0 };
                priced.push(Segment { pages, slope: segment.slope * factor * premium * kept });
                at += pages;
                rest -= pages;
            }
        }
        priced
    }
}

/// What is to be kept.
fn note(client: &Sample<'_>) -> Standing {
    let was = client.standing;
    let new = 1.0 - KEPT;
    Standing {
        hits: was.hits * KEPT + client.hits as f64 * new,
        misses: was.misses * KEPT + client.misses as f64 * new,
        puts: was.puts * KEPT + client.puts as f64 * new,
        returned: was.returned * 0.99 + (client.hits + client.misses) as f64,
        put_ever: was.put_ever * 0.99 + client.puts as f64,
        credit: 0.0,
    }
}

/// Cuts floors in proportion where their sum is beyond the node.
fn scale(total_pages: u64, floors: &[u64]) -> Vec<u64> {
    let sum: u128 = floors.iter().map(|&floor| u128::from(floor)).sum();
    if sum <= u128::from(total_pages) {
        return floors.to_vec();
    }
    let part = |&floor: &u64| (u128::from(floor) * u128::from(total_pages) / sum) as u64;
    floors.iter().map(part).collect()
}

/// The part of a hull between a floor and a cap.
fn window(hull: &[Segment], floor: u64, cap: u64) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(hull.len());
    let mut at = 0;
    for segment in hull {
        let (start, end) = (at.max(floor), (at + segment.pages).min(cap));
        if end > start {
            segments.push(Segment { pages: end - start, slope: segment.slope });
        }
        at += segment.pages;
    }
    segments
}

/// Gives what is left to some clients, up to their caps.
fn spread(
    total_pages: u64,
    clients: &[Sample<'_>],
    targets: &mut [u64],
    who: impl Fn(&Sample<'_>) -> bool,
) {
    let mut left = total_pages - targets.iter().sum::<u64>();
    loop {
        let open: Vec<_> = (0..clients.len())
            .filter(|&at| who(&clients[at]) && targets[at] < clients[at].cap_pages)
            .collect();
        let weights: u64 = open.iter().map(|&at| u64::from(clients[at].weight)).sum();
        let Some(unit) = left.checked_div(weights).filter(|&unit| unit > 0) else { return };
        for at in open {
            let room = clients[at].cap_pages - targets[at];
            let more = (unit * u64::from(clients[at].weight)).min(room);
            targets[at] += more;
            left -= more;
        }
    }
}
