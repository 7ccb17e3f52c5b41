//! `policy`: the policy utility compared with the paper's four, in virtual time, and the time of the manager's
//! interval.
//!
//! All rows but the last are deterministic: the same code gives the same figures. Utility's constants were tuned on the
//! scenarios with seed 1. The mixes, and the scenarios with another seed, were not used for tuning.

use std::hint::black_box;
use std::time::Instant;

use spillway_manager::{
    Curve, ManagedClient, Manager, Percent, Policy, SmartAlloc, UNLIMITED, Utility,
};
use spillway_replay::engine::{Who, run as replay};
use spillway_replay::mixes::mixes;
use spillway_replay::report::Report as Run;
use spillway_replay::scenario::{Scenario, scenarios};
use spillway_replay::workloads::workloads;
use spillway_reuse::Sampler;
use spillway_types::{ClientId, Statistics};

use super::rows::{Report, Row, figure, line_of, median, table};
use super::{by_size, go_on, rounds, wanted};

/// The name in the rows.
pub const BENCH: &str = "policy";
/// smart-alloc's P, in hundredths of a per cent: the paper's values, and one more.
const PERCENTS: [u32; 6] = [25, 75, 200, 400, 600, 1200];
/// The fixed P for all scenarios.
const FIXED: u32 = 200;
/// Clients of the manager for the timed intervals, and the most milliseconds that an interval should take.
const CLIENTS: [(u64, f64); 2] = [(1000, 2.0), (10_000, 25.0)];

/// The results of a set of scenarios.
#[derive(Default)]
struct Totals {
    lines: Vec<Vec<String>>,
    /// Logarithms of the ratios of utility's slowdowns to others': mean and worst, to the best P and to the fixed one.
    ratios: [Vec<f64>; 4],
    settled: Vec<f64>,
}

/// Measures all scenarios.
///
/// # Errors
/// The user's interruption.
pub fn run() -> anyhow::Result<Report> {
    let mut report = Report::default();
    for (set, seed, scenarios) in [
        ("tuned", 1, scenarios()),
        ("other seed", 2, scenarios()),
        ("workloads", 1, workloads()),
        ("mixes", 1, mixes()),
    ] {
        let mut totals = Totals::default();
        let chosen = scenarios.iter().filter(|it| wanted(&it.name));
        for scenario in chosen.take(by_size(usize::MAX, 1)) {
            eprintln!("{set}: {}", scenario.name);
            compare(scenario, seed, set, &mut totals, &mut report)?;
        }
        if !totals.lines.is_empty() {
            sum_up(set, totals, &mut report);
        }
    }
    if wanted("interval") {
        for (clients, bound_ms) in CLIENTS {
            intervals(clients, bound_ms, &mut report)?;
        }
    }
    report.remarks.push(
        "slowdowns: running time beside that in memory enough, sleep not counted. \"best\" is the one of \
         greedy, static-alloc, reconf-static and smart-alloc (P 0.25, 0.75, 2, 4, 6, 12 %) with the least mean \
         slowdown in that scenario; \"fixed\" the same with P = 2 % alone."
            .to_owned(),
    );
    Ok(report)
}

/// Runs a scenario with all policies.
fn compare(
    scenario: &Scenario,
    seed: u64,
    set: &str,
    totals: &mut Totals,
    report: &mut Report,
) -> anyhow::Result<()> {
    let prepared = scenario.prepare(seed);
    let go = |who| -> anyhow::Result<Run> {
        go_on()?;
        let (total_pages, costs) = (scenario.total_pages, scenario.costs);
        Ok(replay(who, total_pages, costs, &prepared.traces, &prepared.futures, &prepared.terms))
    };
    let miss_us = (scenario.costs.disk_read_ns / 1000) as u32;
    let utility = Policy::Utility(Utility { miss_us, ..Utility::default() });
    let ours = go(Who::Policy(utility))?;
    let even = Utility { miss_us, fairness_percent: 100, ..Utility::default() };
    let even = go(Who::Policy(Policy::Utility(even)))?;
    let unknown = go(Who::Policy(Policy::Utility(Utility::default())))?;
    let oracle = go(Who::Oracle)?;
    let plain = [Policy::Greedy, Policy::StaticAlloc, Policy::ReconfStatic];
    let smart =
        |p| Policy::SmartAlloc(SmartAlloc { p: Percent::hundredths(p), threshold_pages: None });
    let plain = plain.map(|policy| go(Who::Policy(policy)));
    let plain = plain.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let smart = PERCENTS.map(|p| go(Who::Policy(smart(p))));
    let smart = smart.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let fixed = PERCENTS.iter().position(|&p| p == FIXED).and_then(|at| smart.get(at));
    let best = least(plain.iter().chain(&smart));
    let fixed = least(plain.iter().chain(fixed));
    let name = &scenario.name;
    for (what, figure) in [
        ("mean slowdown", Run::mean_slowdown as fn(&Run) -> f64),
        ("worst slowdown", Run::worst_slowdown),
    ] {
        let other = (best.policy.as_str(), figure(best));
        report.rows.push(Row::new(
            BENCH,
            format!("{what}, {name}, {set}"),
            "x",
            figure(&ours),
            other,
        ));
    }
    let log = |figure: fn(&Run) -> f64, other: &Run| (figure(&ours) / figure(other)).ln();
    totals.ratios[0].push(log(Run::mean_slowdown, best));
    totals.ratios[1].push(log(Run::worst_slowdown, best));
    totals.ratios[2].push(log(Run::mean_slowdown, fixed));
    totals.ratios[3].push(log(Run::worst_slowdown, fixed));
    totals.settled.extend(&ours.settled_intervals);
    let pair =
        |run: &Run| format!("{} {}", figure(run.mean_slowdown()), figure(run.worst_slowdown()));
    let churn = |run: &Run| format!("{:.1}", 100.0 * run.churn_pages / scenario.total_pages as f64);
    let settled = ours.settled_mean().map_or("-".to_owned(), figure);
    totals.lines.push(line_of([
        name,
        &pair(&ours),
        &pair(&even),
        &pair(best),
        &pair(fixed),
        &pair(&plain[0]),
        &pair(&plain[1]),
        &pair(&oracle),
        &pair(&unknown),
        &[&ours, &even, best].map(|run| format!("{:.3}", run.jain())).join(" "),
        &[&ours, &even].map(&churn).join(" "),
        &settled,
        &best.policy,
    ]));
    Ok(())
}

/// The run with the smallest mean slowdown.
fn least<'a>(runs: impl Iterator<Item = &'a Run>) -> &'a Run {
    let least = runs.min_by(|a, b| a.mean_slowdown().total_cmp(&b.mean_slowdown()));
    least.expect("there are always the three without a parameter")
}

fn sum_up(set: &str, totals: Totals, report: &mut Report) {
    let geometric = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    let names = [
        "mean slowdown, geometric mean beside the best",
        "worst slowdown, geometric mean beside the best",
        "mean slowdown, geometric mean beside fixed P",
        "worst slowdown, geometric mean beside fixed P",
    ];
    for (name, logs) in names.iter().zip(&totals.ratios) {
        let other = ("the paper's", 1.0);
        report.rows.push(Row::new(BENCH, format!("{name}, {set}"), "x", geometric(logs), other));
    }
    let within = totals.ratios[0].iter().filter(|&&log| log <= 1.02_f64.ln()).count() as f64;
    let all = ("scenarios", totals.ratios[0].len() as f64);
    let metric = format!("mean slowdown within 2 % of the best, {set}");
    report.rows.push(Row::new(BENCH, metric, "count", within, all));
    let quick = totals.settled.iter().filter(|&&took| took <= 10.0).count() as f64;
    let metric = format!("shifts followed within 10 intervals, {set}");
    let shifts = ("shifts", totals.settled.len() as f64);
    report.rows.push(Row::new(BENCH, metric, "count", quick, shifts));
    let mut lines = vec![line_of([
        set,
        "utility",
        "utility, fair",
        "best",
        "fixed",
        "greedy",
        "static",
        "oracle",
        "utility, 1 ms",
        "Jain (fair, best)",
        "churn (fair), %",
        "settled",
        "who is best",
    ])];
    lines.extend(totals.lines);
    report.remarks.push(table(&lines));
}

/// Measures the manager's interval with this many clients.
fn intervals(count: u64, bound_ms: f64, report: &mut Report) -> anyhow::Result<()> {
    let mut samplers: Vec<Sampler> = vec![Sampler::default(); count as usize];
    let mut numbers = 0_u64;
    for (at, sampler) in samplers.iter_mut().enumerate() {
        for _ in 0..8000 {
            numbers = numbers.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let key = (numbers >> 40) % (1000 + at as u64 % 1000 * 20);
            let hash = key.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ key << 47;
            sampler.get(hash);
            sampler.put(hash);
        }
    }
    let curves: Vec<Curve> = samplers.iter_mut().map(Sampler::interval).collect();
    let mut manager = Manager::new(Policy::Utility(Utility::default()));
    let (mut alone_ms, mut all_ms) = (Vec::new(), Vec::new());
    for round in 1..=10 * rounds()? as u64 {
        go_on()?;
        let began = Instant::now();
        let sampled: Vec<Curve> = samplers.iter_mut().map(Sampler::interval).collect();
        let sampling_ms = began.elapsed().as_secs_f64() * 1e3;
        black_box(sampled);
        let client = |at: u64| ManagedClient {
            cap_pages: if at.is_multiple_of(7) { 5000 } else { UNLIMITED },
            curve: Some(curves[at as usize]),
            ..ManagedClient::new(ClientId(at + 1), statistics(at, round))
        };
        let clients: Vec<_> = (0..count).map(client).collect();
        let began = Instant::now();
        black_box(manager.interval(4000 * count, &clients));
        let took_ms = began.elapsed().as_secs_f64() * 1e3;
        alone_ms.push(took_ms);
        all_ms.push(took_ms + sampling_ms);
    }
    for (metric, samples) in [
        (format!("interval of the manager, {count} clients"), alone_ms),
        (format!("the same with taking the curves, {count} clients"), all_ms),
    ] {
        report.rows.push(Row::new(BENCH, metric, "ms", median(samples), ("bound", bound_ms)));
    }
    Ok(())
}

/// A client's counters after `round` intervals.
fn statistics(at: u64, round: u64) -> Statistics {
    let rate = 100 + at * 7 % 3000;
    Statistics {
        puts: rate * round,
        puts_stored: rate * round * 9 / 10,
        puts_refused_at_target: rate * round / 10,
        gets: rate * round,
        hits: rate * round * 7 / 10,
        misses: rate * round * 3 / 10,
        used_pages: 1000 + at % 1000 * 5,
        ..Statistics::default()
    }
}
