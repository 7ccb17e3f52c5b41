//! `spillway lend`: what this host lends and borrows.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use spillway_api::types::{LendBorrow, LendStatus};
use spillway_types::{PAGE_BYTES, Size};

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::show::{self, Output};
use crate::units::parse_size;

/// Shows and changes what this host lends to other hosts and borrows from them.
#[derive(Debug, Args)]
pub struct Lend {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows this host's role, its loans, its devices, and the other hosts.
    Status {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Borrows a device now, whatever the memory use. The device stays until `return`.
    Borrow {
        /// The size, rounded to whole slabs.
        #[arg(value_parser = parse_size)]
        size: u64,

        #[command(flatten)]
        daemon: Daemon,
    },
    /// Returns all borrowed memory.
    Return {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Returns all borrowed memory, recalls all loans, and stops lending and borrowing until `resume`.
    Drain {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Resumes lending and borrowing.
    Resume {
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &Lend) -> anyhow::Result<ExitCode> {
    let order = |daemon: &Daemon, name: &str| {
        let path = format!("/v1/lending/{name}");
        Api::new(daemon)?.send::<LendStatus>(Method::POST, &path, &())
    };
    let (daemon, status) = match &options.action {
        Action::Status { daemon } => (daemon, Api::new(daemon)?.get("/v1/lending")?),
        Action::Borrow { size, daemon } => {
            let wanted = LendBorrow { bytes: *size };
            (daemon, Api::new(daemon)?.send(Method::POST, "/v1/lending/borrow", &wanted)?)
        }
        Action::Return { daemon } => (daemon, order(daemon, "return")?),
        Action::Drain { daemon } => (daemon, order(daemon, "drain")?),
        Action::Resume { daemon } => (daemon, order(daemon, "resume")?),
    };
    match daemon.output {
        Output::Json => show::json(&status)?,
        Output::Table => show::print(&text(&status))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A line about this host's role.
pub fn line(status: &LendStatus) -> String {
    let percent = |bytes: u64| show::percent(bytes, status.memory.total_bytes);
    let marks = [
        (status.waiting, ", waits for lenders"),
        (status.draining, ", drained"),
        (status.dry_run, ", dry run"),
        (status.helper == "gone", ", the helper is gone"),
        (status.helper == "silent", ", the helper does not answer"),
    ];
    let loans = |bytes: u64, count: usize| {
        format!("{} in {count} loan{}", Size(bytes), if count == 1 { "" } else { "s" })
    };
    let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
    format!(
        "{}: {}{marks}; memory {}% used (borrows above {}%, gives back below {}%); \
         lent {}, borrowed {}, spare {}{}\n",
        status.host,
        status.role,
        percent(status.memory.used_bytes),
        percent(status.memory.upper_bytes),
        percent(status.memory.lower_bytes),
        loans(status.lent_bytes, status.lent.len()),
        loans(status.borrowed_bytes, status.borrowed.len()),
        Size(status.spare_bytes),
        unwell(status),
    )
}

/// The hosts that are not healthy; empty if there are none.
fn unwell(status: &LendStatus) -> String {
    let of = |health: &str| status.peers.iter().filter(|peer| peer.health == health).count();
    let all = status.peers.len();
    let counts = ["slow", "unreachable", "refused"].map(|health| (of(health), health));
    let bad = counts.iter().filter(|(count, _)| *count != 0);
    let bad: Vec<_> = bad.map(|(count, health)| format!("{count} {health}")).collect();
    if bad.is_empty() { String::new() } else { format!("; of {all} hosts {}", bad.join(", ")) }
}

/// A state, followed by the host's health unless the host is healthy.
fn state(state: &str, health: &str) -> String {
    match health {
        "" | "ok" => state.to_owned(),
        health => format!("{state}, {health}"),
    }
}

/// The whole status, for people.
fn text(status: &LendStatus) -> String {
    if status.role == "off" {
        return "off: set lend.roles in the daemon's configuration, see docs/lending.md\n"
            .to_owned();
    }
    let mut text = line(status);
    let loans = loans(status);
    if !loans.is_empty() {
        let heads = ["loan", "lender", "borrower", "size", "used", "state", "lease"];
        text.push_str(&format!("\n{}", show::table(heads, &loans)));
    }
    let devices: Vec<_> = status.devices.iter().map(device).collect();
    if !devices.is_empty() {
        let heads = [
            "device",
            "size",
            "used",
            "state",
            "mirrored",
            "single",
            "unreachable",
            "lost",
            "behind",
            "longest stall",
        ];
        text.push_str(&format!("\n{}", show::table(heads, &devices)));
    }
    let peer = |peer: &spillway_api::types::LendPeer| {
        let spare = Size(peer.spare_bytes).to_string();
        [
            peer.name.clone(),
            peer.address.clone(),
            peer.rack.clone(),
            spare,
            peer.health.clone(),
            format!("{} s", peer.health_s),
        ]
    };
    let peers: Vec<_> = status.peers.iter().map(peer).collect();
    if !peers.is_empty() {
        let table = show::table(["host", "address", "rack", "spare", "health", "for"], &peers);
        let reasons = status.peers.iter().map(|peer| peer.reason.as_str());
        text.push('\n');
        for (line, reason) in table.lines().zip(std::iter::once("reason").chain(reasons)) {
            text.push_str(&format!("{line}  {}\n", if reason.is_empty() { "-" } else { reason }));
        }
    }
    text
}

fn loans(status: &LendStatus) -> Vec<[String; 7]> {
    let lease = |ms: u64| format!("{} s", ms / 1000);
    let lent = status.lent.iter().map(|loan| {
        [
            loan.loan.clone(),
            status.host.clone(),
            loan.borrower.clone(),
            Size(loan.bytes).to_string(),
            Size(loan.used_bytes).to_string(),
            state(&loan.state, &loan.health),
            lease(loan.lease_ms),
        ]
    });
    let borrowed = status.borrowed.iter().map(|loan| {
        [
            loan.loan.clone(),
            loan.lender.clone(),
            status.host.clone(),
            Size(loan.bytes).to_string(),
            "-".to_owned(),
            state(&loan.state, &loan.health),
            lease(loan.lease_ms),
        ]
    });
    lent.chain(borrowed).collect()
}

fn device(device: &spillway_api::types::LendDevice) -> [String; 10] {
    let name = match device.path.as_str() {
        "" => device.device.to_string(),
        path => path.to_owned(),
    };
    [
        name,
        Size(device.bytes).to_string(),
        Size(device.used_bytes).to_string(),
        state(&device.state, &device.health),
        device.slabs_mirrored.to_string(),
        device.slabs_single.to_string(),
        device.slabs_unreachable.to_string(),
        device.slabs_lost.to_string(),
        Size(device.behind_pages * PAGE_BYTES as u64).to_string(),
        format!("{} ms", device.longest_stall_us / 1000),
    ]
}

#[cfg(test)]
mod tests {
    use spillway_api::types::{BorrowedLoan, LendDevice, LendPeer, LentLoan};

    use super::*;

    #[test]
    fn a_status_is_a_line_and_tables_of_what_there_is() {
        let mut status = LendStatus {
            host: "a.test".into(),
            role: "lender".into(),
            draining: true,
            ..LendStatus::default()
        };
        assert_eq!(text(&status).lines().count(), 1);
        assert!(text(&status).starts_with("a.test: lender, drained; memory 0% used"));
        status.lent.push(LentLoan { borrower: "b.test".into(), ..LentLoan::default() });
        status.devices.push(LendDevice::default());
        let text = text(&status);
        assert!(text.contains("b.test") && text.contains("longest stall"), "{text}");
    }

    #[test]
    fn what_lies_with_a_host_that_does_not_answer_says_so() {
        let peer = |name: &str, health: &str, reason: &str| LendPeer {
            name: name.into(),
            health: health.into(),
            reason: reason.into(),
            health_s: 6,
            ..LendPeer::default()
        };
        let loan = |lender: &str, health: &str| BorrowedLoan {
            loan: "0001".into(),
            lender: lender.into(),
            state: "held".into(),
            health: health.into(),
            ..BorrowedLoan::default()
        };
        let mut status = LendStatus { peers: vec![peer("c", "ok", "")], ..LendStatus::default() };
        status.borrowed.push(loan("c", "ok"));
        assert!(!text(&status).contains("; of"), "{}", text(&status));
        assert!(
            line(&status).contains("lent 0 B in 0 loans, borrowed 0 B in 1 loan, "),
            "{}",
            line(&status)
        );
        status.peers.push(peer("b", "unreachable", "connection refused"));
        status.borrowed.push(loan("b", "unreachable"));
        status.devices.push(LendDevice {
            state: "attached".into(),
            health: "unreachable".into(),
            slabs_single: 3,
            ..LendDevice::default()
        });
        let text = text(&status);
        let row = |start: &str| {
            let found = text.lines().find(|line| line.starts_with(start));
            found.unwrap_or_else(|| panic!("{start} in {text}")).to_owned()
        };
        assert!(line(&status).ends_with("; of 2 hosts 1 unreachable\n"), "{}", line(&status));
        assert!(row("b ").contains("unreachable") && row("b ").contains("6 s"), "{text}");
        assert!(row("b ").contains("connection refused") && row("c ").contains(" ok"), "{text}");
        assert_eq!(text.matches("held, unreachable").count(), 1, "{text}");
        assert!(text.contains("attached, unreachable"), "{text}");
    }
}
