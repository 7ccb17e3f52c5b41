//! The hit fraction over the cache's capacity, for one LRU list and the whole trace.

use std::collections::HashMap;

use anyhow::Result;
use serde::Serialize;

use super::pages::{Request, Requests, Trace, keys_of};

/// memcached's slab classes: the first, the growth factor between classes, and the bytes before each value.
const FIRST_CLASS_BYTES: f64 = 96.0;
const CLASS_GROWTH: f64 = 1.25;
const ITEM_BYTES: usize = 64;
/// The paper's capacities, of which the largest exceed 6 GB.
const CAPACITIES_GIB: [f64; 11] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 5.5, 6.0, 7.0];

/// The hit fraction at some capacities.
#[derive(Debug, Serialize)]
pub struct HitCurve {
    /// Requests of the trace.
    pub requests: u64,
    /// Gets among these.
    pub gets: u64,
    /// Keys that occurred.
    pub unique_keys: u64,
    /// Mean bytes of their values.
    pub mean_bytes: f64,
    /// Capacity in GiB at full scale, and the fraction of the gets that hit.
    pub points: Vec<(f64, f64)>,
}

/// Sums over positions. Updates and sums take logarithmic time (a Fenwick tree).
struct Sums(Vec<i64>);

impl Sums {
    fn add(&mut self, position: usize, bytes: i64) {
        let mut at = position + 1;
        while at < self.0.len() {
            self.0[at] += bytes;
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all positions below this one.
    fn below(&self, position: usize) -> i64 {
        let (mut at, mut sum) = (position, 0);
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

/// Memory that a value takes in memcached, bytes.
fn chunk_bytes(length: usize) -> i64 {
    let needed = (length + ITEM_BYTES) as f64;
    let steps = (needed / FIRST_CLASS_BYTES).max(1.0).ln() / CLASS_GROWTH.ln();
    (FIRST_CLASS_BYTES * CLASS_GROWTH.powf(steps.ceil())) as i64
}

/// Computes the curve. A value hits in every cache that can hold all values requested since its own last request.
///
/// # Errors
/// The trace's options are invalid.
pub fn hit_curve(trace: &Trace) -> Result<HitCurve> {
    let trace = trace.checked()?;
    let mut streams = (0..trace.connections)
        .map(|it| Ok((keys_of(&trace, it), Requests::new(&trace, it)?)))
        .collect::<Result<Vec<_>>>()?;
    let requests = trace.requests_of_connection() * trace.connections;
    let mut sums = Sums(vec![0; requests as usize + 1]);
    let mut last_position = HashMap::new();
    let (mut gets, mut bytes, mut held) = (0, 0, 0_i64);
    let mut hits = [0_u64; CAPACITIES_GIB.len()];
    for position in 0..requests as usize {
        let (keys, stream) = &mut streams[position % trace.connections as usize];
        let request = stream.next().expect("streams have no end");
        let key = keys[request.rank()];
        let (length, is_get) = (trace.length_of(key), matches!(request, Request::Get { .. }));
        let chunk = chunk_bytes(length);
        gets += u64::from(is_get);
        if let Some(last) = last_position.insert(key, position) {
            let distance = held - sums.below(last);
            sums.add(last, -chunk);
            let reached = CAPACITIES_GIB.map(|gib| distance as f64 <= gib * trace.scale * GIB);
            hits.iter_mut().zip(reached).for_each(|(hits, hit)| *hits += u64::from(hit && is_get));
        } else {
            held += chunk;
            bytes += length;
        }
        sums.add(position, chunk);
    }
    let points =
        CAPACITIES_GIB.iter().zip(hits).map(|(gib, hits)| (*gib, hits as f64 / gets as f64));
    let unique_keys = last_position.len() as u64;
    let mean_bytes = bytes as f64 / unique_keys as f64;
    Ok(HitCurve { requests, gets, unique_keys, mean_bytes, points: points.collect() })
}

const GIB: f64 = (1_u64 << 30) as f64;

#[cfg(test)]
mod tests {
    use super::super::pages::TEST;
    use super::*;

    #[test]
    fn sums_are_those_of_a_plain_loop() {
        let mut sums = Sums(vec![0; 101]);
        let bytes: Vec<i64> = (0..100).map(|it| it * 37 % 11).collect();
        bytes.iter().enumerate().for_each(|(position, bytes)| sums.add(position, *bytes));
        for position in 0..=100 {
            assert_eq!(sums.below(position), bytes[..position].iter().sum::<i64>(), "{position}");
        }
    }

    #[test]
    fn values_fit_their_chunks_with_a_fifth_to_spare_at_most() {
        for length in [64, 1000, 3882, 6400, 400_000] {
            let (chunk, needed) = (chunk_bytes(length) as f64, (length + ITEM_BYTES) as f64);
            assert!(chunk >= needed - 1.0 && chunk <= needed * 1.26, "{length}: {chunk}");
        }
    }

    #[test]
    fn the_curve_ends_where_the_paper_says_that_it_is_at_6_gb() {
        let curve = hit_curve(&TEST).unwrap();
        assert!(curve.points.is_sorted_by(|a, b| a.1 <= b.1), "{:?}", curve.points);
        let at = |gib| curve.points.iter().find(|point| point.0 == gib).unwrap().1;
        // A median of 1 ms, with a miss of 10 ms and a hit of 0.1 ms, is reached at 6 GB and not below.
        assert!((at(6.0) - 0.909).abs() < 0.005, "{:?}", curve.points);
        assert!(at(3.0) < 0.9, "{:?}", curve.points);
        let came_up = curve.unique_keys as f64 / (809_272.0 * TEST.scale);
        assert!((came_up - 1.0).abs() < 0.03, "{} keys came up", curve.unique_keys);
    }

    #[test]
    fn the_curve_is_the_same_each_time() {
        let small = Trace { scale: 1.0 / 256.0, ..TEST };
        assert_eq!(hit_curve(&small).unwrap().points, hit_curve(&small).unwrap().points);
    }
}
