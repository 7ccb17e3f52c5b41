//! Prints results as tables for people and as JSON for programs.

use std::io::{self, Write};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use spillway_api::types::Identity;
use spillway_types::{PAGE_BYTES, Size};

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Output {
    /// A table for people.
    #[default]
    Table,
    /// One JSON object.
    Json,
}

/// Prints `answer` as JSON, or `rows` under `heads`.
///
/// # Errors
/// Standard output can't be written.
pub fn answer<const N: usize>(
    output: Output,
    answer: &impl Serialize,
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    match output {
        Output::Json => json(answer),
        Output::Table => {
            let rows: Vec<_> = rows.into_iter().collect();
            print(&table(heads, &rows))
        }
    }
}

/// Prints one JSON value.
///
/// # Errors
/// Standard output can't be written.
pub fn json(answer: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(answer)?;
    text.push('\n');
    print(&text)
}

/// Prints text.
///
/// # Errors
/// Standard output can't be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_to_reader(text).map(drop)
}

/// Prints text. Returns false once the reader has closed the pipe.
///
/// # Errors
/// As [`print()`].
pub fn print_to_reader(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A pipe that is closed early is the reader's choice.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.context("can't print").map(|()| true),
    }
}

/// Rows under heads. The first column is aligned left, the others right.
pub fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heads.map(|head| head.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(heads, widths);
    for row in rows {
        text.push_str(&line(row.each_ref().map(String::as_str), widths));
    }
    text
}

fn line<const N: usize>(cells: [&str; N], widths: [usize; N]) -> String {
    let mut text = String::new();
    for (at, (cell, width)) in cells.into_iter().zip(widths).enumerate() {
        let cell = if at == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        text.push_str(&cell);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Pages as a size.
pub fn pages(count: u64) -> String {
    Size(count.saturating_mul(PAGE_BYTES as u64)).to_string()
}

/// A limit in pages as a size.
pub fn limit(pages_max: Option<u64>) -> String {
    pages_max.map_or_else(|| "none".to_owned(), pages)
}

/// How a client is identified.
pub fn identity(identity: &Identity) -> String {
    match identity {
        Identity::Uid(uid) => format!("uid {uid}"),
        Identity::Gid(gid) => format!("gid {gid}"),
        Identity::Nqn(nqn) => nqn.clone(),
        Identity::Name(name) => name.clone(),
        Identity::Password(_) => "its password".to_owned(),
        Identity::Disk(_) => "its disks".to_owned(),
        Identity::Program(pid) => format!("process {pid}"),
    }
}

/// A part of a whole, per cent with up to two decimals. It is 100 only for all of it.
pub fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 / whole.max(1) as f64 * 100.0;
    let hundredths = (share * 100.0).round();
    let shown = if part < whole { hundredths.min(9_999.0) } else { hundredths };
    (shown / 100.0).to_string()
}

/// A duration, in its two largest units.
pub fn duration(seconds: u64) -> String {
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_100_only_for_all() {
        let total = 67_108_863;
        for (part, shown) in [
            (0, "0"),
            (total / 10 * 8, "80"),
            (total / 1000 * 855, "85.5"),
            (total / 1000 * 999, "99.9"),
            (total - 1, "99.99"),
            (total, "100"),
        ] {
            assert_eq!(percent(part, total), shown, "{part}");
        }
        assert_eq!((percent(0, 0), percent(15, 10)), ("0".to_owned(), "150".to_owned()));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["long name".to_owned(), "1".to_owned()], ["a".to_owned(), "1234".to_owned()]];
        assert_eq!(
            table(["name", "n"], &rows),
            "name          n\nlong name     1\na          1234\n"
        );
    }
}
