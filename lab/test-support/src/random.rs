//! Reproducible random numbers and bytes, so that a failure can be repeated.

/// SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", 2014). Implemented
/// here, so that a seed keeps its meaning when crates are updated.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers from `seed`. The numbers of neighbouring seeds are independent.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `times` on average.
    pub const fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Fills `bytes` with incompressible data, different for each seed.
pub fn fill(bytes: &mut [u8], seed: impl Into<u64>) {
    let mut random = Random::new(seed.into());
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
    }
}

/// This many incompressible bytes, different for each seed.
pub fn noise(seed: impl Into<u64>, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut bytes, seed);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper() {
        // The reference implementation's first numbers for the seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn noise_follows_from_its_seed_and_length_only_cuts_it() {
        assert_eq!(noise(3_u32, 1000), noise(3_u64, 1000));
        assert_eq!(noise(3_u32, 1000)[..77], noise(3_u32, 77));
        assert_ne!(noise(3_u32, 77), noise(4_u32, 77));
    }
}
