//! The numbers in the tables of docs/upgrade.md ("Which versions work together") and CHANGELOG.md ("Layout of a kept
//! store") are those of the code.

use std::fs;

use anyhow::{Context, bail};

use crate::command;

const UPGRADE: &str = "docs/upgrade.md";
const HEADING: &str = "## Which versions work together";
const CHANGELOG: &str = "CHANGELOG.md";
/// The first row of a layout's table is about the version that is being written.
const LAYOUT_HEADING: &str = "## Layout of a kept store";
const STORE: (&str, &str) = ("core/store/src/tables.rs", "LAYOUT");
/// The start of a row's first cell, and the file and constant with its number.
const NUMBERS: [(&str, (&str, &str)); 13] = [
    ("a daemon and the store", STORE),
    ("a daemon and the clients that it keeps", ("control/directory/src/journal.rs", "VERSION")),
    ("a program and the daemon, over the ring", ("core/wire/src/ring.rs", "VERSION")),
    ("`spillway run` and the daemon", ("core/wire/src/programs.rs", "VERSION")),
    ("`spillway run` and its library", ("pager/src/tree.rs", "VERSION")),
    ("a host and `spillway-agent` in a guest", ("control/guests/src/agent.rs", "VERSION")),
    ("a host and `spillway-agent`, for windows", ("control/guests/src/window.rs", "VERSION")),
    ("a program in a guest and", ("core/wire/src/ring.rs", "PART_VERSION")),
    ("`spillway client export`", ("control/directory/src/stream.rs", "STREAM_VERSION")),
    ("a daemon and the map of a", ("frontends/vhost-user-blk/src/map.rs", "VERSION")),
    ("the commands and the HTTP interface", ("control/api/src/daemon.rs", "API_VERSION")),
    ("hosts over NVMe/TCP", ("core/wire/src/fabrics/properties.rs", "VERSION")),
    ("values of the [Python package]", ("clients/cache/src/record.rs", "FORMAT")),
];
/// What a row says that has no number.
const NO_NUMBER: &str = "none";

/// Checks both tables.
///
/// # Errors
/// The rows whose numbers are not those of the code.
pub fn check() -> anyhow::Result<()> {
    let changelog = read(CHANGELOG)?;
    let mut rows = rows(&changelog, LAYOUT_HEADING)?;
    rows.truncate(1);
    let mut complaints: Vec<_> =
        rows.iter().filter_map(|row| complaint(CHANGELOG, row, code(STORE))).collect();
    let upgrade = read(UPGRADE)?;
    let rows = self::rows(&upgrade, HEADING)?;
    let is_of = |row: &Row<'_>, start: &str| row.0.starts_with(start);
    for row in rows.iter().filter(|row| row.1 != NO_NUMBER) {
        let place = NUMBERS.iter().find(|(start, _)| is_of(row, start));
        let number = place.with_context(|| format!("{} is in no file", row.0));
        complaints.extend(complaint(UPGRADE, row, number.and_then(|(_, place)| code(*place))));
    }
    let missing = NUMBERS.iter().filter(|(start, _)| !rows.iter().any(|row| is_of(row, start)));
    complaints.extend(missing.map(|(start, _)| format!("{UPGRADE}: no row begins with {start:?}")));
    if complaints.is_empty() {
        println!("{} version numbers", NUMBERS.len());
        return Ok(());
    }
    bail!("{} complaints about version numbers\n{}", complaints.len(), complaints.join("\n"))
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(command::root().join(path)).with_context(|| format!("can't read {path}"))
}

/// What a row's first two cells say.
type Row<'a> = (&'a str, &'a str);

/// The rows of the table that follows a heading.
fn rows<'a>(page: &'a str, heading: &str) -> anyhow::Result<Vec<Row<'a>>> {
    let section = page.split_once(heading).with_context(|| format!("no heading {heading:?}"))?.1;
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    // Its heads and the line below them are no rows.
    let rows = table.take_while(|line| line.starts_with('|')).skip(2).filter_map(|line| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        Some((cells.next()?, cells.next()?))
    });
    Ok(rows.collect())
}

fn complaint(page: &str, (what, says): &Row<'_>, code: anyhow::Result<u32>) -> Option<String> {
    match code {
        Ok(code) if number(says) == Some(code) => None,
        Ok(code) => Some(format!("{page}: {what}: it says {says:?}, the code has {code:#x}")),
        Err(error) => Some(format!("{page}: {what}: {error:#}")),
    }
}

/// The first number of a cell. One with a part after a dot is as NVMe has it in its VS register: 16 bits, then 8.
fn number(cell: &str) -> Option<u32> {
    let from = cell.find(|c: char| c.is_ascii_digit())?;
    let number = cell[from..].split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    match number.split_once('.') {
        Some((major, minor)) => {
            Some(major.parse::<u32>().ok()? << 16 | minor.parse::<u32>().ok()? << 8)
        }
        None => number.parse().ok(),
    }
}

/// The constant of this name in a file.
fn code((file, name): (&str, &str)) -> anyhow::Result<u32> {
    value(&read(file)?, name).with_context(|| format!("{file} has no number {name}"))
}

fn value(source: &str, name: &str) -> Option<u32> {
    let constant = format!("const {name}: ");
    let line =
        source.lines().find(|line| line.trim_start_matches("pub ").starts_with(&constant))?;
    let value = line.split_once(" = ")?.1.trim_end_matches(';').replace('_', "");
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_and_a_constant_are_compared_as_numbers() {
        assert_eq!(number("layout 2"), value("pub const LAYOUT: u64 = 2;", "LAYOUT"));
        assert_eq!(number("1, `api` in `/v1/version`"), Some(1));
        assert_eq!(number("NVMe 2.0"), value("const VERSION: u32 = 0x0002_0000;", "VERSION"));
        assert_eq!(number("none"), None);
        assert_eq!(value("const OTHER_VERSION: u8 = 1;", "VERSION"), None);
    }

    #[test]
    fn the_table_of_a_heading_has_rows() {
        let page = "## One\n\n| a | b |\n|---|---|\n\n## Two\n\ntext\n\n| between | number |\n|---|---|\n| x | 1 | y |\n\n| no | 2 |\n";
        assert_eq!(rows(page, "## Two").unwrap(), [("x", "1")]);
    }

    #[test]
    fn a_row_that_says_another_number_is_told() {
        assert_eq!(complaint("page", &("x", "version 2"), Ok(2)), None);
        let told = complaint("page", &("x", "version 2"), Ok(3)).unwrap();
        assert_eq!(told, "page: x: it says \"version 2\", the code has 0x3");
    }
}
