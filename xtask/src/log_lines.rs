//! Each warning and error line of the daemon, each refusal of the command, and each line of the pager, of a guest's agent
//! and of the module for Valkey has its row in docs/troubleshooting.md or in a page that it refers to, unless the line
//! explains itself: docs/plain-lines.txt has those. The library that `spillway run` loads into programs prints nothing: the
//! pager prints what it notes.
//!
//! A row has texts in backticks in its first column. It fits a line if a part of the text between `...` is in the line, or
//! a part of the line between its placeholders is in the text. A line that only passes on another text, such as `"{error}"`, is not checked: that text is made elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::command;

const LOG: &[&str] = &["tracing::warn!(", "tracing::error!("];
const REFUSALS: &[&str] = &[
    "Refusal::usage(",
    "Refusal::of_one(",
    "Refusal::unreachable(",
    "Refusal::not_executable(",
    "Refusal::not_found(",
];
/// By which calls lines are written, and where.
const SOURCES: [(&[&str], &[&str]); 4] = [
    (LOG, &["bin/spillwayd/src", "control", "core", "frontends", "observe", "platform"]),
    (REFUSALS, &["bin/spillway/src"]),
    (&["eprintln!(", "self.note("], &["bin/spillway-agent/src"]),
    (&["log(", "eprintln!("], &["clients/valkey/src"]),
];
/// Who prints a line, in front of it. Rows have it or not.
const PRINTERS: [&str; 2] = ["spillway-agent: ", "spillway: "];
/// Where the pager's lines are: literal texts of a function. Shorter ones are parts of lines.
const PAGER: &str = "bin/spillway/src/notices.rs";
const PAGER_START: &str = "fn text(";
const PAGER_LINE_MIN: usize = 22;
const PAGES: [&str; 3] = ["docs/troubleshooting.md", "docs/guests.md", "docs/lending.md"];
const PLAIN: &str = "docs/plain-lines.txt";
/// Fewest characters of a part of a row that is looked for in lines.
const ROW_PART_MIN: usize = 7;
/// Fewest characters of a part of a line that is looked for in rows.
const LINE_PART_MIN: usize = 11;
/// Fewest letters, outside of placeholders, of a line that is checked.
const LETTERS_MIN: usize = 4;

/// Checks all lines.
///
/// # Errors
/// The lines without a row, and what docs/plain-lines.txt has without need.
pub fn check() -> anyhow::Result<()> {
    let root = command::root();
    let rows = rows(root)?;
    let text = read(&root.join(PLAIN))?;
    let plain: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut lines = Vec::new();
    for (calls, folders) in SOURCES {
        let before = lines.len();
        for folder in folders {
            for path in sources(&root.join(folder))? {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                let text = read(&path)?;
                let found = calls.iter().flat_map(|call| logged(&text, call));
                lines.extend(found.map(|line| (name.clone(), line)));
            }
        }
        ensure!(lines.len() > before, "no lines were found in {}", folders.join(", "));
    }
    let pager = read(&root.join(PAGER))?;
    let pager = pager.split_once(PAGER_START).context("no function with the pager's lines")?.1;
    let pager = literals(without_tests(pager));
    let pager = pager.into_iter().filter(|line| line.len() >= PAGER_LINE_MIN);
    lines.extend(pager.map(|line| (PAGER.to_owned(), line)));
    ensure!(lines.len() > 100, "only {} lines of the log were found", lines.len());
    let mut complaints = Vec::new();
    for (file, line) in &lines {
        let is_known = rows.iter().any(|row| fits(row, line));
        if !is_known && !plain.contains(&line.as_str()) {
            complaints
                .push(format!("{file}: {line:?} has no row in {} and is not in {PLAIN}", PAGES[0]));
        }
    }
    let unused = plain.iter().filter(|plain| !lines.iter().any(|(_, line)| line == *plain));
    complaints.extend(unused.map(|line| format!("{PLAIN}: no program writes {line:?}")));
    if complaints.is_empty() {
        println!("{} lines of the log, {} of them plain", lines.len(), plain.len());
        return Ok(());
    }
    bail!("{} complaints about lines of the log\n{}", complaints.len(), complaints.join("\n"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))
}

/// Whether the text of a row is about a line.
fn fits(row: &str, line: &str) -> bool {
    let of_row = row.split("...").map(|part| part.trim_matches([' ', ':', ';', ',', '.']));
    // Every second part is a placeholder.
    let of_line = line.split(['{', '}']).step_by(2).map(str::trim);
    of_row.filter(|part| part.len() >= ROW_PART_MIN).any(|part| line.contains(part))
        || of_line.filter(|part| part.len() >= LINE_PART_MIN).any(|part| row.contains(part))
}

/// The texts that the tables have in their first columns.
fn rows(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut rows = Vec::new();
    for page in PAGES {
        for line in read(&root.join(page))?.lines().filter(|line| line.starts_with('|')) {
            let first = line.split('|').nth(1).unwrap_or_default();
            // Every second part lies between backticks.
            for text in first.split('`').skip(1).step_by(2) {
                let text = ["WARN ", "ERROR ", "INFO "]
                    .iter()
                    .fold(text, |it, level| it.strip_prefix(level).unwrap_or(it));
                rows.push(text.to_owned());
            }
        }
    }
    Ok(rows)
}

/// The Rust files of a folder, but for tests.
fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "examples", "benches"].contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A file without the tests at its end.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// The message of each call: its longest literal text, in one line, without the printer's name. If that is only a
/// variable, the text that the variable has been given.
fn logged(text: &str, call: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let text = without_tests(text);
    for (at, _) in text.match_indices(call) {
        let part = &text[at + call.len()..];
        let longest = literals(arguments(part)).into_iter().max_by_key(String::len);
        let Some(line) = longest else { continue };
        let line = given(&text[..at], &line).unwrap_or(line);
        let line =
            PRINTERS.iter().fold(line.as_str(), |it, who| it.strip_prefix(who).unwrap_or(it));
        let mut is_inside = false;
        let letters = line.chars().filter(|&c| {
            is_inside = (is_inside || c == '{') && c != '}';
            !is_inside && c.is_alphabetic()
        });
        if letters.count() >= LETTERS_MIN {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// The literal text of the variable in `{variable}`, if the function has one before the call.
fn given(before: &str, message: &str) -> Option<String> {
    let name = message.strip_prefix('{')?.strip_suffix('}')?;
    let (_, function) = before.rsplit_once("fn ")?;
    let (_, value) = function.rsplit_once(&format!("let {name} = "))?;
    literals(value.split(";\n").next()?).into_iter().next()
}

/// The text until the bracket of a call closes.
fn arguments(call: &str) -> &str {
    let (mut depth, mut is_literal, mut is_escaped) = (1, false, false);
    for (at, c) in call.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_literal,
            '"' => is_literal = !is_literal,
            '(' if !is_literal => depth += 1,
            ')' if !is_literal => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &call[..at];
        }
    }
    call
}

/// The literal texts in a piece of Rust. A backslash at the end of a line joins it with the next.
fn literals(text: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut chars = text.chars().peekable();
    let mut literal: Option<String> = None;
    while let Some(c) = chars.next() {
        match (&mut literal, c) {
            (Some(text), '\\') => match chars.next() {
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some(escaped) => text.push(escaped),
                None => {}
            },
            (Some(_), '"') => literals.extend(literal.take()),
            (Some(text), c) => text.push(c),
            (None, '"') => literal = Some(String::new()),
            (None, _) => {}
        }
    }
    literals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_fits_by_a_part_of_either() {
        assert!(fits("can't borrow: ...", "can't borrow: {why}"));
        assert!(fits("it takes no more: 1.0 MiB; ...", "it takes no more: {above} stay above"));
        assert!(!fits("can't lend: ...", "can't borrow: {why}"));
    }

    #[test]
    fn a_message_in_a_variable_of_the_function_is_known() {
        let text = r#"
            fn other() { let line = "of another function"; }
            fn tells() {
                let line = format!("the file {name} is away");
                tracing::warn!(why, "{line}");
                tracing::warn!("{error}");
            }"#;
        assert_eq!(logged(text, "tracing::warn!("), ["the file {name} is away"]);
        let passes_on =
            "fn other() { let line = \"x\";\n } fn tells(line) { tracing::warn!(\"{line}\"); }";
        assert!(logged(passes_on, "tracing::warn!(").is_empty());
    }

    #[test]
    fn a_call_has_the_message_that_is_logged() {
        let text = r#"
            tracing::warn!(client = name(), "it can't be \"removed\": \
                             {error}");
            tracing::warn!(%error, "{line}");
            #[cfg(test)]
mod tests { tracing::warn!("of a test"); }"#
            .replace("            #[cfg", "#[cfg");
        assert_eq!(logged(&text, LOG[0]), ["it can't be \"removed\": {error}"]);
    }

    #[test]
    fn a_message_has_no_printer_and_may_have_short_texts_beside_it() {
        let text =
            r#"Refusal::usage(format!("{} is too little{}", size, if so { ", or" } else { "" }))"#;
        assert_eq!(logged(text, REFUSALS[0]), ["{} is too little{}"]);
        let text = r#"eprintln!("spillway-agent: the host is gone");"#;
        assert_eq!(logged(text, "eprintln!("), ["the host is gone"]);
    }
}
