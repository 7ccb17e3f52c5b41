//! Why nothing was started, in one line and an exit code.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;
use spillway_api::types::Problem;

/// A refusal. The line says what is wrong and what to do about it.
#[derive(Debug)]
pub struct Refusal {
    line: String,
    code: u8,
    /// The daemon's own message, if the daemon refused.
    problem: Option<Problem>,
    is_of_one: bool,
}

impl Refusal {
    fn new(line: impl Into<String>, code: u8) -> Self {
        Self { line: line.into(), code, problem: None, is_of_one: false }
    }

    /// Bad input, or something that this machine or program does not allow: exit code 2.
    pub fn usage(line: impl Into<String>) -> Self {
        Self::new(line, 2)
    }

    /// The daemon has refused: exit code 2.
    pub fn of_daemon(problem: Problem) -> Self {
        Self { problem: Some(problem.clone()), ..Self::new(problem.detail, 2) }
    }

    /// One of several things that a command was told to do can't be done.
    pub fn of_one(line: impl Into<String>) -> Self {
        Self { is_of_one: true, ..Self::new(line, 1) }
    }

    /// A daemon that does not answer: exit code 3.
    pub fn unreachable(line: impl Into<String>) -> Self {
        Self::new(line, 3)
    }

    /// A program that exists but can't be executed: exit code 126, as with env(1).
    pub fn not_executable(line: impl Into<String>) -> Self {
        Self::new(line, 126)
    }

    /// A program that does not exist: exit code 127, as with env(1).
    pub fn not_found(line: impl Into<String>) -> Self {
        Self::new(line, 127)
    }

    /// Whether other things of the same kind may succeed: a daemon has refused this one, or the command has.
    pub const fn is_of_one(&self) -> bool {
        self.is_of_one || self.problem.is_some()
    }

    /// Whether a daemon has refused with a problem of this kind.
    pub fn is_kind(&self, kind: &str) -> bool {
        let problem = self.problem.as_ref();
        problem.is_some_and(|it| it.kind.strip_prefix("urn:spillway:") == Some(kind))
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

/// Prints the error, as JSON if that was asked for, and gives the code: the refusal's own, else 1.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let line = if json { as_json(error) } else { format!("spillway: {error:#}") };
    // Without a standard error the code alone must do.
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(error.downcast_ref::<Refusal>().map_or(1, |refusal| refusal.code))
}

/// A problem as the daemon writes them (RFC 9457), on one line. Only the daemon's have a status.
fn as_json(error: &anyhow::Error) -> String {
    let refusal = error.downcast_ref::<Refusal>();
    if let Some(problem) = refusal.and_then(|refusal| refusal.problem.as_ref())
        && let Ok(text) = serde_json::to_string(problem)
    {
        return text;
    }
    let (kind, title) = match refusal.map(|refusal| refusal.code) {
        Some(2) => ("usage", "Bad input"),
        Some(3) => ("unreachable", "No daemon answers"),
        Some(_) => ("program", "The program can't be started"),
        None => ("failed", "Failed on the way"),
    };
    let kind = format!("urn:spillway:{kind}");
    json!({ "type": kind, "title": title, "detail": format!("{error:#}") }).to_string()
}

/// Whether a command line asks for JSON: also where the rest of it is not understood.
pub fn asks_for_json(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let mut names_output = false;
    for argument in arguments {
        let argument = argument.to_string_lossy();
        match &*argument {
            // What follows is a program's.
            "--" => return false,
            "json" if names_output => return true,
            "-ojson" | "-o=json" | "--output=json" => return true,
            argument => names_output = matches!(argument, "-o" | "--output"),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_json_keeps_what_the_daemon_said() {
        let problem = Problem {
            kind: "urn:spillway:no-client".into(),
            title: "Not Found".into(),
            status: 404,
            detail: "there is no client 'x'".into(),
        };
        let read = |error: anyhow::Error| -> serde_json::Value {
            let text = as_json(&error);
            assert_eq!(text.lines().count(), 1, "{text}");
            serde_json::from_str(&text).unwrap()
        };
        let told = read(Refusal::of_daemon(problem).into());
        assert_eq!(
            (&told["type"], &told["status"]),
            (&"urn:spillway:no-client".into(), &404.into())
        );
        assert_eq!(told["detail"], "there is no client 'x'");
        for (error, kind) in [
            (Refusal::usage("a").into(), "usage"),
            (Refusal::unreachable("a").into(), "unreachable"),
            (anyhow::anyhow!("a \"quoted\"\nline"), "failed"),
        ] {
            let told = read(error);
            assert_eq!(told["type"], format!("urn:spillway:{kind}"));
            assert!(told["detail"].as_str().unwrap().starts_with('a'));
        }
    }

    #[test]
    fn the_command_line_says_whether_errors_are_json() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        for yes in ["stat -o json", "stat -ojson", "stat --output json x", "--output=json"] {
            assert!(asks(yes), "{yes}");
        }
        for no in ["stat", "stat -o table", "run --local 1G -- prog -o json", "json -o"] {
            assert!(!asks(no), "{no}");
        }
    }
}
