//! A process that keeps the windows' pages pinned if the agent is killed. It does nothing: an inherited descriptor
//! holds the pins. It ends once the agent has ended and no file of that agent's run is left. The next agent removes
//! these files when the host has released the pages.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::port::wait;

/// Interval at which it checks for remaining files.
const LOOKS_EVERY: Duration = Duration::from_millis(200);
/// The program's arguments.
pub const COMMAND: &str = "hold-windows";

/// Starts the process. The returned socket closes when the agent ends, which the process notices.
///
/// # Errors
/// It does not start.
pub fn start(pins: &OwnedFd, folder: &Path, run: &str) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    Command::new(std::env::current_exe()?)
        .arg(COMMAND)
        .arg(folder)
        .arg(run)
        .stdin(Stdio::from(pins.try_clone()?))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::null())
        // A session of its own, so that it does not get signals for the agent and its children.
        .process_group(0)
        .spawn()?;
    Ok(ours)
}

/// The main function of the process.
pub fn hold(folder: &Path, run: &str) -> ExitCode {
    let agent = io::stdout();
    // End of file means that the agent has ended: nothing is ever written.
    loop {
        let mut ends = [PollFd::new(&agent, PollFlags::RDHUP)];
        wait(&mut ends, Duration::from_secs(60));
        if ends[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
            break;
        }
    }
    while has_files(folder, run) {
        std::thread::sleep(LOOKS_EVERY);
    }
    ExitCode::SUCCESS
}

/// Whether files of a run are left. If the directory can't be read, there may be some.
fn has_files(folder: &Path, run: &str) -> bool {
    let is_its = |name: &str| name.strip_prefix(run).is_some_and(|rest| rest.starts_with('-'));
    match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().any(|it| is_its(&it.file_name().to_string_lossy())),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_runs_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("aa1-7-0"), "").unwrap();
        assert!(has_files(folder.path(), "aa1"));
        assert!(!has_files(folder.path(), "aa"));
        assert!(!has_files(&folder.path().join("none"), "aa1"));
    }
}
