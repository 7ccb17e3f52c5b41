//! Helpers of the tests: price files with a changed number, and reports without copies of the inputs.
#![allow(dead_code, reason = "each test file uses some of it")]

use serde_json::Value;
use spillway_cost::{CURRENT, Error, PAPER, read, report};

/// The price files of the program.
pub const FILES: [(&str, &str); 2] = [("paper", PAPER), ("current", CURRENT)];

/// A number in a price file.
#[derive(Clone, Debug)]
pub struct Number {
    pub line: usize,
    pub section: String,
    pub key: String,
    pub value: f64,
    range: std::ops::Range<usize>,
}

/// Every number of a price file: `key = 1` and `key = [1, 2]`.
pub fn numbers(text: &str) -> Vec<Number> {
    let (mut found, mut section, mut at) = (Vec::new(), String::new(), 0);
    for (line, content) in (1..).zip(text.lines()) {
        if content.starts_with('[') {
            section = content.trim_matches(['[', ']']).to_owned();
        } else if let Some((key, value)) = content.split_once(" = ") {
            let start = at + key.len() + 3;
            if value.starts_with(|it: char| it == '[' || it.is_ascii_digit()) {
                for (offset, piece) in pieces(value) {
                    if let Ok(number) = piece.parse() {
                        let range = start + offset..start + offset + piece.len();
                        let (section, key) = (section.clone(), key.to_owned());
                        found.push(Number { line, section, key, value: number, range });
                    }
                }
            }
        }
        at += content.len() + 1;
    }
    found
}

fn pieces(value: &str) -> impl Iterator<Item = (usize, &str)> {
    value
        .split([',', '[', ']', ' '])
        .map(move |piece| (piece.as_ptr() as usize - value.as_ptr() as usize, piece))
}

/// The file with another number at this place.
pub fn with(text: &str, number: &Number, value: f64) -> String {
    let mut changed = text.to_owned();
    changed.replace_range(number.range.clone(), &value.to_string());
    changed
}

/// The report as JSON.
pub fn json(text: &str) -> Result<Value, Error> {
    let prices = read("prices.toml", text)?;
    Ok(serde_json::to_value(report(&prices)).expect("a report can be written"))
}

/// The report without the list of inputs and other copies of the file.
pub fn outcome(text: &str) -> Result<Value, Error> {
    let mut report = json(text)?;
    let all = report.as_object_mut().expect("an object");
    all.remove("inputs");
    all.remove("assumptions");
    for claim in all["claims"].as_array_mut().expect("claims") {
        claim.as_object_mut().expect("a claim").remove("says");
    }
    Ok(report)
}

/// A configuration's number in a report.
pub fn of(report: &Value, name: &str, key: &str) -> f64 {
    let all = report["configurations"].as_array().expect("configurations");
    let found = all.iter().find(|it| it["name"] == name).expect("the configuration");
    found[key].as_f64().expect("a number")
}

/// A derived number.
pub fn derived(report: &Value, name: &str) -> f64 {
    let all = report["derived"].as_array().expect("derived numbers");
    let found = all.iter().find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is derived"))["value"].as_f64().expect("a number")
}

/// Whether two numbers are equal except for rounding.
pub fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0)
}

/// The file with another value for a key, written as TOML.
pub fn set(text: &str, section: &str, key: &str, value: &str) -> String {
    let (mut here, mut done) = (section.is_empty(), false);
    let lines = text.lines().map(|line| {
        if line.starts_with('[') {
            here = line.trim_matches(['[', ']']) == section;
        }
        if here && !done && line.split(" = ").next() == Some(key) {
            done = true;
            return format!("{key} = {value}\n");
        }
        format!("{line}\n")
    });
    let changed: String = lines.collect();
    assert!(done, "there is no {section}.{key}");
    changed
}
