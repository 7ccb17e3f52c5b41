//! usemem, as SmarTmem describes it (section IV): takes an increment of memory, walks over all that it has, writing
//! and reading, takes another, and at the most goes on walking until it is killed.

use std::time::Instant;

use anyhow::ensure;
use serde_json::json;

use crate::say;

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// Takes `step_bytes` at a time up to `most_bytes`, and walks over what it has `rounds` times in between. Pages can't be packed, so that what a store holds of them is
/// what it has room for.
///
/// # Errors
/// A page was not as written, or nobody reads what it says.
pub fn run(step_bytes: usize, most_bytes: usize, rounds: u64) -> anyhow::Result<()> {
    ensure!(
        step_bytes >= PAGE_BYTES && step_bytes <= most_bytes,
        "a step is at least a page and at most all"
    );
    let mut blocks: Vec<Vec<u64>> = Vec::new();
    let mut round = 0;
    loop {
        if (blocks.len() + 1) * step_bytes <= most_bytes {
            say("take", 0.0, json!((blocks.len() + 1) * step_bytes >> 20))?;
            blocks.push(vec![0; step_bytes / 8]);
        }
        let began = Instant::now();
        for _ in 0..rounds {
            for (number, block) in blocks.iter_mut().enumerate() {
                // The newest block has not been written yet.
                let before = (block[0] != 0).then_some(round);
                walk(block, number as u64, before, round + 1)?;
            }
            round += 1;
        }
        say("walk", began.elapsed().as_secs_f64(), json!(blocks.len() * step_bytes >> 20))?;
    }
}

/// Checks what the last round wrote to each page, and writes this round's.
fn walk(block: &mut [u64], number: u64, before: Option<u64>, round: u64) -> anyhow::Result<()> {
    for (page, words) in block.chunks_exact_mut(PAGE_WORDS).enumerate() {
        let seed = number << 32 | page as u64;
        if let Some(before) = before {
            ensure!(words[0] == mix(seed ^ before << 52), "page {page} of block {number} is wrong");
            ensure!(words[PAGE_WORDS - 1] == mix(seed ^ before << 52 ^ 511), "its end is wrong");
        }
        for (at, word) in words.iter_mut().enumerate() {
            *word = mix(seed ^ round << 52 ^ at as u64);
        }
    }
    Ok(())
}

/// splitmix64's finaliser.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
