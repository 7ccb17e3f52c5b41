//! `spillway vm`: guests that grow and shrink while they run.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use spillway_api::types::{VmArgs, VmAuto, VmList, VmOutcome, VmResize, VmSections, VmStatus};
use spillway_types::Size;

use crate::daemon::api::{Api, segment};
use crate::daemon::names;
use crate::daemon::options::Daemon;
use crate::options::Switch;
use crate::show::{self, Output};
use crate::units::parse_size;

/// Shows guests, and changes how much memory they have while they run.
#[derive(Debug, Args)]
pub struct Vm {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows all guests, and as a table the pool that their memory comes from. In JSON, `spillway stat` has the pool.
    List {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Shows a guest.
    Show {
        /// The guest.
        #[arg(add = names::vms())]
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Changes a guest's size and waits until the change is complete. Sizes change by whole sections: a guest that
    /// grows or shrinks has at least the given size afterwards.
    Resize {
        /// The guest.
        #[arg(add = names::vms())]
        name: String,
        /// Its new size, boot memory included.
        #[arg(value_parser = parse_size)]
        size: u64,
        #[command(flatten)]
        how: How,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Gives a guest more memory.
    Grow {
        /// The guest.
        #[arg(add = names::vms())]
        name: String,
        /// How much more, rounded up to sections.
        #[arg(value_parser = parse_size)]
        size: u64,
        #[command(flatten)]
        how: How,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Takes memory back from a guest.
    Shrink {
        /// The guest.
        #[arg(add = names::vms())]
        name: String,
        /// How much less, rounded down to sections.
        #[arg(value_parser = parse_size)]
        size: u64,
        #[command(flatten)]
        how: How,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Sets whether the guest's own requests and the memory manager may change its size.
    Auto {
        /// The guest.
        #[arg(add = names::vms())]
        name: String,
        /// Whether they may.
        switch: Switch,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Reserves a guest's boot memory, and prints the options with which you must start QEMU. For a libvirt domain,
    /// prints the XML elements that it needs. They name the largest size that the guest can reach without a restart,
    /// because QEMU lays out addresses for it at boot.
    Args {
        /// The guest.
        #[arg(add = names::vms())]
        name: String,
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// What to do when a guest does not reach its size.
#[derive(Clone, Copy, Debug, Args)]
struct How {
    /// Restore the former size if the new one is not reached in time.
    #[arg(long)]
    roll_back: bool,

    /// Shrink the guest even if less than its reserve would be available in it.
    #[arg(long)]
    force: bool,
}

/// Runs the command. The exit code is 1 if a size was not reached.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &Vm) -> anyhow::Result<ExitCode> {
    match &options.action {
        Action::List { daemon } => list(daemon),
        Action::Show { name, daemon } => {
            let status: VmStatus = Api::new(daemon)?.get(&path(name, ""))?;
            print(daemon, &status, &text(&status))
        }
        Action::Resize { name, size, how, daemon } => {
            resize(name, daemon, VmResize { to_bytes: Some(*size), ..how.resize() })
        }
        Action::Grow { name, size, how, daemon } => {
            resize(name, daemon, VmResize { grow_bytes: Some(*size), ..how.resize() })
        }
        Action::Shrink { name, size, how, daemon } => {
            resize(name, daemon, VmResize { shrink_bytes: Some(*size), ..how.resize() })
        }
        Action::Auto { name, switch, daemon } => {
            let wanted = VmAuto { auto: *switch == Switch::On };
            let status: VmStatus =
                Api::new(daemon)?.send(Method::PUT, &path(name, "/auto"), &wanted)?;
            print(daemon, &status, &format!("{name}: auto {}\n", on_or_off(status.auto)))
        }
        Action::Args { name, daemon } => {
            let args: VmArgs = Api::new(daemon)?.send(Method::POST, &path(name, "/args"), &())?;
            // One of the two is empty.
            let text = lines(&args.qemu) + &args.libvirt;
            print(daemon, &args, &text)
        }
    }
}

impl How {
    fn resize(self) -> VmResize {
        VmResize { roll_back: self.roll_back, force: self.force, ..VmResize::default() }
    }
}

fn path(name: &str, rest: &str) -> String {
    format!("/v1/vms/{}{rest}", segment(name))
}

fn print(daemon: &Daemon, data: &impl serde::Serialize, text: &str) -> anyhow::Result<ExitCode> {
    match daemon.output {
        Output::Json => show::json(data)?,
        Output::Table => show::print(text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(daemon: &Daemon) -> anyhow::Result<ExitCode> {
    let list: VmList = Api::new(daemon)?.get("/v1/vms")?;
    if list.sections.capacity_bytes == 0 {
        return print(
            daemon,
            &list.vms,
            "no guests: name them as [[vm]] in the daemon's configuration, see docs/guests.md\n",
        );
    }
    let sections = &list.sections;
    let mut text = format!(
        "{}, in sections of {} ({}, {})\n\n",
        pool(sections),
        Size(sections.section_bytes),
        sections.dir,
        sections.backing
    );
    let heads = ["vm", "size", "least", "most", "available", "auto", "agent", "state"];
    let rows: Vec<_> = list.vms.iter().map(row).collect();
    text.push_str(&show::table(heads, &rows));
    for vm in &list.vms {
        if let Some(problem) = &vm.problem {
            text.push_str(&format!("{}: {problem}\n", vm.name));
        }
    }
    print(daemon, &list.vms, &text)
}

fn row(vm: &VmStatus) -> [String; 8] {
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Size(bytes).to_string());
    let agent = vm.agent.as_ref();
    [
        vm.name.clone(),
        match vm.aim_bytes {
            Some(aim) => format!("{} to {}", size(vm.size_bytes), Size(aim)),
            None => size(vm.size_bytes),
        },
        Size(vm.least_bytes).to_string(),
        Size(vm.most_bytes).to_string(),
        size(agent.map(|agent| agent.available_bytes)),
        on_or_off(vm.auto).to_owned(),
        agent.map_or("-".to_owned(), |agent| agent.kernel.clone()),
        vm.state.clone(),
    ]
}

/// The pool in a line and the guests in a table, under an empty line. Empty if there are no guests.
pub fn overview(list: &VmList) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Size(bytes).to_string());
    let some = |bytes: u64| size(Some(bytes).filter(|&bytes| bytes > 0));
    let row = |vm: &VmStatus| {
        [
            vm.name.clone(),
            size(vm.size_bytes),
            size(vm.aim_bytes),
            some(vm.target_bytes),
            Size(vm.least_bytes).to_string(),
            Size(vm.most_bytes).to_string(),
            size(vm.agent.as_ref().map(|agent| agent.available_bytes)),
            some(vm.wanted_bytes),
            some(vm.kept_bytes),
            vm.state.clone(),
        ]
    };
    if list.vms.is_empty() {
        return String::new();
    }
    let heads =
        ["guest", "size", "to", "target", "least", "most", "available", "needs", "kept", "state"];
    let rows: Vec<_> = list.vms.iter().map(row).collect();
    format!("\nguests, {}\n{}", pool(&list.sections), show::table(heads, &rows))
}

/// How much of the pool is in use.
fn pool(sections: &VmSections) -> String {
    let VmSections { used_bytes, capacity_bytes, free_bytes, lent_bytes, .. } = *sections;
    let (used, capacity, free) = (Size(used_bytes), Size(capacity_bytes), Size(free_bytes));
    let lent = match lent_bytes {
        0 => String::new(),
        _ => format!(" of which {} are lent to the store", Size(lent_bytes)),
    };
    format!("{used} of {capacity} in use, {free} free{lent}")
}

/// A guest, one line for each property.
fn text(vm: &VmStatus) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    let mut rows = vec![
        (
            "state",
            vm.problem.as_ref().map_or(vm.state.clone(), |why| format!("{}: {why}", vm.state)),
        ),
        ("size", vm.size_bytes.map_or("-".to_owned(), size)),
        ("booted with", size(vm.boot_bytes)),
        ("least, most", format!("{}, {}", Size(vm.least_bytes), Size(vm.most_bytes))),
        ("can grow to", size(vm.ceiling_bytes)),
        ("set aside", size(vm.set_aside_bytes)),
        ("ready", size(vm.ready_bytes)),
        ("profile", vm.profile.clone()),
        ("auto", on_or_off(vm.auto).to_owned()),
        ("policy's target", size(vm.target_bytes)),
    ];
    rows.extend(vm.aim_bytes.map(|aim| ("changes to", size(aim))));
    if vm.wanted_bytes > 0 {
        rows.push(("waits for", size(vm.wanted_bytes)));
    }
    if vm.kept_bytes > 0 {
        rows.push(("kept", format!("{} that it was asked to return", Size(vm.kept_bytes))));
    }
    if let Some(agent) = &vm.agent {
        rows.extend([
            ("kernel", agent.kernel.clone()),
            ("available in it", size(agent.available_bytes)),
            ("free for its kernel", size(agent.kernel_free_bytes)),
            ("page cache", size(agent.cached_bytes)),
            ("swap in use", size(agent.swap_used_bytes)),
            ("stalled", format!("{} us in the last interval", agent.stalled_us)),
            ("read again", format!("{} pages in the last interval", agent.refaults)),
            ("killed", format!("{} processes", agent.kills)),
        ]);
    }
    if vm.ignored_messages > 0 {
        rows.push(("messages ignored", vm.ignored_messages.to_string()));
    }
    let counts = format!(
        "{} reached, {} failed, {} refused",
        vm.resizes_reached, vm.resizes_failed, vm.resizes_refused
    );
    rows.push(("changes", counts));
    rows.iter().map(|(name, value)| format!("{name:<20} {value}\n")).collect()
}

fn resize(name: &str, daemon: &Daemon, wanted: VmResize) -> anyhow::Result<ExitCode> {
    let ended: VmOutcome = Api::new(daemon)?.send(Method::POST, &path(name, "/resize"), &wanted)?;
    print(daemon, &ended, &outcome(name, &ended))?;
    Ok(if ended.end == "reached" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How a change ended, in a line.
fn outcome(name: &str, ended: &VmOutcome) -> String {
    let ms = |us: u64| format!("{}.{} ms", us / 1000, us / 100 % 10);
    let way = format!(
        "{}: reserve {}, offline {}, guest {}, release {}",
        ms(ended.total_us),
        ms(ended.reserve_us),
        ms(ended.offline_us),
        ms(ended.guest_us),
        ms(ended.release_us)
    );
    let (from, aim, now) = (Size(ended.from_bytes), Size(ended.aim_bytes), Size(ended.size_bytes));
    match (ended.end.as_str(), &ended.why) {
        ("reached", _) if from == now => {
            format!("{name}: {now} already; differences are whole sections\n")
        }
        ("reached", _) => format!("{name}: {from} to {now} ({way})\n"),
        (end, why) => {
            let why = why.as_deref().unwrap_or(end);
            format!("{name}: {from} to {aim} {end}, now {now}: {why} ({way})\n")
        }
    }
}

/// Options for a shell, with related ones on one line.
fn lines(options: &[String]) -> String {
    let mut text = String::new();
    for (at, option) in options.iter().enumerate() {
        let is_last = at + 1 == options.len();
        text.push_str(option);
        text.push_str(match (at % 2, is_last) {
            (_, true) => "\n",
            (0, _) => " ",
            _ => " \\\n",
        });
    }
    text
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_one_line() {
        let ended = VmOutcome {
            end: "reached".into(),
            from_bytes: 512 << 20,
            aim_bytes: 1 << 30,
            size_bytes: 1 << 30,
            total_us: 50_123,
            ..VmOutcome::default()
        };
        let line = outcome("a", &ended);
        assert!(line.starts_with("a: 512.0 MiB to 1.0 GiB (50.1 ms: reserve 0.0 ms"), "{line}");
        let same = VmOutcome { size_bytes: 512 << 20, aim_bytes: 512 << 20, ..ended.clone() };
        assert!(outcome("a", &same).contains("already"));
        let part = VmOutcome {
            end: "partial".into(),
            why: Some("late".into()),
            size_bytes: 768 << 20,
            ..ended
        };
        let line = outcome("a", &part);
        assert!(line.contains("512.0 MiB to 1.0 GiB partial, now 768.0 MiB: late"), "{line}");
    }

    #[test]
    fn guests_are_a_table_under_the_pool() {
        assert_eq!(overview(&VmList::default()), "");
        let web = VmStatus {
            name: "web".into(),
            state: "attached".into(),
            size_bytes: Some(1 << 30),
            least_bytes: 512 << 20,
            most_bytes: 4 << 30,
            wanted_bytes: 128 << 20,
            ..VmStatus::default()
        };
        let db = VmStatus { name: "db".into(), state: "not running".into(), ..VmStatus::default() };
        let mut list = VmList { vms: vec![web, db], ..VmList::default() };
        (list.sections.capacity_bytes, list.sections.free_bytes) = (2 << 30, 1 << 30);
        let text = overview(&list);
        assert!(text.starts_with("\nguests, 0 B of 2.0 GiB in use, 1.0 GiB free\nguest"), "{text}");
        list.sections.lent_bytes = 512 << 20;
        let lent = overview(&list);
        assert!(lent.contains("1.0 GiB free of which 512.0 MiB are lent to the store\n"), "{lent}");
        let cells: Vec<Vec<_>> = text
            .lines()
            .skip(3)
            .map(|line| line.split("  ").filter(|it| !it.is_empty()).collect())
            .collect();
        assert_eq!(cells[0][1].trim(), "1.0 GiB", "{text}");
        assert!(text.contains("128.0 MiB") && text.contains("not running"), "{text}");
    }

    #[test]
    fn options_can_be_pasted_into_a_shell() {
        let options = ["-m", "1G", "-qmp", "unix:a"].map(str::to_owned);
        assert_eq!(lines(&options), "-m 1G \\\n-qmp unix:a\n");
    }
}
