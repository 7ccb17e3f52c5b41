//! `spillway client`: who may use the store, and moving a client elsewhere.

use std::fs;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use hyper::Method;
use nix::unistd::{Group, User};
use rustix::fs::{FileType, Mode, fchmod, fstat};
use spillway_api::types::{self, ClientChange, Identity, Moved, NewClient};

use crate::daemon::api::{Api, segment};
use crate::daemon::moving::{self, Moving};
use crate::daemon::names;
use crate::daemon::options::Daemon;
use crate::daemon::target::{Limit, parse_limit};
use crate::refusal::Refusal;
use crate::show;
use crate::units::parse_size;
use spillway_types::PAGE_BYTES;

/// Lists, adds, changes, removes and moves clients.
#[derive(Debug, Args)]
pub struct ClientCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists all clients, and the programs that run paged.
    List {
        #[command(flatten)]
        daemon: Daemon,
    },
    Add(Add),
    Set(Set),
    /// Removes a client with its pools and block devices.
    Remove(Named),
    /// Writes a client's persistent pools to standard output, and refuses its puts from then on.
    ///
    /// The stream is for `spillway client import`. Gets and flushes continue. Run the command again with
    /// --rest to write the flushes that came since. Then remove the client here, or thaw it.
    Export(Stream),
    /// Reads a client's pools from standard input into a client that has none.
    Import(Stream),
    /// Accepts the puts of an exported client again.
    Thaw(Named),
    Move(Moving),
}

#[derive(Debug, Args)]
struct Named {
    /// The client.
    #[arg(add = names::clients())]
    name: String,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, Args)]
struct Stream {
    /// The client.
    #[arg(add = names::clients())]
    name: String,

    /// Transfers only the flushes since the export.
    #[arg(long)]
    rest: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Adds a client. It stays until you remove it or the daemon stops. To keep it for good, name it in
/// the configuration file.
#[derive(Debug, Args)]
#[group(id = "who", required = true, multiple = false, args = ["uid", "gid", "nqn", "certificate"])]
struct Add {
    /// The name of the client.
    name: String,

    /// The client is the processes of this user: a number, or a name that this host knows.
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    uid: Option<u32>,

    /// The client is the processes of this group, unless their user is another client: a number, or a name that this
    /// host knows.
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    gid: Option<u32>,

    /// The client is the host with this NVMe Qualified Name (/etc/nvme/hostnqn on that host).
    #[arg(long)]
    nqn: Option<String>,

    /// The client is every TLS connection whose certificate names this DNS name.
    #[arg(long, value_name = "NAME")]
    certificate: Option<String>,

    /// File with the host's authentication secret, in the form that nvme gen-dhchap-key prints.
    #[arg(long, value_name = "FILE", requires = "nqn")]
    secret_file: Option<PathBuf>,

    /// The most that the client may hold: a size, or none.
    #[arg(long, value_name = "SIZE|none", value_parser = parse_limit)]
    target: Option<Limit>,

    /// The most connections.
    #[arg(long, value_name = "COUNT")]
    connections_max: Option<u32>,

    /// The most operations in flight.
    #[arg(long, value_name = "COUNT")]
    operations_max: Option<u32>,

    /// The most bytes of values in flight.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bytes_max: Option<u64>,

    /// Sharing domain: clients of one domain share memory of equal pages.
    #[arg(long, value_name = "NUMBER")]
    domain: Option<u32>,

    /// A shared pool that the client may join; can be repeated.
    #[arg(long, value_name = "UUID")]
    shared: Vec<String>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Changes what a client or a paged program may hold, while the daemon runs.
///
/// From the next interval on, the policy sets targets within that. The change survives a crash and a restart of the
/// daemon. It lasts until the daemon is stopped, the client is removed, the program has been gone for a while, or the
/// configuration file changes the same setting of the client.
#[derive(Debug, Args)]
#[group(id = "what", required = true, multiple = true, args = ["target", "floor", "weight"])]
struct Set {
    /// The client or program, as `spillway client list` names it.
    #[arg(add = names::clients())]
    name: String,

    /// Its cap, the most that it may hold: a size, or none. A program can get more than its own --local.
    #[arg(long, value_name = "SIZE|none", value_parser = parse_limit)]
    target: Option<Limit>,

    /// Lower bound of its target: for a program's local frames under every policy, for the store under utility only.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    floor: Option<u64>,

    /// utility: its weight, 1 to 1000. The others' default is 1. It scales how much its waiting counts and its
    /// fair share.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    weight: Option<u32>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &ClientCommand) -> anyhow::Result<ExitCode> {
    match &options.action {
        Action::List { daemon } => {
            let clients: Vec<types::Client> = Api::new(daemon)?.get("/v1/clients")?;
            show::answer(daemon.output, &clients, HEADS, clients.iter().map(row))?;
        }
        Action::Add(options) => add(options)?,
        Action::Set(options) => set(options)?,
        Action::Remove(Named { name, daemon }) => {
            Api::new(daemon)?.order(Method::DELETE, &format!("/v1/clients/{}", segment(name)))?;
        }
        Action::Thaw(Named { name, daemon }) => {
            Api::new(daemon)?
                .order(Method::POST, &format!("/v1/clients/{}/thaw", segment(name)))?;
        }
        Action::Export(options) => export(options)?,
        Action::Move(options) => return moving::run(options),
        Action::Import(options) => {
            let path = path_of(options, "import");
            let moved: Moved = Api::new(&options.daemon)?.upload(&path, Box::new(io::stdin()))?;
            let row = [moved.pools, moved.values, moved.flushes].map(|count| count.to_string());
            show::answer(options.daemon.output, &moved, ["pools", "values", "flushes"], [row])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

const HEADS: [&str; 8] =
    ["client", "known by", "origin", "used", "target", "debt", "conns", "state"];

fn row(client: &types::Client) -> [String; 8] {
    let is_program = matches!(client.identity, Identity::Program(_));
    let target_pages = client.statistics.target_pages.unwrap_or(u64::MAX);
    [
        client.name.clone(),
        show::identity(&client.identity),
        if is_program { "run".to_owned() } else { client.origin.clone() },
        show::pages(client.statistics.used_pages),
        show::limit(client.statistics.target_pages),
        show::pages(client.statistics.used_pages.saturating_sub(target_pages)),
        client.connections.to_string(),
        match (is_program, client.frozen, client.moved) {
            (true, ..) => "running",
            (false, true, true) => "moved",
            (false, true, false) => "exported",
            (false, false, _) => "serving",
        }
        .to_owned(),
    ]
}

/// Reads a user's number, or looks its name up.
fn parse_user(text: &str) -> Result<u32, String> {
    let found = || Ok(User::from_name(text)?.map(|user| user.uid.as_raw()));
    number_of(text, "user", found)
}

/// Reads a group's number, or looks its name up.
fn parse_group(text: &str) -> Result<u32, String> {
    let found = || Ok(Group::from_name(text)?.map(|group| group.gid.as_raw()));
    number_of(text, "group", found)
}

fn number_of(
    text: &str,
    kind: &str,
    found: impl FnOnce() -> nix::Result<Option<u32>>,
) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match found() {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(format!("there is no {kind} '{text}' on this host")),
        Err(error) => Err(format!("can't look up the {kind} '{text}': {error}")),
    }
}

fn add(options: &Add) -> anyhow::Result<()> {
    let identity = match (options.uid, options.gid, &options.nqn, &options.certificate) {
        (Some(uid), ..) => Identity::Uid(uid),
        (_, Some(gid), ..) => Identity::Gid(gid),
        (.., Some(nqn), _) => Identity::Nqn(nqn.clone()),
        (.., Some(name)) => Identity::Name(name.clone()),
        (None, None, None, None) => {
            return Err(Refusal::usage("give one of --uid, --gid, --nqn and --certificate").into());
        }
    };
    let secret = options.secret_file.as_ref().map(|path| {
        fs::read_to_string(path)
            .map_err(|e| Refusal::usage(format!("can't read {}: {e}", path.display())))
    });
    let client = NewClient {
        name: options.name.clone(),
        identity,
        secret: secret.transpose()?,
        target_pages: options.target.and_then(Limit::pages),
        connections_max: options.connections_max,
        operations_max: options.operations_max,
        bytes_max: options.bytes_max,
        domain: options.domain,
        shared: options.shared.clone(),
    };
    let added: types::Client =
        Api::new(&options.daemon)?.send(Method::POST, "/v1/clients", &client)?;
    show::answer(options.daemon.output, &added, HEADS, [row(&added)])
}

fn set(options: &Set) -> anyhow::Result<()> {
    let change = ClientChange {
        cap_pages: options.target.map(Limit::pages),
        floor_pages: options.floor.map(|bytes| bytes / PAGE_BYTES as u64),
        weight: options.weight,
    };
    let path = format!("/v1/clients/{}", segment(&options.name));
    let client: types::Client = Api::new(&options.daemon)?.send(Method::PATCH, &path, &change)?;
    let row = [
        client.name.clone(),
        show::limit(client.statistics.target_pages),
        show::limit(client.cap_pages),
        show::pages(client.floor_pages),
        client.weight.to_string(),
    ];
    let heads = ["client", "target", "cap", "floor", "weight"];
    show::answer(options.daemon.output, &client, heads, [row])
}

fn export(options: &Stream) -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        return Err(Refusal::usage(
            "the stream is not for a terminal: write it to a file or a pipe",
        )
        .into());
    }
    let api = Api::new(&options.daemon)?;
    keep_private(io::stdout())?;
    let written = api.download(&path_of(options, "export"), &mut io::stdout().lock())?;
    let name = &options.name;
    eprintln!(
        "spillway: {written} bytes; the puts of '{name}' are refused here until \
         `spillway client remove {name}` or `spillway client thaw {name}`"
    );
    Ok(())
}

/// Makes `sink` readable only by its owner if it is a file: it contains everything that a client has stored.
fn keep_private(sink: impl AsFd) -> anyhow::Result<()> {
    let found = fstat(&sink).context("can't inspect standard output")?;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        fchmod(&sink, Mode::RUSR | Mode::WUSR)
            .context("can't keep other users from reading the file: write it to one of your own")?;
    }
    Ok(())
}

fn path_of(options: &Stream, action: &str) -> String {
    let rest = if options.rest { "?rest=true" } else { "" };
    format!("/v1/clients/{}/{action}{rest}", segment(&options.name))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_export_is_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("pools")).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap();
        keep_private(&file).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let (_reads, writes) = io::pipe().unwrap();
        keep_private(&writes).unwrap();
    }
}
