//! Why nothing was started, in one line and an exit code.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// A clear no. The line says what is wrong and what to do about it.
#[derive(Debug)]
pub struct Refusal {
    line: String,
    code: u8,
}

impl Refusal {
    /// Bad input, or something that this machine or program does not allow: exit code 2.
    pub fn usage(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: 2 }
    }

    /// A daemon that does not answer: exit code 3.
    pub fn unreachable(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: 3 }
    }

    /// A program that is there and can't be executed: exit code 126, as with env(1).
    pub fn not_executable(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: 126 }
    }

    /// A program that is not there: exit code 127, as with env(1).
    pub fn not_found(line: impl Into<String>) -> Self {
        Self { line: line.into(), code: 127 }
    }

    /// The exit code.
    #[cfg(test)]
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Refusal {}

/// Prints the line and gives the code: the refusal's own, else 1.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // Without a standard error the code alone must do.
    let _ = writeln!(io::stderr(), "spillway: {error:#}");
    ExitCode::from(error.downcast_ref::<Refusal>().map_or(1, |refusal| refusal.code))
}
