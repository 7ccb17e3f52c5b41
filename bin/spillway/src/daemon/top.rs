//! `spillway top`: clients and what they do, live.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use spillway_api::types::{Client, Statistics};
use spillway_types::Size;

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::daemon::show;
use crate::daemon::stat::{Moment, ProgramRates};
use crate::daemon::terminal::{Event, Screen};
use crate::units::parse_delay;

/// Shows a daemon's clients and what they do, live. q ends it.
#[derive(Debug, Args)]
pub struct Top {
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_delay)]
    interval: Duration,

    #[command(flatten)]
    daemon: Daemon,
}

/// Shortest time between two looks.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached any more, or there is no terminal.
pub fn run(options: &Top) -> anyhow::Result<ExitCode> {
    let api = Api::new(&options.daemon)?;
    let interval = options.interval.max(INTERVAL_MIN);
    let mut moment = (Moment::ask(&api)?, Instant::now());
    let screen = Screen::enter()?;
    let mut rates = HashMap::new();
    let mut due = Instant::now() + interval;
    loop {
        screen.draw(&page(&moment.0, &rates))?;
        if screen.wait(due.saturating_duration_since(Instant::now()))? == Event::Quit {
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= due {
            let now = (Moment::ask(&api)?, Instant::now());
            rates = rates_of(&moment.0, &now.0, now.1 - moment.1);
            moment = now;
            due = Instant::now() + interval;
        }
    }
}

/// What a client did in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rates {
    puts: u64,
    refused: u64,
    gets: u64,
    /// Per cent of gets that found a value.
    hits: Option<u64>,
    /// The same of a program.
    program: ProgramRates,
}

fn refused(s: &Statistics) -> u64 {
    s.puts_refused_at_target + s.puts_refused_node_full + s.puts_refused_other
}

fn rates_of(before: &Moment, now: &Moment, time: Duration) -> HashMap<String, Rates> {
    let known: HashMap<_, _> = before.clients.iter().map(|c| (&c.name, &c.statistics)).collect();
    let rate = |client: &Client| {
        let (new, old) = (&client.statistics, known.get(&client.name)?);
        let per_second = |new: u64, old: u64| {
            (new.saturating_sub(old) as f64 / time.as_secs_f64().max(1e-3)).round() as u64
        };
        let gets = new.gets.saturating_sub(old.gets);
        let hits = new.hits.saturating_sub(old.hits);
        let rates = Rates {
            puts: per_second(new.puts, old.puts),
            refused: per_second(refused(new), refused(old)),
            gets: per_second(new.gets, old.gets),
            hits: (hits * 100).checked_div(gets),
            program: ProgramRates {
                faults: per_second(new.gets, old.gets),
                refaults: per_second(new.misses, old.misses),
                pages_out: per_second(new.evicted_pages, old.evicted_pages),
            },
        };
        Some((client.name.clone(), rates))
    };
    now.clients.iter().filter_map(rate).collect()
}

fn page(moment: &Moment, rates: &HashMap<String, Rates>) -> String {
    let heads =
        ["client", "used", "target", "in flight", "puts/s", "refused/s", "gets/s", "hits", "conns"];
    let mut clients: Vec<_> = moment.store_clients().collect();
    clients.sort_by_key(|client| std::cmp::Reverse(client.statistics.used_pages));
    let rows: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let rates = rates.get(&client.name).copied().unwrap_or_default();
            [
                client.name.clone(),
                show::pages(client.statistics.used_pages),
                show::limit(client.statistics.target_pages),
                Size(client.in_flight_bytes).to_string(),
                rates.puts.to_string(),
                rates.refused.to_string(),
                rates.gets.to_string(),
                rates.hits.map_or_else(|| "-".to_owned(), |share| format!("{share}%")),
                client.connections.to_string(),
            ]
        })
        .collect();
    let of = |client: &Client| Some(rates.get(&client.name).copied().unwrap_or_default().program);
    let programs = moment.programs_table(of);
    let guests = moment.guests_table();
    format!("{}\n{}{programs}{guests}", moment.head(), show::table(heads, &rows))
}
