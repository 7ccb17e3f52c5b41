//! A distribution of distances.

/// Number of buckets of distances, four for each octave.
pub const BUCKETS: usize = 128;
const STEPS: u64 = 4;

/// The bucket of a distance, pages. Below 8 pages, a bucket holds one distance; a later one spans up to a quarter of
/// its smallest distance. The last bucket holds all larger distances.
#[inline]
pub const fn bucket(distance_pages: u64) -> usize {
    if distance_pages < 2 * STEPS {
        return distance_pages as usize;
    }
    let octave = distance_pages.ilog2();
    let step = (distance_pages >> (octave - 2)) & (STEPS - 1);
    let at = ((octave as u64 - 1) * STEPS + step) as usize;
    if at < BUCKETS { at } else { BUCKETS - 1 }
}

/// The largest distance of a bucket, pages.
pub const fn bucket_pages(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let (octave, step) = (bucket / STEPS + 1, bucket % STEPS);
    ((STEPS + step + 1) << (octave - 2)) - 1
}

/// The distribution of a client's recent gets over distances: how many gets a given number of pages would have served.
#[derive(Clone, Copy, Debug)]
pub struct Curve {
    /// Gets by the bucket of their distance. Older ones weigh less.
    pub gets: [f32; BUCKETS],
    /// Gets of unknown keys.
    pub cold: f32,
    /// Pages that the client has put and may read again.
    pub live_pages: u64,
}

impl Curve {
    /// The curve of a client without gets.
    pub const EMPTY: Self = Self { gets: [0.0; BUCKETS], cold: 0.0, live_pages: 0 };

    /// The weight of all gets, those of unknown keys included.
    pub fn weight(&self) -> f32 {
        self.gets.iter().sum::<f32>() + self.cold
    }
}

impl Default for Curve {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distance_has_a_bucket_that_reaches_it() {
        for distance in (0..5000).chain((5..31).map(|bit| 1 << bit)) {
            let at = bucket(distance);
            assert!(bucket_pages(at) >= distance, "{distance} in {at}");
            assert!(at == 0 || bucket_pages(at - 1) < distance, "{distance} in {at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
