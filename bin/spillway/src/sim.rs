//! `spillway sim`: simulates clients under policies, in virtual time.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use spillway_policy::{Percent, Policy, SmartAlloc, Utility};
use spillway_replay::blocks;
use spillway_replay::costs::{Costs, Terms};
use spillway_replay::engine::{Who, run as replay};
use spillway_replay::keys::Keys;
use spillway_replay::mixes::mixes;
use spillway_replay::oracle::Future;
use spillway_replay::report::Report;
use spillway_replay::scenario::{Prepared, Scenario, scenarios};
use spillway_replay::workloads::workloads;

use crate::refusal::Refusal;
use crate::show::{self, Output};
use crate::units::{PAGE_BYTES, parse_delay, parse_size};

/// Replays clients on a simulated node under policies, and compares them with an oracle that knows the
/// clients' next requests.
///
/// Without --scenario and --trace it lists the scenarios. A slowdown is a running time relative to that with enough
/// memory. See docs/policies.md.
#[derive(Debug, Args)]
pub struct Sim {
    /// A policy: greedy, static-alloc, reconf-static, smart-alloc, smart-alloc:PERCENT or utility. Default: all
    /// of them. Can be repeated.
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    policy: Vec<Policy>,

    /// A scenario of the list. Can be repeated.
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,

    /// A trace, one for each client: a recording of spillway run --record, or a block trace in the CSV format of
    /// CloudPhysics or MSR Cambridge.
    #[arg(long, value_name = "FILE", conflicts_with = "scenario", requires = "memory")]
    trace: Vec<PathBuf>,

    /// Memory of the node, for traces.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,

    /// Each client's own memory, for block traces.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    local: u64,

    /// Time to read a page from a client's disk. Default: the scenario's; 430us for traces.
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    disk: Option<Duration>,

    /// Seed of the scenario's random numbers.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// How results are printed.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Clients under one policy.
#[derive(Debug, Serialize)]
struct Result {
    scenario: String,
    policy: String,
    mean_slowdown: f64,
    worst_slowdown: f64,
    jain_index: f64,
    /// Mean number of intervals after a shift of demand until shares are worth 90 % of the oracle's; null without a
    /// shift.
    settled_intervals: Option<f64>,
    churn_pages: f64,
    clients: Vec<ClientResult>,
}

#[derive(Debug, Serialize)]
struct ClientResult {
    name: String,
    slowdown: f64,
    running_s: f64,
    gets: u64,
    hits: u64,
    puts_refused: u64,
}

/// What to run.
struct Case {
    name: String,
    total_pages: u64,
    costs: Costs,
    prepared: Prepared,
}

fn parse_policy(text: &str) -> std::result::Result<Policy, String> {
    let (name, p) = text.split_once(':').map_or((text, None), |(name, p)| (name, Some(p)));
    match (name, p) {
        ("greedy", None) => Ok(Policy::Greedy),
        ("static-alloc", None) => Ok(Policy::StaticAlloc),
        ("reconf-static", None) => Ok(Policy::ReconfStatic),
        ("utility", None) => Ok(Policy::Utility(Utility::default())),
        ("smart-alloc", p) => {
            let p = p.map(str::parse::<Percent>).transpose().map_err(|error| error.to_string())?;
            let p = p.unwrap_or(SmartAlloc::default().p);
            Ok(Policy::SmartAlloc(SmartAlloc { p, threshold_pages: None }))
        }
        _ => Err(format!("there is no policy '{text}'; there are {}", Policy::NAMES.join(", "))),
    }
}

/// Runs the command.
///
/// # Errors
/// A scenario does not exist, or a trace can't be read.
pub fn run(options: &Sim) -> anyhow::Result<ExitCode> {
    let all: Vec<Scenario> = scenarios().into_iter().chain(workloads()).chain(mixes()).collect();
    if options.scenario.is_empty() && options.trace.is_empty() {
        list(&all, options.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut results = Vec::new();
    for case in cases(options, &all)? {
        for who in clients_of(options, &case.costs) {
            let Prepared { traces, futures, terms } = &case.prepared;
            let report = replay(who, case.total_pages, case.costs, traces, futures, terms);
            results.push(result(&case.name, report));
        }
    }
    let row = |result: &Result| {
        let settled = result.settled_intervals.map_or("-".to_owned(), |it| format!("{it:.1}"));
        let clients = result.clients.iter().map(|it| format!("{} {:.2}", it.name, it.slowdown));
        [
            result.scenario.clone(),
            result.policy.clone(),
            format!("{:.3}", result.mean_slowdown),
            format!("{:.3}", result.worst_slowdown),
            format!("{:.3}", result.jain_index),
            settled,
            format!("{:.0}", result.churn_pages),
            clients.collect::<Vec<_>>().join(", "),
        ]
    };
    let heads = ["scenario", "policy", "mean", "worst", "jain", "settled", "churn", "slowdowns"];
    show::answer(options.output, &results, heads, results.iter().map(row))?;
    Ok(ExitCode::SUCCESS)
}

fn list(all: &[Scenario], output: Output) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Listed<'a> {
        scenario: &'a str,
        about: &'a str,
    }
    let listed: Vec<_> =
        all.iter().map(|it| Listed { scenario: &it.name, about: &it.about }).collect();
    let rows = all.iter().map(|it| [it.name.clone(), it.about.clone()]);
    show::answer(output, &listed, ["scenario", "about"], rows)
}

fn cases(options: &Sim, all: &[Scenario]) -> anyhow::Result<Vec<Case>> {
    if !options.trace.is_empty() {
        return Ok(vec![traces(options)?]);
    }
    let case = |name: &String| {
        let Some(scenario) = all.iter().find(|it| it.name == *name) else {
            let line = format!("there is no scenario '{name}'; spillway sim lists them");
            return Err(Refusal::usage(line).into());
        };
        Ok(Case {
            name: name.clone(),
            total_pages: scenario.total_pages,
            costs: costs(scenario.costs, options.disk),
            prepared: scenario.prepare(options.seed),
        })
    };
    options.scenario.iter().map(case).collect()
}

/// The clients of the traces on the command line.
fn traces(options: &Sim) -> anyhow::Result<Case> {
    let local_pages = u32::try_from(options.local / PAGE_BYTES).unwrap_or(u32::MAX);
    let read = |path: &PathBuf| {
        let shown = path.display();
        let refused = |error: &dyn std::fmt::Display| {
            Refusal::usage(format!("can't read the trace {shown}: {error}"))
        };
        let file = File::open(path).map_err(|error| refused(&error))?;
        let name = path.file_stem().unwrap_or(Path::new("trace").as_os_str()).to_string_lossy();
        blocks::read(BufReader::new(file), &name, local_pages, Keys::Slots)
            .map_err(|error| refused(&error))
    };
    let traces = options.trace.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
    let futures = traces.iter().map(Future::of).collect();
    Ok(Case {
        name: "traces".to_owned(),
        total_pages: options.memory.unwrap_or(0) / PAGE_BYTES,
        costs: costs(Costs::of_runs(), options.disk),
        prepared: Prepared { terms: vec![Terms::default(); traces.len()], traces, futures },
    })
}

fn costs(usual: Costs, disk: Option<Duration>) -> Costs {
    disk.map_or(usual, |read| usual.and_disk(read.as_micros() as u64))
}

/// The policies on the command line, or all; the oracle last.
fn clients_of(options: &Sim, costs: &Costs) -> Vec<Who> {
    let all = [
        Policy::Greedy,
        Policy::StaticAlloc,
        Policy::ReconfStatic,
        Policy::SmartAlloc(SmartAlloc::default()),
        Policy::Utility(Utility::default()),
    ];
    let named = if options.policy.is_empty() { &all[..] } else { &options.policy };
    let told = |policy: &Policy| match *policy {
        // What an operator would set.
        Policy::Utility(usual) => {
            let miss_us = (costs.disk_read_ns / 1000) as u32;
            Who::Policy(Policy::Utility(Utility { miss_us, ..usual }))
        }
        policy => Who::Policy(policy),
    };
    named.iter().map(told).chain([Who::Oracle]).collect()
}

fn result(scenario: &str, report: Report) -> Result {
    let clients = report.clients.iter().map(|client| ClientResult {
        name: client.name.clone(),
        slowdown: client.slowdown,
        running_s: (client.compute_ns + client.stall_ns) as f64 / 1e9,
        gets: client.statistics.gets,
        hits: client.statistics.hits,
        puts_refused: client.statistics.puts - client.statistics.puts_stored,
    });
    Result {
        scenario: scenario.to_owned(),
        mean_slowdown: report.mean_slowdown(),
        worst_slowdown: report.worst_slowdown(),
        jain_index: report.jain(),
        settled_intervals: report.settled_mean(),
        churn_pages: report.churn_pages,
        clients: clients.collect(),
        policy: report.policy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_with_their_percentage() {
        assert_eq!(parse_policy("greedy"), Ok(Policy::Greedy));
        let smart = parse_policy("smart-alloc:0.75").expect("a policy");
        assert_eq!(smart.to_string(), "smart-alloc 0.75 %");
        for bad in ["fair", "greedy:2", "smart-alloc:200", "smart-alloc:", "utility:1", ""] {
            assert!(parse_policy(bad).is_err(), "{bad}");
        }
    }
}
