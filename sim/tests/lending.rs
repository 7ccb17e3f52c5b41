//! Hosts that lend each other memory: many worlds from seeds, and worlds with an injected bug.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use spillway_sim::lending::{InjectedBug, Options, Summary, run};

/// Default number of seeds.
const SEEDS: u64 = 2_000;
/// Number of seeds within which an injected bug must be found.
const PLANT_SEEDS: u64 = 400;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn promises_hold_whatever_breaks() {
    if let Some(seed) = number("SPILLWAY_SIM_SEED") {
        println!("{:?}", run(seed, &Options { is_traced: true, ..Options::default() }));
        return;
    }
    let seeds = number("SPILLWAY_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let sums: [AtomicU64; 7] = Default::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let Summary {
                        granted, refused, moved, recalls, loans_lost, faults, steps, ..
                    } = run(seed, &Options::default()).unwrap_or_else(|wrong| {
                        panic!("seed {seed}: {wrong} (SPILLWAY_SIM_SEED={seed} repeats it)")
                    });
                    let parts = [granted, refused, moved, recalls, loans_lost, faults, steps];
                    for (sum, part) in sums.iter().zip(parts) {
                        sum.fetch_add(part, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let [granted, refused, moved, recalls, lost, faults, steps] =
        sums.map(|sum| sum.load(Ordering::Relaxed));
    println!(
        "{seeds} seeds: {steps} steps, {granted} loans granted, {refused} refused, {recalls} recalled, \
         {lost} lost, {moved} copies moved, {faults} faults"
    );
    // Enough must happen.
    assert!(granted > 4 * seeds && moved > 4 * seeds && recalls > seeds / 10 && lost > seeds / 4);
}

#[test]
fn a_seed_does_the_same_each_time() {
    for seed in [3, 4] {
        assert_eq!(run(seed, &Options::default()), run(seed, &Options::default()));
    }
}

#[test]
fn many_hosts_keep_the_promises_too() {
    let options = Options { hosts: Some(60), ..Options::default() };
    for seed in 0..4 {
        run(seed, &options).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn each_injected_bug_is_found() {
    for bug in InjectedBug::ALL {
        let options = Options { bug: Some(bug), ..Options::default() };
        let found =
            (0..PLANT_SEEDS).find_map(|seed| run(seed, &options).err().map(|wrong| (seed, wrong)));
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{} is not found", bug.name()));
        println!("{}: seed {seed}, {wrong}", bug.name());
    }
}
