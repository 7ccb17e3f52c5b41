//! Reuse distances of pages, estimated from a sample of the keys.
//!
//! The *distance* of a get is the number of pages that were used at least as recently as the requested page, itself
//! included. A client that may hold this many pages, the most recently used ones, has the page. The distribution of
//! distances gives the client's miss-ratio curve (R. L. Mattson et al., "Evaluation techniques for storage
//! hierarchies", IBM Systems Journal 1970).
//!
//! Distances are measured by fixed-size spatial sampling: C. A. Waldspurger, N. Park, A. Garthwaite and I.
//! Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015. A key is sampled when its hash lies below a
//! threshold, and distances among sampled keys are scaled by the rate. When there are too many keys, the
//! threshold is halved. (The paper lowers it key by key; halving avoids keeping the keys sorted by hash.)
//!
//! The input is what a store sees: puts, including refused ones, and gets, including those that another tier
//! serves. A put over an existing key is a new page, not a reuse, because keys may be slots of a swap disk. A page
//! that was read is either dead or will be read again. The sampler counts both cases. In distances it weighs
//! such pages by the share that was read again.

#![forbid(unsafe_code)]

mod curve;
mod sampler;

pub use curve::{BUCKETS, Curve, bucket, bucket_pages};
pub use sampler::{SAMPLES, Sampler};
