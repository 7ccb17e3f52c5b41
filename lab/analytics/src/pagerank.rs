//! PageRank (Page, Brin, Motwani and Winograd 1999) over a graph whose degrees follow a power law.

use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::{heavy_tailed, say};

/// Edges to a vertex, on average; social graphs have some tens.
const EDGES_PER_VERTEX: usize = 16;
const DAMPING: f64 = 0.85;

/// The edges into each vertex, one vertex after the other.
struct Graph {
    /// Where each vertex's edges begin, and at last where they end.
    starts: Vec<u32>,
    sources: Vec<u32>,
    /// Edges out of each vertex.
    degrees: Vec<u32>,
}

impl Graph {
    /// A graph that takes about `bytes`.
    fn generate(bytes: usize) -> Self {
        let vertices = bytes / (EDGES_PER_VERTEX * 4 + 8);
        let mut random = SmallRng::seed_from_u64(1);
        let mut degrees = vec![0u32; vertices];
        let mut starts = Vec::with_capacity(vertices + 1);
        let mut sources = Vec::with_capacity(vertices * EDGES_PER_VERTEX);
        for vertex in 0..vertices {
            starts.push(sources.len() as u32);
            let edges = (heavy_tailed(&mut random) * EDGES_PER_VERTEX as f64) as usize;
            let left = vertices * EDGES_PER_VERTEX - sources.len();
            for _ in 0..edges.clamp(1, vertices / 16).min(left) {
                // As many edges lead from the most popular as Zipf's law with exponent 0.8 says.
                let rank = (random.random::<f64>().powi(5) * vertices as f64) as u64;
                // Popular vertices lie anywhere, not side by side.
                let source = (rank.wrapping_mul(0x9e37_79b9) + vertex as u64 % 7) % vertices as u64;
                degrees[source as usize] += 1;
                sources.push(source as u32);
            }
        }
        starts.push(sources.len() as u32);
        Self { starts, sources, degrees }
    }

    /// One iteration from `old` to `new`.
    fn iterate(&self, old: &[f64], new: &mut [f64]) {
        let vertices = new.len() as f64;
        for (edges, rank) in self.starts.windows(2).zip(new) {
            let sources = &self.sources[edges[0] as usize..edges[1] as usize];
            let share = |&source: &u32| {
                old[source as usize] / f64::from(self.degrees[source as usize].max(1))
            };
            *rank = (1.0 - DAMPING) / vertices + DAMPING * sources.iter().map(share).sum::<f64>();
        }
    }
}

/// Makes a graph of `bytes` and ranks it.
///
/// # Errors
/// Nobody reads what it says.
pub fn run(bytes: usize, iterations: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let graph = Graph::generate(bytes);
    say("load", began.elapsed().as_secs_f64(), json!(graph.sources.len()))?;
    let ranked = Instant::now();
    let vertices = graph.degrees.len();
    let mut ranks = vec![1.0 / vertices as f64; vertices];
    let mut next = vec![0.0; vertices];
    for iteration in 0..iterations {
        let from = Instant::now();
        graph.iterate(&ranks, &mut next);
        std::mem::swap(&mut ranks, &mut next);
        say("iteration", from.elapsed().as_secs_f64(), json!(iteration))?;
    }
    let most = ranks.iter().copied().fold(0.0, f64::max);
    let result = json!({ "sum": ranks.iter().sum::<f64>(), "most": most });
    say("run", ranked.elapsed().as_secs_f64(), result.clone())?;
    say("end", began.elapsed().as_secs_f64(), result)
}
