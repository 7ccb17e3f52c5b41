//! The sampler against exact distances.

use std::collections::HashSet;

use proptest::prelude::*;
use spillway_reuse::{Curve, SAMPLES, Sampler, bucket, bucket_pages};
use spillway_test_support::random::Random;

/// Spreads key numbers as a store's hash does.
fn hash(key: u64) -> u64 {
    Random::new(key).next()
}

/// The share of gets, 0 to 1, that `pages` would have served. Distances are taken as uniform within a bucket.
fn share(curve: &Curve, pages: u64) -> f64 {
    let at = bucket(pages);
    let below: f32 = curve.gets[..at].iter().sum();
    let start = if at == 0 { 0 } else { bucket_pages(at - 1) };
    let width = (bucket_pages(at) - start).max(1);
    let part = (pages - start).min(width) as f64 / width as f64;
    let weight = f64::from(curve.weight()).max(f64::MIN_POSITIVE);
    (f64::from(below) + part * f64::from(curve.gets[at])) / weight
}

/// Exact distances of a client whose gets flush the key: keys in the order of their last put.
#[derive(Default)]
struct Exact {
    order: Vec<u64>,
    curve: Curve,
}

impl Exact {
    fn put(&mut self, key: u64) {
        self.order.retain(|&other| other != key);
        self.order.push(key);
    }

    fn take(&mut self, key: u64) {
        match self.order.iter().position(|&other| other == key) {
            Some(at) => {
                let distance = self.order.len() - at;
                self.curve.gets[bucket(distance as u64)] += 1.0;
                self.order.remove(at);
            }
            None => self.curve.cold += 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u64),
    Take(u64),
    Flush(u64),
}

fn steps(keys: u64, count: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3_u8, 0..keys).prop_map(|(verb, key)| match verb {
        0 => Step::Put(key),
        1 => Step::Take(key),
        _ => Step::Flush(key),
    });
    prop::collection::vec(step, 0..count)
}

proptest! {
    /// While all keys fit, distances are exact.
    #[test]
    fn few_keys_are_counted_exactly(steps in steps(300, 12_000)) {
        let mut sampler = Sampler::default();
        let mut exact = Exact::default();
        for step in steps {
            match step {
                Step::Put(key) => {
                    sampler.put(hash(key));
                    exact.put(key);
                }
                Step::Take(key) => {
                    sampler.take(hash(key));
                    exact.take(key);
                }
                Step::Flush(key) => {
                    sampler.flush(hash(key));
                    exact.order.retain(|&other| other != key);
                }
            }
        }
        let curve = sampler.interval();
        prop_assert_eq!(curve.gets, exact.curve.gets);
        prop_assert_eq!(curve.cold, exact.curve.cold);
        prop_assert_eq!(curve.live_pages, exact.order.len() as u64);
    }

    /// Any hashes are handled, also equal and adjacent ones.
    #[test]
    fn any_hashes_do(hashes in prop::collection::vec((0..4_u8, prop_oneof![0..64_u64, any::<u64>()]), 0..9000)) {
        let mut sampler = Sampler::default();
        let mut known = HashSet::new();
        for (verb, hash) in hashes {
            match verb {
                0 | 1 => {
                    sampler.put(hash);
                    known.insert(hash);
                }
                2 => sampler.get(hash),
                _ => {
                    sampler.flush(hash);
                    known.remove(&hash);
                }
            }
        }
        let live = sampler.interval().live_pages as usize;
        prop_assert!(live <= 2 * known.len().max(8), "{live} of {}", known.len());
    }
}

/// More keys than the sampler can hold: the mean error of the curve, as the paper measures it, stays below 0.05.
#[test]
fn many_keys_are_estimated() {
    for seed in 0..8_u64 {
        let keys = 20_000 + 9_000 * seed;
        let mut sampler = Sampler::default();
        let mut exact = Curve::EMPTY;
        // Half of the gets are of random keys, the others in turn. A tree over put numbers gives exact distances.
        let mut tree = vec![0_i32; 1 << 20];
        let (mut puts, mut live) = (0_usize, 0_i32);
        let mut at = vec![usize::MAX; keys as usize];
        let mut random = seed;
        for step in 0..400_000_u64 {
            random = hash(random);
            let key = if random % 2 == 0 {
                step % (keys / 2)
            } else {
                keys / 2 + random / 2 % (keys / 2)
            };
            let place = &mut at[key as usize];
            if *place != usize::MAX {
                let mut sum = 0;
                let mut i = *place;
                while i > 0 {
                    sum += tree[i];
                    i &= i - 1;
                }
                exact.gets[bucket((live - sum) as u64)] += 1.0;
                let mut i = *place + 1;
                while i < tree.len() {
                    tree[i] -= 1;
                    i += i & i.wrapping_neg();
                }
                live -= 1;
                sampler.take(hash(key));
            }
            *place = puts;
            puts += 1;
            live += 1;
            let mut i = *place + 1;
            while i < tree.len() {
                tree[i] += 1;
                i += i & i.wrapping_neg();
            }
            sampler.put(hash(key));
        }
        let curve = sampler.interval();
        let points: Vec<u64> = (1..=50).map(|part| keys * part / 40).collect();
        let errors =
            points.iter().map(|&pages| (share(&curve, pages) - share(&exact, pages)).abs());
        let mean = errors.sum::<f64>() / points.len() as f64;
        assert!(mean < 0.05, "seed {seed}: mean error {mean:.3}");
        let live_error = (curve.live_pages as f64 / f64::from(live) - 1.0).abs();
        assert!(live_error < 0.15, "seed {seed}: live pages off by {live_error:.2}");
    }
}

/// Pages that are read repeatedly without being put again are not counted as dead.
#[test]
fn pages_that_are_read_again_are_not_dead() {
    let mut sampler = Sampler::default();
    for key in 0..1000 {
        sampler.put(hash(key));
    }
    for _ in 0..5 {
        for key in 0..1000 {
            sampler.get(hash(key));
        }
    }
    let curve = sampler.interval();
    assert!(share(&curve, 500) < 0.1 && share(&curve, 1100) > 0.9, "{:?}", share(&curve, 500));
    // Slots that are read once and then put again are dead in between.
    let mut sampler = Sampler::default();
    for round in 0..5 {
        for key in 0..1000 {
            if round > 0 {
                sampler.get(hash(key));
            }
        }
        for key in 0..1000 {
            sampler.put(hash(key));
        }
    }
    let curve = sampler.interval();
    // A read page no longer counts in the distances of others, so these fall from 1000 to 1. In the first of the four
    // rounds, a read page still counts half, because its share is unknown: distances fall from 1000 to 500.
    assert!(curve.live_pages == 1000 && share(&curve, 1023) > 0.99, "{}", curve.live_pages);
    assert!((share(&curve, 500) - 0.375).abs() < 0.02, "{}", share(&curve, 500));
}

/// A stopped sampler ignores all requests.
#[test]
fn a_stopped_sampler_learns_nothing() {
    let mut sampler = Sampler::default();
    sampler.stop();
    assert_eq!(sampler.below(), 0);
    sampler.put(0);
    sampler.get(0);
    assert_eq!(sampler.interval().weight(), 0.0);
    sampler.start();
    for key in 0..10 * SAMPLES as u64 {
        sampler.put(hash(key));
    }
    assert!(sampler.below() < u64::MAX / 8, "the threshold falls");
    sampler.forget();
    for _ in 0..20 {
        sampler.interval();
    }
    assert_eq!(sampler.below(), u64::MAX, "and rises when there are few keys");
}
