//! The cost of sealing a page, compared with copying it.

use std::hint::black_box;
use std::time::Instant;

use spillway_fanout::Page;
use spillway_fanout::seal::Cipher;

use super::BENCH;
use crate::rows::{Row, median};
use crate::{by_size, rounds};

/// Pages of a round: more than the caches hold.
const PAGES: usize = 16 << 10;
const PAGES_CI: usize = 1 << 10;

/// Measures both sides alternately.
pub fn run() -> anyhow::Result<Row> {
    let cipher = Cipher::fresh()?;
    let count = by_size(PAGES, PAGES_CI);
    let mut pages = vec![Page([1; 4096]); count];
    let mut room = Page([0; 4096]);
    let (mut sealed, mut copied) = (Vec::new(), Vec::new());
    for _ in 0..rounds()? {
        let began = Instant::now();
        for (number, page) in (0..).zip(&mut pages) {
            black_box(cipher.seal(number, page));
        }
        sealed.push(count as f64 / began.elapsed().as_secs_f64() / 1e3);
        let began = Instant::now();
        for page in &pages {
            room.0.copy_from_slice(black_box(&page.0));
            black_box(&mut room);
        }
        copied.push(count as f64 / began.elapsed().as_secs_f64() / 1e3);
    }
    let (ours, other) = (median(sealed), median(copied));
    Ok(Row::new(BENCH, "sealing", "kpages/s", ours, ("memcpy", other)))
}
