//! `spillway cost`: what servers with and without a memory blade cost.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum, ValueHint, value_parser};
use serde::Serialize;
use spillway_cost::{CURRENT, ConfigurationName, Error, PAPER, Prices, Report};

use crate::refusal::Refusal;
use crate::show::{self, Output};

/// Largest size of a price file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reports what servers with and without a memory blade cost, and what throughput a dollar buys.
///
/// Five configurations of "System-level Implications of Disaggregated Memory" (2012): Base, CBPS (page sharing), Max
/// (all memory local), DM (half of it on a memory blade), DM+CBPS. The report says which of the file's claims its
/// numbers support, and which they contradict. See docs/cost.md.
#[derive(Debug, Args)]
pub struct Cost {
    /// The prices: paper (what the paper states), current (components, with dated sources), or a file of your
    /// own.
    #[arg(long, value_name = "paper|current|FILE", default_value = "paper", value_hint = ValueHint::FilePath)]
    prices: String,

    /// Prints one of the two price files as a template, and makes no report.
    #[arg(long, value_name = "WHICH", exclusive = true)]
    print_prices: Option<Included>,

    /// Servers in an enclosure, which share its memory blades. Overrides the file's number.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=1024))]
    blades_per_enclosure: Option<u32>,

    /// Years over which costs are counted. Overrides the file's number.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=100))]
    years: Option<u32>,

    /// The throughput of 1, 2, 3 ... instances on a configuration (base, cbps, max, dm, dm-cbps), in units of one
    /// instance on Max: dm=1,2,2.9. Overrides the file's numbers. Can be repeated.
    #[arg(long, value_name = "CONFIGURATION=LIST", value_parser = parse_throughput)]
    throughput: Vec<Throughput>,

    /// Also writes the report with its figures: report.html and SVG files in this directory, which is created if it is
    /// missing.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    report: Option<PathBuf>,

    /// How the report, or the error, is printed.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// A price file that is part of the program.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Included {
    /// The paper's subtotals, each with its sentence.
    Paper,
    /// Prices of components with dated sources.
    Current,
}

impl Included {
    const fn text(self) -> &'static str {
        match self {
            Self::Paper => PAPER,
            Self::Current => CURRENT,
        }
    }
}

/// Throughput of a configuration, by instances.
#[derive(Clone, Debug)]
struct Throughput(ConfigurationName, Vec<f64>);

fn parse_throughput(text: &str) -> Result<Throughput, String> {
    let names = ConfigurationName::ALL.map(ConfigurationName::key).join(", ");
    let (name, list) = text.split_once('=').ok_or("write it as CONFIGURATION=1,2,3")?;
    let name = ConfigurationName::of_key(name)
        .ok_or_else(|| format!("there is no configuration '{name}'; there are {names}"))?;
    let number = |it: &str| it.trim().parse().map_err(|_| format!("'{it}' is not a number"));
    Ok(Throughput(name, list.split(',').map(number).collect::<Result<_, _>>()?))
}

/// Runs the command.
///
/// # Errors
/// A price file can't be read or is invalid, or the report can't be written.
pub fn run(options: &Cost) -> anyhow::Result<ExitCode> {
    if let Some(included) = options.print_prices {
        show::print(included.text())?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = match report(options) {
        Ok(report) => report,
        Err(problem) => return refuse(&problem, options.output),
    };
    match options.output {
        Output::Json => show::json(&report)?,
        Output::Table => show::print(&spillway_cost::text(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The report. Also writes it to the directory of `--report`, if one is given.
fn report(options: &Cost) -> Result<Report, Problem> {
    let report = spillway_cost::report(&prices(options)?);
    if let Some(dir) = &options.report {
        let mut files = vec![("report.html", spillway_cost::page(&report))];
        files.extend(spillway_cost::figures(&report).into_iter().map(|it| (it.file, it.svg)));
        write_into(dir, &files)?;
    }
    Ok(report)
}

/// The prices, with the command line's overrides.
fn prices(options: &Cost) -> Result<Prices, Problem> {
    let mut prices = match options.prices.as_str() {
        "paper" => spillway_cost::read("paper", PAPER)?,
        "current" => spillway_cost::read("current", CURRENT)?,
        file => spillway_cost::read(file, &read_text(Path::new(file))?)?,
    };
    if let Some(blades) = options.blades_per_enclosure {
        prices.set_blades_per_enclosure(blades);
    }
    if let Some(years) = options.years {
        prices.set_years(years);
    }
    for Throughput(name, throughput) in &options.throughput {
        prices.set_throughput(*name, throughput.clone())?;
    }
    Ok(prices)
}

fn read_text(path: &Path) -> Result<String, Problem> {
    let unreadable = |problem: String| Problem::File {
        file: path.display().to_string(),
        problem: format!("can't be read ({problem})"),
        remedy: "name a price file; spillway cost --print-prices current > FILE creates one",
    };
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable("larger than 1 MiB".to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8 text".to_owned()))
}

/// Why there is no report.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Problem {
    Prices(Error),
    File { file: String, problem: String, remedy: &'static str },
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Prices(error)
    }
}

impl Problem {
    fn line(&self) -> String {
        match self {
            Self::Prices(error) => error.to_string(),
            Self::File { file, problem, remedy } => format!("{file} {problem}: {remedy}"),
        }
    }
}

/// One line on standard error, as JSON for programs; exit code 2.
fn refuse(problem: &Problem, output: Output) -> anyhow::Result<ExitCode> {
    #[derive(Serialize)]
    struct Refused<'a> {
        error: &'a Problem,
        line: String,
    }
    match output {
        Output::Table => Err(Refusal::usage(problem.line()).into()),
        Output::Json => {
            let line = problem.line();
            let text = serde_json::to_string(&Refused { error: problem, line })?;
            writeln!(io::stderr(), "{text}").context("can't print the error")?;
            Ok(ExitCode::from(2))
        }
    }
}

fn write_into(dir: &Path, files: &[(&str, String)]) -> Result<(), Problem> {
    let unwritable = |error: io::Error, path: &Path| Problem::File {
        file: path.display().to_string(),
        problem: format!("can't be written ({error})"),
        remedy: "name a directory that you can write to with --report",
    };
    fs::create_dir_all(dir).map_err(|error| unwritable(error, dir))?;
    for (file, text) in files {
        let path = dir.join(file);
        fs::write(&path, text).map_err(|error| unwritable(error, &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_a_configuration_and_a_list() {
        let Throughput(name, list) = parse_throughput("dm-cbps=1, 1.9,2.5").expect("a list");
        assert_eq!((name, list), (ConfigurationName::DmCbps, vec![1.0, 1.9, 2.5]));
        for bad in ["", "dm", "dm=", "dm=1,,2", "dm=1,x", "huge=1"] {
            assert!(parse_throughput(bad).is_err(), "{bad}");
        }
    }
}
