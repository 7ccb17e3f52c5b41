//! Programs of the system, run with a time limit.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval at which a program's end is polled.
const LOOK: Duration = Duration::from_millis(5);
/// Search path of programs. The helper does not trust its environment for it.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Longest part of a program's error output that is reported, in characters.
const COMPLAINT_MAX: usize = 400;

/// Runs a program to its end.
///
/// # Errors
/// One line with the program and its error output, or that it took too long and was killed.
pub fn run(program: &str, arguments: &[&str], time: Duration) -> Result<(), String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("can't run {program}: {error}"))?;
    let end = Instant::now() + time;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => sleep(LOOK),
            Ok(None) => {
                // A killed swapoff stops, and the device stays in use.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{program} took longer than {} s", time.as_secs()));
            }
            Err(error) => return Err(format!("can't wait for {program}: {error}")),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(errors) = child.stderr.take() {
        // Output that a child of the program still holds open is waited for at most this long.
        let _ = errors.take(4096).read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said);
    let line: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line: String = line.join("; ").chars().take(COMPLAINT_MAX).collect();
    let what = if line.is_empty() { status.to_string() } else { line };
    Err(format!("{program} {}: {what}", arguments.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_is_one_line() {
        let time = Duration::from_secs(60);
        assert_eq!(run("true", &[], time), Ok(()));
        assert_eq!(
            run("sh", &["-c", "echo a >&2; echo b >&2; exit 3"], time)
                .unwrap_err()
                .split(": ")
                .last(),
            Some("a; b")
        );
        assert!(run("no-such-program", &[], time).unwrap_err().starts_with("can't run"));
        assert!(
            run("sleep", &["60"], Duration::from_millis(20)).unwrap_err().contains("took longer")
        );
        assert!(run("false", &[], time).unwrap_err().contains("exit status: 1"));
    }
}
