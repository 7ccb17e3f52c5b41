//! Errors of a price file: one line with the place, the problem and the remedy.

use serde::Serialize;
use thiserror::Error;

/// An invalid price file or parameter.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Error {
    /// The text is not TOML.
    #[error("{file} line {line}: {problem}: {remedy}")]
    Syntax {
        /// The file's name.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A key is missing, unknown, or has an invalid value.
    #[error("{file} line {line}: {key} {problem}: {remedy}")]
    Value {
        /// The file's name.
        file: String,
        /// The line, from 1; for a missing key that of its section.
        line: usize,
        /// The key with its section, such as `configuration.max.hardware_usd`.
        key: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A parameter does not fit the file.
    #[error("{parameter} {problem}: {remedy}")]
    Parameter {
        /// The parameter's name.
        parameter: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

/// The problem and the remedy, without the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key within its section.
    pub key: &'static str,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl Fault {
    /// The error that `key` is wrong.
    pub fn new(key: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key, problem: problem.into(), remedy: remedy.into() }
    }
}
