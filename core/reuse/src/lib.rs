//! How soon pages are wanted back, learned from a sample of the keys.
//!
//! The *distance* of a get is the number of pages that are wanted at least as recently as the one that it gets,
//! itself included: a client that holds so many pages of its own, the most recent ones, has it. The distribution of
//! distances is the client's miss-ratio curve (R. L. Mattson et al., "Evaluation techniques for storage
//! hierarchies", IBM Systems Journal 1970).
//!
//! Distances are taken by fixed-size spatial sampling: C. A. Waldspurger, N. Park, A. Garthwaite and I. Ahmad,
//! "Efficient MRC Construction with SHARDS", FAST 2015. A key is sampled when its hash lies below a threshold,
//! and distances among sampled keys are scaled by the rate. When there are too many keys the threshold is halved
//! (the paper lowers it key by key; by halves no key's place in the order of hashes need be kept).
//!
//! What counts is what a store sees: puts, also refused ones, and gets, also those that another tier serves. A put
//! over a key that was put before is another page, and no reuse: keys may be slots of a swap disk. A page that was
//! read back is dead, or will be read again; which of the two is counted too, and pages that were read count in
//! distances by the share of such pages that were wanted again.

#![forbid(unsafe_code)]

mod curve;
mod sampler;

pub use curve::{BUCKETS, Curve, bucket, bucket_pages};
pub use sampler::{SAMPLES, Sampler};
