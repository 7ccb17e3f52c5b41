//! The value of pages to a client, for [`crate::utility`]: the share of its gets that they serve, and the rate that
//! follows.

use spillway_reuse::{BUCKETS, Curve, bucket_pages};

use crate::hull::hull;

/// The share of a client's gets that pages serve: points (pages, share) on a hull, the first at no pages.
pub(crate) struct Served(pub Vec<(u64, f64)>);

impl Served {
    /// The share by a client's curve. Without a curve, no pages serve anything.
    pub fn of(curve: Option<&Curve>) -> Self {
        let mut points = vec![(0, 0.0)];
        let Some(curve) = curve else { return Self(points) };
        let weight = f64::from(curve.weight());
        let mut sum = 0.0;
        let known = (0..BUCKETS).filter(|&at| curve.gets[at] > 0.0).map(|at| {
            sum += f64::from(curve.gets[at]);
            (bucket_pages(at), sum / weight)
        });
        let (mut pages, mut share) = (0, 0.0);
        for segment in hull(known) {
            // Points between the corners of the hull, because the rate is not linear between them.
            for part in 1..=4 {
                let more = segment.pages * part / 4;
                points.push((pages + more, share + segment.slope * more as f64));
            }
            pages += segment.pages;
            share += segment.slope * segment.pages as f64;
        }
        Self(points)
    }

    /// The share that this many pages serve.
    pub fn at(&self, pages: f64) -> f64 {
        let next = self.0.partition_point(|it| (it.0 as f64) < pages);
        let before = next.checked_sub(1).map(|at| self.0[at]);
        match (before, self.0.get(next)) {
            (Some((from, low)), Some(&(to, high))) => {
                low + (high - low) * (pages - from as f64) / (to - from).max(1) as f64
            }
            (Some((_, share)), None) | (None, Some(&(_, share))) => share,
            (None, None) => 0.0,
        }
    }

    /// The fewest pages that serve a share.
    pub fn pages_for(&self, share: f64) -> f64 {
        let next = self.0.partition_point(|it| it.1 < share);
        match (next.checked_sub(1).map(|at| self.0[at]), self.0.get(next)) {
            (Some((from, low)), Some(&(to, high))) => {
                from as f64 + (to - from) as f64 * (share - low) / (high - low).max(f64::EPSILON)
            }
            (Some((pages, _)), None) => pages as f64,
            (None, _) => 0.0,
        }
    }
}

/// Points (pages, rate), the first at no pages.
pub(crate) struct Rates(pub Vec<(u64, f64)>);

impl Rates {
    /// The rate with this many pages.
    pub fn at(&self, pages: u64) -> f64 {
        let next = self.0.partition_point(|it| it.0 < pages);
        match (next.checked_sub(1).map(|at| self.0[at]), self.0.get(next)) {
            (Some((from, low)), Some(&(to, high))) => {
                low + (high - low) * (pages - from) as f64 / (to - from).max(1) as f64
            }
            (Some((_, rate)), None) | (None, Some(&(_, rate))) => rate,
            (None, None) => 1.0,
        }
    }

    /// The fewest pages with the highest known rate.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |it| it.0)
    }

    /// The points up to this many pages.
    pub fn up_to(&self, pages: u64) -> impl Iterator<Item = (u64, f64)> {
        let end = pages.min(self.end());
        let below = self.0.iter().copied().take_while(move |it| it.0 < end);
        below.chain([(end, self.at(end))])
    }
}
