//! Many worlds from seeds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Default number of seeds.
const SEEDS: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn promises_hold_whatever_breaks() {
    if let Some(seed) = number("SPILLWAY_SIM_SEED") {
        let report = spillway_sim::run(seed);
        println!("seed {seed}: {report:?}");
        assert!(report.is_ok());
        return;
    }
    let seeds = number("SPILLWAY_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let (answered, failed, faults, emptied) = Default::default();
    let sums: [&AtomicU64; 4] = [&answered, &failed, &faults, &emptied];
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let report = spillway_sim::run(seed).unwrap_or_else(|wrong| {
                        panic!("seed {seed}: {wrong} (SPILLWAY_SIM_SEED={seed} repeats it)")
                    });
                    let parts = [report.answered, report.failed, report.faults, report.emptied];
                    for (sum, part) in sums.iter().zip(parts) {
                        sum.fetch_add(part, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let [answered, failed, faults, emptied] = sums.map(|sum| sum.load(Ordering::Relaxed));
    println!(
        "{seeds} seeds: {answered} operations answered, {failed} failed, {faults} faults, \
         {emptied} stores lost"
    );
    // The faults have effects, yet most operations are answered.
    assert!(failed > seeds / 10 && answered > 300 * seeds && emptied > seeds / 10);
}

#[test]
fn a_seed_does_the_same_each_time() {
    for seed in [3, 4] {
        assert_eq!(spillway_sim::run(seed), spillway_sim::run(seed));
    }
}
