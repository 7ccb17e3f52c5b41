//! `spillway guest-memory`: pages the memory of a guest whose monitor hands it over.
//!
//! This process takes the handover and holds every descriptor. A child of it, the *manager*, does the work,
//! and is restarted when it dies. When this process is killed, the manager takes its place.

mod accept;
mod manager;
mod plan;
mod report;
mod supervisor;
mod tiers;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use spillway_guest_memory::Handshake;
use spillway_host::Limits;

use crate::options::Remote;
use crate::program::plain;
use crate::refusal::Refusal;
use crate::run::{self, Sink};
use crate::units::{parse_size, show_size};

/// The store is at least as large as the least that stages pages.
const LEAST_STORE: u64 = 8 << 20;
/// The largest that a store can be.
const MOST_STORE: u64 = 256 << 30;
/// A smaller budget holds hardly more than one window of pages.
const LEAST_LOCAL: u64 = 1 << 20;

/// Prints a line for the user.
fn say(line: &str) {
    // A closed standard error is the user's choice.
    let _ = writeln!(io::stderr(), "spillway: {line}");
}

/// Pages the memory of a guest whose monitor hands it over.
///
/// Monitors other than QEMU can hand their guest's memory to another process, over a Unix socket with a userfaultfd.
/// This command is that process, for one guest. See docs/guest-memory.md.
///
/// On SIGTERM or SIGINT it brings every page back to the guest's memory and releases it. The guest
/// continues.
#[derive(Debug, Args)]
pub struct GuestMemory {
    /// The socket to which the monitor connects. Only this user can connect. The socket is removed when a guest has
    /// connected.
    #[arg(long, value_name = "SOCKET")]
    listen: PathBuf,

    /// The monitor's handshake.
    #[arg(long, value_enum)]
    handshake: Monitor,

    /// Most memory that the guest's pages may take; at least 1M. For Cloud Hypervisor only: no page can leave a
    /// Firecracker guest.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    local: Option<u64>,

    /// Most memory that the store may take. Default: what the machine can give, less --local; with --blade a quarter of
    /// --local, at least 8M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    store: Option<u64>,

    /// Directory for the pages that do not fit in the store.
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,

    #[command(flatten)]
    remote: Remote,

    /// The file to which Firecracker saved the guest's memory. Pages get their initial contents
    /// from it.
    #[arg(long, value_name = "FILE")]
    memory_file: Option<PathBuf>,

    /// Writes statistics as JSON when the guest has ended; - is standard output.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
}

/// Runs a part of `guest-memory` in a process of its own.
#[derive(Debug, Args)]
pub struct GuestMemoryPart {
    /// Which.
    #[arg(value_enum)]
    part: Part,
    /// The number of the plan's descriptor.
    plan: i32,
    /// The number of the descriptor that becomes readable when the supervisor ends.
    supervisor: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Answers faults.
    Manager,
    /// Takes a supervisor's place.
    Successor,
}

/// A monitor's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Monitor {
    /// As proposed for Cloud Hypervisor, and not merged there yet.
    CloudHypervisor,
    /// Firecracker's, for page faults on snapshot resume: pages come in, none leave.
    Firecracker,
}

impl From<Monitor> for Handshake {
    fn from(monitor: Monitor) -> Self {
        match monitor {
            Monitor::CloudHypervisor => Self::CloudHypervisor,
            Monitor::Firecracker => Self::Firecracker,
        }
    }
}

/// Checked options.
struct Checked {
    handshake: Handshake,
    local: u64,
    store: u64,
    disk: Option<PathBuf>,
    source: Option<(OwnedFd, u64)>,
}

/// Waits for a guest and serves it until it ends.
///
/// # Errors
/// A [`Refusal`] if nothing was started, or why the guest could not be served.
pub fn run(options: &GuestMemory) -> anyhow::Result<ExitCode> {
    let checked = check(options, &Limits::read())?;
    let sink = options.stats.as_deref().map(Sink::open).transpose()?;
    let held = supervisor::hold_signals()?;
    let tiers = if checked.handshake.pages_out() {
        Some(tiers::Tiers::open(options, &checked)?)
    } else {
        None
    };
    let listener = accept::listen(&options.listen)?;
    let Some(guest) = accept::guest(&listener, &checked, tiers.as_ref(), &held)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let (supervisor, socket) = guest;
    drop(listener);
    supervisor.run(&held, Some(socket), sink)
}

/// Runs one of the parts.
///
/// # Errors
/// Why it can't.
pub fn part(options: &GuestMemoryPart) -> anyhow::Result<ExitCode> {
    match (options.part, options.supervisor) {
        (Part::Manager, Some(supervisor)) => manager::run(options.plan, supervisor),
        (Part::Manager, None) => Err(Refusal::usage("a manager needs a supervisor").into()),
        (Part::Successor, _) => {
            let held = supervisor::hold_signals()?;
            supervisor::Supervisor::inherit(options.plan)?.run(&held, None, None)
        }
    }
}

fn check(options: &GuestMemory, limits: &Limits) -> Result<Checked, Refusal> {
    let handshake = Handshake::from(options.handshake);
    if handshake.pages_out() { check_paged(options, limits) } else { check_loaded(options) }
}

fn check_paged(options: &GuestMemory, limits: &Limits) -> Result<Checked, Refusal> {
    if options.memory_file.is_some() {
        return Err(Refusal::usage(
            "--memory-file is for Firecracker: Cloud Hypervisor hands over its memory files itself",
        ));
    }
    let Some(local) = options.local else {
        return Err(Refusal::usage(
            "--local is missing: say how much memory the guest's pages may take",
        ));
    };
    let most = limits.most_local();
    if !(LEAST_LOCAL..=most).contains(&local) {
        return Err(Refusal::usage(format!(
            "--local {}: give {} to {}",
            show_size(local),
            show_size(LEAST_LOCAL),
            show_size(most)
        )));
    }
    let store = options.store.unwrap_or_else(|| {
        let most = limits.default_store(local).min(MOST_STORE);
        if options.remote.blade.is_some() { most.min(run::staging(local)) } else { most }
    });
    if !(LEAST_STORE..=MOST_STORE).contains(&store) {
        return Err(Refusal::usage(format!(
            "a store of {}: give --store {} to {}",
            show_size(store),
            show_size(LEAST_STORE),
            show_size(MOST_STORE)
        )));
    }
    let disk = options.disk.as_deref().map(run::writable_dir).transpose()?;
    let handshake = options.handshake.into();
    Ok(Checked { handshake, local, store, disk, source: None })
}

fn check_loaded(options: &GuestMemory) -> Result<Checked, Refusal> {
    let Remote { blade, .. } = &options.remote;
    let given = [
        ("--local", options.local.is_some()),
        ("--store", options.store.is_some()),
        ("--disk", options.disk.is_some()),
        ("--blade", blade.is_some()),
    ];
    if let Some((name, _)) = given.into_iter().find(|(_, given)| *given) {
        return Err(Refusal::usage(format!(
            "{name} can't be kept: no page can leave the private memory of a Firecracker guest, so there is no target"
        )));
    }
    let Some(path) = &options.memory_file else {
        return Err(Refusal::usage(
            "--memory-file is missing: name the file that Firecracker saved the guest's memory to",
        ));
    };
    let refuse = |why: String| {
        Refusal::usage(format!("--memory-file {}: {why}; name a file to read", path.display()))
    };
    let file = File::open(path).map_err(|error| refuse(plain(&error)))?;
    let metadata = file.metadata().map_err(|error| refuse(plain(&error)))?;
    if !metadata.is_file() {
        return Err(refuse("it is not a file".to_owned()));
    }
    let handshake = options.handshake.into();
    let source = Some((file.into(), metadata.len()));
    Ok(Checked { handshake, local: 0, store: 0, disk: None, source })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: GuestMemory,
    }

    fn checked(words: &str) -> Result<Checked, Refusal> {
        let limits = Limits {
            total: Some(8 << 30),
            available: Some(4 << 30),
            cgroup: None,
            address_space: None,
            data: None,
        };
        let words = ["guest-memory", "--listen", "/tmp/x"].into_iter().chain(words.split(' '));
        check(&Line::parse_from(words).options, &limits)
    }

    #[test]
    fn what_can_not_work_is_refused_in_one_line() {
        let exe = std::env::current_exe().unwrap();
        for (words, word) in [
            ("--handshake cloud-hypervisor".to_owned(), "--local is missing"),
            ("--handshake cloud-hypervisor --local 4K".to_owned(), "1.0 MiB"),
            ("--handshake cloud-hypervisor --local 9G".to_owned(), "8.0 GiB"),
            ("--handshake cloud-hypervisor --local 64M --store 4K".to_owned(), "--store"),
            ("--handshake cloud-hypervisor --local 64M --disk /no/such".to_owned(), "/no/such"),
            (
                format!("--handshake cloud-hypervisor --local 64M --memory-file {}", exe.display()),
                "Firecracker",
            ),
            ("--handshake firecracker".to_owned(), "--memory-file is missing"),
            ("--handshake firecracker --memory-file /no/such".to_owned(), "/no/such"),
            ("--handshake firecracker --memory-file /tmp".to_owned(), "not a file"),
            (
                format!("--handshake firecracker --local 64M --memory-file {}", exe.display()),
                "no target",
            ),
            (
                format!("--handshake firecracker --disk /tmp --memory-file {}", exe.display()),
                "no target",
            ),
        ] {
            let Err(refusal) = checked(&words) else { panic!("{words} passed") };
            let line = refusal.to_string();
            assert!(line.contains(word) && !line.contains('\n'), "{words}: {line}");
            assert_eq!(refusal.code(), 2);
        }
    }

    #[test]
    fn the_store_is_as_large_as_that_of_a_run() {
        let store = |words| checked(words).map(|checked| checked.store).ok();
        assert_eq!(store("--handshake cloud-hypervisor --local 64M"), Some((4 << 30) - (64 << 20)));
        let with_blade = "--handshake cloud-hypervisor --local 1G --blade ring:/x";
        assert_eq!(store(with_blade), Some(256 << 20));
    }
}
