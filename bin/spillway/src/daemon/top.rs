//! `spillway top`: clients and what they do, live.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use spillway_api::types::{Client, Statistics};
use spillway_types::Size;

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::daemon::stat::{Moment, ProgramRates};
use crate::daemon::terminal::{Event, Key, Screen};
use crate::refusal::Refusal;
use crate::show::{self, Output};
use crate::units::parse_interval;

mod view;

use view::{Column, Row, Tables, View};

/// Shows a daemon's clients and what they do, live. h shows the keys, q ends it.
#[derive(Debug, Args)]
pub struct Top {
    /// Time between two samples.
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Prints every sample as text, for files and pipes. Needs no terminal. The first sample comes
    /// after one interval. With -o json, a sample is a line, the object that `spillway stat` prints.
    #[arg(short, long)]
    batch: bool,

    /// Ends after this many samples.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// The column by which clients are sorted: largest first, names from a to z.
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    sort: Column,

    /// Reverses the order.
    #[arg(long)]
    reverse: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Width in columns of text that is not for a terminal: unlimited.
const UNBOUNDED: usize = usize::MAX;

/// Runs the command.
///
/// # Errors
/// The daemon can no longer be reached, or there is no terminal, or JSON is asked for without `--batch`.
pub fn run(options: &Top) -> anyhow::Result<ExitCode> {
    let output = options.daemon.output;
    if matches!(output, Output::Json) && !options.batch {
        let line = "--output json is for --batch: spillway top --batch --output json";
        return Err(Refusal::usage(line).into());
    }
    let api = Api::new(&options.daemon)?;
    let looks = Looks::begin(&api, options.interval)?;
    let view = View::new(options.sort, options.reverse);
    match (options.batch, output) {
        (true, Output::Json) => {
            print(looks, options.count, |looks| Ok(serde_json::to_string(&looks.moment)? + "\n"))?
        }
        (true, Output::Table) => print(looks, options.count, |looks| {
            let page = view.page(&looks.tables(), UNBOUNDED);
            Ok([page.head, page.body].concat().join("\n") + "\n\n")
        })?,
        (false, _) => show_live(looks, view, options.count)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Samples of the daemon, one each interval.
struct Looks<'a> {
    api: &'a Api,
    interval: Duration,
    moment: Moment,
    at: Instant,
    rates: HashMap<String, Rates>,
}

impl<'a> Looks<'a> {
    fn begin(api: &'a Api, interval: Duration) -> anyhow::Result<Self> {
        let (moment, at) = (Moment::ask(api)?, Instant::now());
        Ok(Self { api, interval, moment, at, rates: HashMap::new() })
    }

    /// Takes the next sample.
    fn look(&mut self) -> anyhow::Result<()> {
        let (moment, at) = (Moment::ask(self.api)?, Instant::now());
        self.rates = rates_of(&self.moment, &moment, at - self.at);
        (self.moment, self.at) = (moment, at);
        Ok(())
    }

    /// The current view.
    fn tables(&self) -> Tables {
        let rates = |client: &Client| self.rates.get(&client.name).copied().unwrap_or_default();
        let programs = self.moment.programs_table(|client| Some(rates(client).program));
        Tables {
            head: self.moment.head(),
            clients: self.moment.store_clients().map(|client| row(client, rates(client))).collect(),
            others: programs + &self.moment.guests_table(),
        }
    }
}

fn row(client: &Client, rates: Rates) -> Row {
    let its = &client.statistics;
    // A client without gets sorts after one whose gets all missed.
    let hits = rates.hits.map_or(0, |share| share + 1);
    Row {
        cells: [
            client.name.clone(),
            show::pages(its.used_pages),
            show::limit(its.target_pages),
            Size(client.in_flight_bytes).to_string(),
            rates.puts.to_string(),
            rates.refused.to_string(),
            rates.gets.to_string(),
            rates.hits.map_or_else(|| "-".to_owned(), |share| format!("{share}%")),
            client.connections.to_string(),
        ],
        weights: [
            0,
            its.used_pages,
            its.target_pages.unwrap_or(u64::MAX),
            client.in_flight_bytes,
            rates.puts,
            rates.refused,
            rates.gets,
            hits,
            client.connections.into(),
        ],
    }
}

/// Prints `count` samples as `text` shows them, or prints until the reader closes the pipe.
fn print(
    mut looks: Looks<'_>,
    count: Option<u64>,
    text: impl Fn(&Looks<'_>) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut left = count;
    while left != Some(0) {
        std::thread::sleep(looks.interval);
        looks.look()?;
        if !show::print_to_reader(&text(&looks)?)? {
            return Ok(());
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Draws samples on the terminal until the user quits.
fn show_live(mut looks: Looks<'_>, mut view: View, count: Option<u64>) -> anyhow::Result<()> {
    let screen = Screen::enter()?;
    let mut left = count;
    let mut due = Instant::now() + looks.interval;
    loop {
        let (rows, columns) = screen.size();
        let page = view.page(&looks.tables(), columns);
        screen.draw(&view.screen(&page, rows))?;
        match screen.wait(due.saturating_duration_since(Instant::now()))? {
            Event::Quit => return Ok(()),
            Event::Draw => {}
            Event::Keys(keys) => {
                for key in keys {
                    match key {
                        Key::Char(b' ') => due = Instant::now(),
                        key => view.press(key, view.room(&page, rows)),
                    }
                }
            }
        }
        if Instant::now() >= due {
            left = left.map(|left| left - 1);
            if left == Some(0) {
                return Ok(());
            }
            looks.look()?;
            due = Instant::now() + looks.interval;
        }
    }
}

/// A client's rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rates {
    puts: u64,
    refused: u64,
    gets: u64,
    /// Hits, per cent of gets.
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
