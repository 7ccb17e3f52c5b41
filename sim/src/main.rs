//! `cargo xtask sim lending`: the lending state machines on virtual hosts, over many seeds, on all cores.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use spillway_sim::lending::{
    InjectedBug, Options, Placement, Violation, placement, run as run_world,
};

/// Most violations that are printed.
const PRINTED_MAX: usize = 20;

/// Runs state machines on virtual hosts, over many seeds.
#[derive(Parser)]
#[command(name = "cargo xtask sim")]
struct Arguments {
    #[command(subcommand)]
    simulation: Simulation,
}

/// The simulations.
#[derive(Subcommand)]
enum Simulation {
    /// Hosts that lend each other memory.
    Lending(Lending),
}

/// Options of the lending simulation.
#[derive(Args)]
struct Lending {
    /// Number of seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// Runs only this seed, and prints every event and action.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of hosts in a world, 2 to 2000. Default: drawn from the seed; 1000 with --report.
    #[arg(long)]
    hosts: Option<usize>,
    /// Injects a bug: one of docs/lending-simulation.md.
    #[arg(long = "plant", value_parser = injected_bug)]
    bug: Option<InjectedBug>,
    /// Prints the placement of slabs among a thousand hosts: rejections, balance, movement.
    #[arg(long)]
    report: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().simulation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(simulation: &Simulation) -> anyhow::Result<()> {
    let Simulation::Lending(lending) = simulation;
    if let Some(hosts) = lending.hosts {
        ensure!((2..=2_000).contains(&hosts), "--hosts {hosts}: say 2 to 2000");
    }
    if lending.report {
        let hosts = lending.hosts.unwrap_or(1_000);
        print(&placement(lending.seed.unwrap_or(0), hosts)?);
        return Ok(());
    }
    let options =
        Options { hosts: lending.hosts, bug: lending.bug, is_traced: lending.seed.is_some() };
    if let Some(seed) = lending.seed {
        let summary = run_world(seed, &options).with_context(|| format!("seed {seed}"))?;
        println!("seed {seed}: {summary:?}");
        return Ok(());
    }
    many(lending.seeds, &options)
}

fn many(seeds: u64, options: &Options) -> anyhow::Result<()> {
    let bar = ProgressBar::new(seeds);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left  {msg}")?);
    let next = AtomicU64::new(0);
    let steps = AtomicU64::new(0);
    let found: Mutex<Vec<(u64, Violation)>> = Mutex::default();
    let start = Instant::now();
    let lock = || found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    match run_world(seed, options) {
                        Ok(summary) => {
                            steps.fetch_add(summary.steps, Ordering::Relaxed);
                        }
                        Err(wrong) => {
                            let mut found = lock();
                            found.push((seed, wrong));
                            bar.set_message(format!("{} violations", found.len()));
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut found = core::mem::take(&mut *lock());
    found.sort_by_key(|(seed, _)| *seed);
    let how = [
        options.hosts.map(|hosts| format!(" --hosts {hosts}")),
        options.bug.map(|bug| format!(" --plant {}", bug.name())),
    ];
    let how: String = how.into_iter().flatten().collect();
    for (seed, wrong) in found.iter().take(PRINTED_MAX) {
        println!("seed {seed}: {wrong}");
        println!("    cargo xtask sim lending{how} --seed {seed}");
    }
    let steps = steps.into_inner();
    println!(
        "{seeds} seeds, {steps} steps, {} violations, {:.0} s",
        found.len(),
        start.elapsed().as_secs_f64()
    );
    if !found.is_empty() {
        bail!("{} of {seeds} seeds break a promise", found.len());
    }
    Ok(())
}

fn injected_bug(name: &str) -> Result<InjectedBug, String> {
    let found = InjectedBug::ALL.into_iter().find(|bug| bug.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = InjectedBug::ALL.iter().map(|bug| bug.name()).collect();
        format!("there is no such bug; there are {}", names.join(", "))
    })
}

/// The value below which `percent` of `sorted` lie.
fn quantile(sorted: &[u64], percent: usize) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or(0)
}

fn print(placement: &Placement) {
    let Placement { hosts, seconds, summary, borrowers, lenders, .. } = placement;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    println!("{hosts} hosts, {seconds} virtual seconds, mirrored, no faults");
    println!("roles at the end    {borrowers} borrowers, {lenders} lenders");
    println!(
        "requests            {} asked, {} granted, {} refused ({:.1} %), {} unanswered",
        summary.asked,
        summary.granted,
        summary.refused,
        share(summary.refused, summary.asked),
        summary.unanswered
    );
    println!(
        "devices             {} of {} slabs together; {} times nothing was found",
        summary.devices, summary.borrowed_slabs, summary.given_up
    );
    let of = |values: &[u64]| {
        format!(
            "median {}, 95th {}, most {}",
            quantile(values, 50),
            quantile(values, 95),
            quantile(values, 100)
        )
    };
    println!(
        "balance             lent, % of what a host has to lend: {}",
        of(&placement.lent_percent)
    );
    println!("spread              lenders of a borrower: {}", of(&placement.lenders_each));
    println!(
        "racks               {:.1} % of {} mirrored slabs in two racks",
        share(placement.apart, placement.mirrored),
        placement.mirrored
    );
    println!(
        "movement            {} loans recalled, {} copies moved ({:.2} a borrowed slab), {} slabs lost",
        summary.recalls,
        summary.moved,
        summary.moved as f64 / summary.borrowed_slabs.max(1) as f64,
        summary.slabs_lost
    );
    println!("messages            {}", summary.messages);
}
