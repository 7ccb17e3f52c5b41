//! Replays traces of clients through the memory manager in virtual time, to evaluate policies.
//!
//! ```text
//! Work (phases of a program)  --Local (its own memory, LRU)-->  Trace (puts and gets, time between)
//! block trace, recording      ------------------------------->  Trace
//! Traces + Policy + Costs     --engine (Node, Manager, Sampler, virtual clocks)-->  Report
//! ```
//!
//! Manager, policies and sampler are those of production. A model with page accuracy stands for the store ([`node`]).

#![forbid(unsafe_code)]

pub mod blocks;
mod copies;
pub mod costs;
pub mod engine;
pub mod keys;
mod lines;
pub mod local;
pub mod mixes;
pub mod node;
pub mod oracle;
pub mod recorded;
pub mod report;
pub mod scenario;
pub mod trace;
pub mod work;
pub mod workloads;
