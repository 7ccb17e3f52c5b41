//! `spillway policy`: how memory is divided among clients.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hyper::Method;
use spillway_api::types;
use spillway_policy::{Percent, PercentError};
use spillway_types::PAGE_BYTES;

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::daemon::target::{Limit, parse_limit};
use crate::show;
use crate::units::{parse_delay, parse_interval};

const PATH: &str = "/v1/policy";

/// Shows and sets the policy that computes the clients' targets.
#[derive(Debug, Args)]
pub struct Policy {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows the policy.
    Show {
        #[command(flatten)]
        daemon: Daemon,
    },
    Set(Set),
}

/// Sets another policy. The change survives a crash of the daemon. It lasts until the daemon stops or memory.policy in
/// its configuration changes; set it there to keep it for good. If the policy is set already, the parameters that you
/// don't give keep their values; else they get those in brackets.
#[derive(Debug, Args)]
struct Set {
    /// The policy.
    #[arg(value_enum)]
    policy: Name,

    /// smart-alloc: the step of an interval, per cent (2). A target grows by this part of the store and shrinks
    /// by this part of itself.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    p: Option<Percent>,

    /// smart-alloc: what a client may leave unused before its target shrinks: a size, or none (none). With none, it is
    /// --p per cent of the store.
    #[arg(long, value_name = "SIZE|none", value_parser = parse_limit)]
    threshold: Option<Limit>,

    /// Time between two samples of the clients, 100ms to 3600s. Default: unchanged.
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    interval: Option<Duration>,

    /// utility: what a miss costs a client, such as a read from its disk (1ms).
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    miss: Option<Duration>,

    /// utility: the part of the store that is shared evenly among the clients that can use it, per cent (0). With 100,
    /// nobody takes turns.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    fairness: Option<u32>,

    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// First come, first served.
    Greedy,
    /// Equal shares for all clients.
    StaticAlloc,
    /// Equal shares for the clients that have ever put a page.
    ReconfStatic,
    /// More for clients whose puts are refused, less for clients with unused memory.
    SmartAlloc,
    /// Memory goes where it saves the most waiting, within bounds of fairness.
    Utility,
}

fn parse_percent(text: &str) -> Result<Percent, String> {
    text.parse().map_err(|error: PercentError| error.to_string())
}

impl Set {
    /// The request. `now` is the present policy, whose parameters stay unless others are given.
    fn request(&self, now: types::Policy) -> types::Policy {
        let name = self.policy.to_possible_value().map(|value| value.get_name().to_owned());
        let name = name.unwrap_or_default();
        let kept = if now.policy == name { now } else { types::Policy::default() };
        types::Policy {
            policy: name,
            p: self.p.map(Percent::get).or(kept.p),
            threshold_pages: match self.threshold {
                Some(Limit(bytes)) => bytes.map(|bytes| bytes / PAGE_BYTES as u64),
                None => kept.threshold_pages,
            },
            // Without it the daemon keeps its own.
            interval_ms: self.interval.map(|time| time.as_millis() as u64),
            miss_us: self.miss.map(|time| time.as_micros() as u32).or(kept.miss_us),
            fairness_percent: self.fairness.or(kept.fairness_percent),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &Policy) -> anyhow::Result<ExitCode> {
    let (daemon, policy): (_, types::Policy) = match &options.action {
        Action::Show { daemon } => (daemon, Api::new(daemon)?.get(PATH)?),
        Action::Set(set) => {
            let api = Api::new(&set.daemon)?;
            let request = set.request(api.get(PATH)?);
            (&set.daemon, api.send(Method::PUT, PATH, &request)?)
        }
    };
    let p = policy.p.map_or_else(String::new, |p| format!("{p} %"));
    let threshold = policy.threshold_pages.map_or_else(String::new, show::pages);
    let interval =
        policy.interval_ms.map_or_else(String::new, |time| format!("{} s", time as f64 / 1000.0));
    let miss = policy.miss_us.map_or_else(String::new, |us| format!("{us} us"));
    let fairness = policy.fairness_percent.map_or_else(String::new, |part| format!("{part} %"));
    let row = [policy.policy.clone(), p, threshold, miss, fairness, interval];
    let heads = ["policy", "p", "threshold", "miss", "fairness", "interval"];
    show::answer(daemon.output, &policy, heads, [row])?;
    Ok(ExitCode::SUCCESS)
}
