//! Scenarios drawn at random, on which no policy was tuned.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::costs::Costs;
use crate::keys::Keys;
use crate::scenario::Scenario;
use crate::work::{Phase, Work};

/// The number of mixes.
pub const MIXES: u64 = 14;

/// The mixes: 2 to 8 clients each. Programs, sizes, start times, keys and disks are drawn from a seed.
pub fn mixes() -> Vec<Scenario> {
    (1..=MIXES).map(mix).collect()
}

fn mix(number: u64) -> Scenario {
    let mut random = SmallRng::seed_from_u64(0x5eed_0000 + number);
    let count = random.random_range(2..=8_u32);
    let disk_us = [150, 500, 1000, 3000][random.random_range(0..4)];
    let works: Vec<_> = (1..=count).map(|client| work(client, &mut random)).collect();
    // Memory for a part of the pages beyond the clients' own memory.
    let far: u64 = works.iter().map(|work| u64::from(far_pages(work))).sum();
    let percent = random.random_range(30..=90_u64);
    Scenario {
        name: format!("mix{number}"),
        about: format!(
            "{count} clients, memory for {percent} % of their far pages, a disk of {disk_us} us"
        ),
        total_pages: (far * percent / 100).max(1024),
        costs: Costs::with_disk(disk_us),
        works,
    }
}

fn work(client: u32, random: &mut SmallRng) -> Work {
    let pages = random.random_range(2000..=16_000_u32);
    let local_pages = pages * random.random_range(15..=60) / 100;
    let think_us = [10, 20, 40, 100][random.random_range(0..4)];
    let keys = [Keys::Pages, Keys::Frontswap, Keys::Slots][random.random_range(0..3)];
    // About 30 s of computing.
    let touches = 30_000_000 / think_us;
    let skew = f64::from(random.random_range(0..=10_u32)) / 10.0;
    let zipf = |pages, touches| Phase::Zipf { start: 0, pages, skew, touches, writes: 30 };
    let mut phases = Vec::new();
    if random.random_range(0..3) == 0 {
        phases.extend([Phase::Idle { ms: random.random_range(1..60_000) }, Phase::Shift]);
    }
    phases.push(Phase::Fill { start: 0, pages });
    let kind = random.random_range(0..6);
    phases.extend(match kind {
        0 => vec![zipf(pages, touches)],
        1 => vec![Phase::Scan { start: 0, pages, passes: touches / pages, writes: 20 }],
        2 => {
            let passes = touches / pages * 2 / 3;
            let others = pages / 3;
            vec![Phase::Join {
                start: 0,
                pages: pages - others,
                passes,
                others_start: pages - others,
                others,
            }]
        }
        3 => vec![
            zipf(pages, touches / 2),
            Phase::Idle { ms: random.random_range(20_000..90_000) },
            Phase::Shift,
            zipf(pages, touches / 2),
        ],
        4 => vec![
            zipf(pages, touches / 3),
            Phase::Shift,
            zipf(pages / 2, touches / 3),
            Phase::Shift,
            zipf(pages, touches / 3),
        ],
        _ => vec![
            zipf(pages, touches / 2),
            Phase::Restart,
            Phase::Fill { start: 0, pages: pages / 2 },
            zipf(pages / 2, touches / 2),
        ],
    });
    let names = ["service", "scan", "graph", "sleeper", "phases", "restart"];
    let name = format!("{}{client}", names[kind]);
    Work { name, local_pages, keys, think_ns: think_us * 1000, phases }
}

/// Pages that a program touches beyond its own memory.
fn far_pages(work: &Work) -> u32 {
    let end = work.phases.iter().map(|phase| match *phase {
        Phase::Fill { start, pages } => start + pages,
        _ => 0,
    });
    end.max().unwrap_or(0).saturating_sub(work.local_pages)
}
