//! `spillway disk`: disks of guests whose pages lie in the store.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use spillway_api::types::{DiskEmptied, DiskStatus};
use spillway_types::Size;

use crate::daemon::api::{Api, segment};
use crate::daemon::names;
use crate::daemon::options::Daemon;
use crate::show;

/// Shows tmem disks, and empties those of guests that have ended.
#[derive(Debug, Args)]
pub struct DiskCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists all tmem disks, and whether a guest uses them.
    List {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Removes all pages of a disk from the store. A swap disk reads as zeros afterwards; a cache disk keeps the data in
    /// its file. The guest must have ended: it would lose what it has swapped out.
    Empty {
        /// The disk.
        #[arg(add = names::disks())]
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &DiskCommand) -> anyhow::Result<ExitCode> {
    match &options.action {
        Action::List { daemon } => {
            let disks: Vec<DiskStatus> = Api::new(daemon)?.get("/v1/disks")?;
            show::answer(daemon.output, &disks, HEADS, disks.iter().map(row))?;
        }
        Action::Empty { name, daemon } => {
            let path = format!("/v1/disks/{}/empty", segment(name));
            let emptied: DiskEmptied = Api::new(daemon)?.send(Method::POST, &path, &())?;
            let row = [name.clone(), show::pages(emptied.freed_pages)];
            show::answer(daemon.output, &emptied, ["disk", "freed"], [row])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

const HEADS: [&str; 14] = [
    "disk",
    "client",
    "kind",
    "size",
    "held",
    "unread",
    "read",
    "written",
    "to file",
    "discarded",
    "errors",
    "last error",
    "refused guests",
    "state",
];

fn row(disk: &DiskStatus) -> [String; 14] {
    let its = &disk.statistics;
    [
        disk.name.clone(),
        disk.client.clone(),
        disk.kind.clone(),
        Size(disk.bytes).to_string(),
        disk.held_pages.map_or_else(|| "-".to_owned(), show::pages),
        show::pages(disk.unread_pages),
        show::pages(its.store_read_pages + its.file_read_pages + its.zero_read_pages),
        show::pages(its.store_written_pages + its.file_written_pages),
        show::pages(its.file_written_pages + its.demoted_pages),
        show::pages(its.discarded_pages),
        its.errors.to_string(),
        last_error(disk),
        its.refused_guests.to_string(),
        format!("{} for {}", state(disk), show::duration(disk.state_s)),
    ]
}

/// The state, and the reason of a refusal.
fn state(disk: &DiskStatus) -> String {
    match &disk.reason {
        Some(reason) => format!("{} ({reason})", disk.state),
        None => disk.state.clone(),
    }
}

/// Why a request last failed, and when.
fn last_error(disk: &DiskStatus) -> String {
    match (&disk.last_error, disk.last_error_s) {
        (Some(why), Some(ago_s)) => format!("{} ago: {why}", show::duration(ago_s)),
        _ => "-".to_owned(),
    }
}

/// The disks in a table under an empty line. Empty if there are none.
pub fn overview(disks: &[DiskStatus]) -> String {
    if disks.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = disks.iter().map(row).collect();
    format!("\n{}", show::table(HEADS, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_row_with_its_state_and_why() {
        assert_eq!(overview(&[]), "");
        let mut disk = DiskStatus {
            name: "swap".into(),
            state: "attached".into(),
            state_s: 90,
            held_pages: Some(512),
            ..DiskStatus::default()
        };
        disk.statistics.demoted_pages = 256;
        let text = overview(std::slice::from_ref(&disk));
        assert!(text.contains("2.0 MiB") && text.contains("1.0 MiB"), "{text}");
        assert!(text.ends_with("attached for 1 min 30 s\n"), "{text}");
        (disk.state, disk.reason) =
            ("refused".into(), Some("its memory is no sealed memfd".into()));
        let text = overview(&[disk]);
        assert!(
            text.ends_with("refused (its memory is no sealed memfd) for 1 min 30 s\n"),
            "{text}"
        );
    }
}
