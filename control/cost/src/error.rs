//! What is wrong with a price file: one line that says where, what and what to do about it.

use serde::Serialize;
use thiserror::Error;

/// A price file or a parameter that no report can be made of.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Error {
    /// The text is no TOML.
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
    /// A key is missing, unknown, or has a value that can't be.
    #[error("{file} line {line}: {key} {problem}: {remedy}")]
    Value {
        /// The file's name.
        file: String,
        /// The line, from 1; of a missing key that of its section.
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

/// What is wrong and what to do, before it is known where.
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
    /// `key` is wrong.
    pub fn new(key: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key, problem: problem.into(), remedy: remedy.into() }
    }
}
