//! `spillway stat`: how full the store is, and which clients use it.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use spillway_api::types::{
    Client, DiskStatus, Health, Identity, LendStatus, StoreDisk, StoreSharing, StoreStatus,
    Version, VmList,
};
use spillway_types::Size;

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::daemon::{disk, lend, vm};
use crate::show::{self, Output};

/// Shows how full a daemon's store is, and which clients use it.
#[derive(Debug, Args)]
pub struct Stat {
    #[command(flatten)]
    daemon: Daemon,
}

/// A program's rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramRates {
    pub faults: u64,
    pub refaults: u64,
    pub pages_out: u64,
}

fn is_program(client: &Client) -> bool {
    matches!(client.identity, Identity::Program(_))
}

/// The state of a daemon at one moment.
#[derive(Clone, Serialize)]
pub struct Moment {
    pub version: Version,
    pub health: Health,
    pub store: StoreStatus,
    pub clients: Vec<Client>,
    /// None if the host neither lends nor borrows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lending: Option<LendStatus>,
    /// None if no guests are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guests: Option<VmList>,
    /// Empty if no tmem disks are configured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskStatus>,
}

impl Moment {
    /// Queries the daemon.
    ///
    /// # Errors
    /// The daemon can't be reached.
    pub fn ask(api: &Api) -> anyhow::Result<Self> {
        Ok(Self {
            version: api.get("/v1/version")?,
            health: api.get("/v1/health")?,
            store: api.get("/v1/store")?,
            clients: api.get("/v1/clients")?,
            lending: Some(api.get::<LendStatus>("/v1/lending")?).filter(|it| it.role != "off"),
            guests: Some(api.get::<VmList>("/v1/vms")?).filter(|it| !it.vms.is_empty()),
            disks: api.get("/v1/disks")?,
        })
    }

    /// The clients that hold pages in the store.
    pub fn store_clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(|client| !is_program(client))
    }

    /// The paged programs in a table under an empty line. Shows each program's rates if they are known, else its
    /// counts since it began. Empty if there are no programs.
    pub fn programs_table(&self, rates: impl Fn(&Client) -> Option<ProgramRates>) -> String {
        let row = |client: &Client| {
            let its = &client.statistics;
            let rates = rates(client);
            let shown = |total, rate: fn(&ProgramRates) -> u64| {
                rates.as_ref().map_or(total, rate).to_string()
            };
            [
                client.name.clone(),
                show::pages(its.used_pages),
                show::limit(its.target_pages),
                show::limit(client.cap_pages),
                shown(its.gets, |rates| rates.faults),
                shown(its.misses, |rates| rates.refaults),
                shown(its.evicted_pages, |rates| rates.pages_out),
            ]
        };
        let rows: Vec<_> = self.clients.iter().filter(|it| is_program(it)).map(row).collect();
        if rows.is_empty() {
            return String::new();
        }
        let given = self.store.program_pages.map_or_else(String::new, |pages| {
            format!("programs, given {} together\n", show::pages(pages))
        });
        let heads = ["program", "local", "target", "cap", "faults", "refaults", "pages out"];
        format!("\n{given}{}", show::table(heads, &rows))
    }

    /// The guests under an empty line. Empty if there are no guests.
    pub fn guests_table(&self) -> String {
        self.guests.as_ref().map(vm::overview).unwrap_or_default()
    }

    /// The tmem disks under an empty line. Empty if there are none.
    pub fn disks_table(&self) -> String {
        disk::overview(&self.disks)
    }

    /// A few lines about the daemon and its store.
    pub fn head(&self) -> String {
        let Self { version, health, store, lending, .. } = self;
        let lending = lending.as_ref().map(lend::line).unwrap_or_default();
        let share = show::percent(store.memory_bytes, store.capacity_bytes);
        let locked = if health.memory_locked { "locked" } else { "not locked" };
        format!(
            "spillwayd {} (process {}), up {}, memory {locked}, kept by {}, restarts {}\n\
             store {} of {} ({share}%), free in it {}, in flight {}, packed {}, same-filled {}{}, on disk {}\n{}{lending}",
            version.version,
            version.pid,
            show::duration(health.uptime_seconds),
            health.kept_by,
            health.restarts,
            Size(store.memory_bytes),
            Size(store.capacity_bytes),
            Size(store.free_frame_bytes),
            Size(store.in_flight_bytes),
            show::pages(store.compressed_pages),
            show::pages(store.same_filled_pages),
            store.sharing.as_ref().map(sharing).unwrap_or_default(),
            Size(store.disk_bytes),
            store.disk.as_ref().map(disk_tier).unwrap_or_default(),
        )
    }
}

/// The memory that sharing equal values saves.
fn sharing(sharing: &StoreSharing) -> String {
    format!(", saved by sharing {}", Size(sharing.saved_bytes))
}

/// A line about the disk tier.
fn disk_tier(disk: &StoreDisk) -> String {
    let errors = match (disk.failed_reads, disk.corrupt_reads) {
        (0, 0) => String::new(),
        (failed, corrupt) => format!(", failed reads {failed}, corrupt {corrupt}"),
    };
    let trouble = disk
        .trouble
        .as_ref()
        .map_or_else(|| "takes pages".to_owned(), |why| format!("TAKES NO PAGES: {why}"));
    format!(
        "disk of {}, read {}, written {}{errors}, {trouble}{}\n",
        Size(disk.capacity_bytes),
        Size(disk.read_bytes),
        Size(disk.written_bytes),
        last_error(disk)
    )
}

/// Why an access last failed, and when; also if the disk works again.
fn last_error(disk: &StoreDisk) -> String {
    match (&disk.last_error, disk.last_error_s) {
        (Some(why), Some(ago_s)) => format!(", last error {} ago: {why}", show::duration(ago_s)),
        _ => String::new(),
    }
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached.
pub fn run(options: &Stat) -> anyhow::Result<ExitCode> {
    let moment = Moment::ask(&Api::new(&options.daemon)?)?;
    match options.daemon.output {
        Output::Json => show::json(&moment)?,
        Output::Table => {
            let heads = [
                "client",
                "used",
                "target",
                "reserved",
                "in flight",
                "puts",
                "refused",
                "gets",
                "hits",
                "conns",
            ];
            let rows: Vec<_> = moment.store_clients().map(row).collect();
            let programs = moment.programs_table(|_| None);
            let (head, clients) = (moment.head(), show::table(heads, &rows));
            let (disks, guests) = (moment.disks_table(), moment.guests_table());
            show::print(&format!("{head}\n{clients}{programs}{disks}{guests}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(client: &Client) -> [String; 10] {
    let s = &client.statistics;
    let refused = s.puts_refused_at_target + s.puts_refused_node_full + s.puts_refused_other;
    [
        client.name.clone(),
        show::pages(s.used_pages),
        show::limit(s.target_pages),
        show::pages(s.reserved_pages),
        Size(client.in_flight_bytes).to_string(),
        s.puts.to_string(),
        refused.to_string(),
        s.gets.to_string(),
        s.hits.to_string(),
        client.connections.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_the_disk_stays_when_it_takes_pages_again() {
        let mut disk = StoreDisk { written_bytes: 4096, ..StoreDisk::default() };
        assert_eq!(disk_tier(&disk), "disk of 0 B, read 0 B, written 4.0 KiB, takes pages\n");
        disk.last_error = Some("a write failed: No space left on device (os error 28)".into());
        disk.last_error_s = Some(90);
        let ended = ", takes pages, last error 1 min 30 s ago: a write failed: No space left on device (os error 28)\n";
        assert!(disk_tier(&disk).ends_with(ended), "{}", disk_tier(&disk));
        disk.trouble = Some("it is full".into());
        let ended = ", TAKES NO PAGES: it is full, last error 1 min 30 s ago: ";
        assert!(disk_tier(&disk).contains(ended), "{}", disk_tier(&disk));
    }
}
