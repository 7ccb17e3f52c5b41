//! Checks the names that users meet: docs/glossary.md explains every word of a setting, metric, field, path, command or
//! flag, unless docs/ordinary-words.txt lists it as a word with its usual meaning. A new word fails until it is in one of
//! them.
//!
//! The names come from pages that tests compare with the code: config.md, metrics.md, stats.md, openapi.json and
//! commands.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::command;

const GLOSSARY: &str = "docs/glossary.md";
const ORDINARY: &str = "docs/ordinary-words.txt";

/// Checks all names.
///
/// # Errors
/// A line for each word that neither list has, and for each ordinary word that no name has.
pub fn check() -> anyhow::Result<()> {
    let terms = terms(&read(GLOSSARY)?);
    let ordinary = read(ORDINARY)?;
    let ordinary: BTreeSet<_> = ordinary.lines().filter(|it| !it.starts_with('#')).collect();
    let mut names = BTreeSet::new();
    for page in ["docs/config.md", "docs/metrics.md", "docs/stats.md"] {
        names.extend(of_tables(&read(page)?));
    }
    names.extend(of_commands(&read("docs/commands.md")?));
    of_interface(&serde_json::from_str(&read("docs/openapi.json")?)?, &mut names);
    ensure!(names.len() > 500, "only {} names are found in the pages", names.len());

    let words = words(&names);
    let mut complaints = Vec::new();
    for (word, name) in &words {
        let is_known = |it: &str| terms.contains(it) || ordinary.contains(it);
        if !is_among(word, is_known) {
            complaints.push(format!("\"{word}\" of {name}: explain it in {GLOSSARY}"));
        }
    }
    for word in ordinary {
        if terms.contains(word) || !words.keys().any(|it| is_among(it, |form| form == word)) {
            complaints.push(format!("{ORDINARY}: \"{word}\" is a term, or in no name"));
        }
    }
    if complaints.is_empty() {
        println!("{} names, of {} words", names.len(), words.len());
        return Ok(());
    }
    bail!("{} complaints\n{}", complaints.len(), complaints.join("\n"))
}

fn read(page: &str) -> anyhow::Result<String> {
    fs::read_to_string(command::root().join(page)).with_context(|| format!("can't read {page}"))
}

/// The words of the glossary's terms: the first column of its first table.
fn terms(glossary: &str) -> BTreeSet<String> {
    let table = glossary.lines().take_while(|line| !line.starts_with("## "));
    let rows = table.filter_map(|line| line.strip_prefix("| "));
    let terms = rows.filter_map(|row| row.split(" | ").next());
    terms.flat_map(split).collect()
}

/// The text in backticks in the first column of a page's tables, and the settings' sections.
fn of_tables(page: &str) -> Vec<String> {
    let cells = page.lines().filter_map(|line| match line.strip_prefix("## [") {
        Some(section) => Some(section),
        None => line.strip_prefix("| ")?.split(" | ").next().filter(|cell| cell.contains('`')),
    });
    cells.flat_map(|cell| cell.split([' ', ',', '`', ']', '{', '}'])).map(str::to_owned).collect()
}

/// The commands and their flags, from what `--help` prints.
fn of_commands(page: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in page.lines() {
        if let Some(command) = line.strip_prefix("### ") {
            names.push(command.to_owned());
        } else if line.starts_with("  ") {
            let flag = line.split_whitespace().take(2).find_map(|word| word.strip_prefix("--"));
            names.extend(flag.map(|flag| flag.trim_end_matches(',').to_owned()));
        }
    }
    names
}

/// The paths, parameters and fields of the HTTP interface.
fn of_interface(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                if let ("properties" | "paths", Value::Object(named)) = (key.as_str(), inner) {
                    names.extend(named.keys().cloned());
                }
                of_interface(inner, names);
            }
            if let (Some(Value::String(name)), true) =
                (fields.get("name"), fields.contains_key("in"))
            {
                names.insert(name.clone());
            }
        }
        Value::Array(items) => items.iter().for_each(|it| of_interface(it, names)),
        _ => {}
    }
}

/// Each word, with a name that has it.
fn words(names: &BTreeSet<String>) -> BTreeMap<String, &str> {
    names.iter().flat_map(|name| split(name).map(move |word| (word, name.as_str()))).collect()
}

/// The words of a name or term, in lower case. A single letter is not a word.
fn split(name: &str) -> impl Iterator<Item = String> {
    let words = name.split(|it: char| !it.is_ascii_alphabetic());
    words.filter(|word| word.len() > 1).map(str::to_lowercase)
}

/// Whether the word is known, or is a regular form of a known word: a plural, a participle.
fn is_among(word: &str, known: impl Fn(&str) -> bool) -> bool {
    let endings =
        [("", ""), ("s", ""), ("es", ""), ("ies", "y"), ("ed", ""), ("d", ""), ("ing", "")];
    let mut stems = endings
        .iter()
        .filter_map(|(ending, instead)| Some(format!("{}{instead}", word.strip_suffix(ending)?)));
    stems.any(|stem| known(&stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_each_kind_of_page() {
        let page = "## [listen]\n| `nbd_tcp` | a path |\n| setting | meaning |\n`prose`\n";
        let names = of_tables(page);
        assert!(names.contains(&"listen".into()) && names.contains(&"nbd_tcp".into()));
        assert!(!names.iter().any(|it| it == "prose" || it == "setting"));
        let page =
            "### spillway vm grow\n      --local <SIZE>\n  -o, --output <FORM>\nsee --none\n";
        assert_eq!(of_commands(page), ["spillway vm grow", "local", "output"]);
        let mut names = BTreeSet::new();
        let interface = serde_json::json!({
            "paths": {"/v1/pools": {"parameters": [{"in": "path", "name": "pool"}]}},
            "schemas": [{"properties": {"used_bytes": {"type": "number"}}}],
        });
        of_interface(&interface, &mut names);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["/v1/pools", "pool", "used_bytes"]);
    }

    #[test]
    fn words_are_known_in_other_forms_too() {
        let terms =
            terms("| term | meaning |\n|---|---|\n| far page | x |\n\n## Retired words\n| hand |");
        for (word, known) in [("page", true), ("pages", true), ("far", true), ("hand", false)] {
            assert_eq!(is_among(word, |it| terms.contains(it)), known, "{word}");
        }
        for (word, stem) in [("entries", "entry"), ("caches", "cache"), ("merged", "merge")] {
            assert!(is_among(word, |it| it == stem), "{word}");
        }
        for (word, known) in [("waiting", "wa"), ("pagesize", "page"), ("nodeset", "node")] {
            assert!(!is_among(word, |it| it == known), "{word}");
        }
        assert_eq!(split("longest_stall_µs/v1").collect::<Vec<_>>(), ["longest", "stall"]);
    }
}
