//! `spillway client move`: clients with all that they store, to another daemon.

use std::collections::HashSet;
use std::io::Cursor;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueHint};
use hyper::Method;
use serde::Serialize;
use spillway_api::types::{
    Client, HAS_MOVED, Identity, Lifetime, MOVING, Moved, NO_CLIENT, NewClient, Pool, STREAM,
    TOO_MANY_FLUSHES,
};
use spillway_types::Size;

use crate::daemon::address::ApiAddress;
use crate::daemon::api::{Api, segment};
use crate::daemon::names;
use crate::daemon::options::{Daemon, authorities};
use crate::refusal::Refusal;
use crate::show::{self, Output};

/// How often a line says how far a client is.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// How long an earlier move of a client may take to end.
const MOVING_MAX: Duration = Duration::from_secs(10);
const MOVING_PAUSE: Duration = Duration::from_millis(200);

/// Moves clients to another daemon, one after the other: persistent pools, block devices, cap, floor and weight.
///
/// What a client has moved is removed here. A client that can't move stays as it is, and a line says why; then the exit
/// status is 1. If the command or a daemon is interrupted, run it again: it continues where it was. Ephemeral values do
/// not move. Point the clients' programs to the other daemon afterwards.
#[derive(Debug, Args)]
#[group(id = "whom", required = true, multiple = false, args = ["names", "all"])]
pub struct Moving {
    /// The clients.
    #[arg(add = names::clients())]
    names: Vec<String>,

    /// All clients that store something here, or that the configuration or an operator has named.
    #[arg(long)]
    all: bool,

    /// The other daemon's HTTP interface, as for --api.
    #[arg(long, value_name = "PATH|URL", value_hint = ValueHint::FilePath)]
    to: String,

    /// File with the token that the other daemon requires.
    #[arg(long, value_name = "FILE")]
    to_token_file: Option<PathBuf>,

    /// For https: file with the authorities of the other daemon's certificate, as for --api-ca.
    #[arg(long, value_name = "FILE")]
    to_ca: Option<PathBuf>,

    /// As --api-guarded, for the other daemon.
    #[arg(long)]
    to_guarded: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// What became of a client.
#[derive(Serialize)]
struct Outcome {
    client: String,
    /// Null if it stays.
    moved: Option<Moved>,
    /// Why it stays.
    reason: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// A daemon can't be reached, or hangs up.
pub fn run(options: &Moving) -> anyhow::Result<ExitCode> {
    let from = Api::new(&options.daemon)?.with_deadline();
    let address = ApiAddress::new("--to", &options.to, authorities(options.to_ca.clone()))?;
    let to = Api::at(address, options.to_token_file.as_deref(), options.to_guarded)?;
    let to = to.with_deadline();
    let (mut seen, mut outcomes) = (HashSet::new(), Vec::new());
    // Clients can come meanwhile.
    loop {
        let mut new = wanted(&from, &to, options)?;
        new.retain(|name| seen.insert(name.clone()));
        if new.is_empty() {
            break;
        }
        for name in &new {
            outcomes.extend(outcome(&from, &to, name, &options.daemon)?);
        }
        if !options.all {
            break;
        }
    }
    let row = |it: &Outcome| {
        let count = |of: fn(&Moved) -> u64| it.moved.as_ref().map_or(0, of).to_string();
        let result = if it.moved.is_some() { "moved" } else { "stays" };
        [it.client.clone(), result.to_owned(), count(|it| it.pools), count(|it| it.values)]
    };
    let heads = ["client", "result", "pools", "values"];
    show::answer(options.daemon.output, &outcomes, heads, outcomes.iter().map(row))?;
    let all = outcomes.iter().all(|it| it.moved.is_some());
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The clients to move, without programs: their pages are not in the store.
fn wanted(from: &Api, to: &Api, options: &Moving) -> anyhow::Result<Vec<String>> {
    if !options.all {
        for name in &options.names {
            // An earlier command may have moved it.
            let its = match find(from, name)? {
                Some(its) => its,
                None if find(to, name)?.is_some() => continue,
                None => from.get(&path_of(name))?,
            };
            if matches!(its.identity, Identity::Program(_)) {
                let line = format!("'{name}' is a running program, not a client of the store");
                return Err(Refusal::usage(line).into());
            }
        }
        return Ok(options.names.clone());
    }
    let mut clients: Vec<Client> = from.get("/v1/clients")?;
    clients.retain(|client| !matches!(client.identity, Identity::Program(_)));
    Ok(clients.into_iter().map(|client| client.name).collect())
}

/// A client of a daemon, if there is one.
fn find(at: &Api, name: &str) -> anyhow::Result<Option<Client>> {
    match at.get(&path_of(name)) {
        Ok(client) => Ok(Some(client)),
        Err(error) if is_kind(&error, NO_CLIENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn path_of(name: &str) -> String {
    format!("/v1/clients/{}", segment(name))
}

/// Moves a client; none if there was nothing to do.
fn outcome(from: &Api, to: &Api, name: &str, daemon: &Daemon) -> anyhow::Result<Option<Outcome>> {
    let moved = find(from, name).and_then(|client| match client {
        Some(client) => Journey { from, to, client: &client }.go(),
        None => Ok(None),
    });
    let (moved, reason) = match moved {
        Ok(None) => return Ok(None),
        Ok(moved) => (moved, None),
        Err(error) => match error.downcast_ref::<Refusal>() {
            Some(refusal) if refusal.is_of_one() => (None, Some(refusal.to_string())),
            _ => {
                let again = format!(
                    "client '{name}' is not moved yet: run the command again when that is mended"
                );
                return Err(error.context(again));
            }
        },
    };
    if let (Some(reason), Output::Table) = (&reason, daemon.output) {
        eprintln!("spillway: client '{name}' stays: {reason}");
    }
    Ok(Some(Outcome { client: name.to_owned(), moved, reason }))
}

/// A client on its way.
struct Journey<'a> {
    from: &'a Api,
    to: &'a Api,
    client: &'a Client,
}

impl Journey<'_> {
    /// Each step can be repeated. The other daemon replaces what an earlier try has brought; from the note that the
    /// client has moved on, nothing is copied any more.
    fn go(&self) -> anyhow::Result<Option<Moved>> {
        let (here, there) = (self.pools(self.from)?, self.pools(self.to)?);
        if here.iter().any(|pool| pool.uuid.is_some() && pool.pages > 0) {
            let line = "it has values in a shared pool, which stays with its members";
            return Err(Refusal::of_one(line).into());
        }
        let own: Vec<_> = here.iter().filter(|pool| is_own(pool)).collect();
        let is_there = there.iter().any(is_own);
        if own.is_empty() && (self.client.moved || is_there || self.client.origin == "unnamed") {
            return Ok(None);
        }
        let moved = if self.client.moved {
            if !is_there {
                let name = &self.client.name;
                return Err(Refusal::of_one(format!(
                    "it has moved, but not to this daemon: if what it had is lost there, run spillway client thaw {name}"
                ))
                .into());
            }
            Moved { pools: own.len() as u64, values: 0, flushes: 0 }
        } else {
            self.copy(is_there, false)?
        };
        let (moved, flushes) = match self.rest() {
            // A daemon was restarted since the copy, or could not record all flushes: only a new copy has them.
            Err(error) if is_kind(&error, TOO_MANY_FLUSHES) || is_kind(&error, STREAM) => {
                (self.copy(true, true)?, self.rest()?)
            }
            flushes => (moved, flushes?),
        };
        self.remove()?;
        Ok(Some(Moved { flushes: moved.flushes + flushes, ..moved }))
    }

    /// Copies all to the other daemon, and notes that it has it. With `again`, also what has moved.
    fn copy(&self, is_there: bool, again: bool) -> anyhow::Result<Moved> {
        let began = Instant::now();
        let mut is_free = self.prepare()? || !is_there;
        // A part that an earlier command has brought is removed soon after that command ends.
        while !is_free && began.elapsed() < MOVING_MAX {
            thread::sleep(MOVING_PAUSE);
            is_free = self.prepare()? || !self.pools(self.to)?.iter().any(is_own);
        }
        if !is_free {
            let name = &self.client.name;
            return Err(Refusal::of_one(format!(
                "it has pools on both daemons, and has used those on the other: remove what you do not need, here or \
                 there, with spillway client remove {name} or spillway pool destroy"
            ))
            .into());
        }
        let mut told = Instant::now();
        let tell = |bytes| {
            if told.elapsed() >= TELL_INTERVAL {
                told = Instant::now();
                eprintln!("spillway: client '{}': {} so far", self.client.name, Size(bytes));
            }
        };
        let source = self.path(if again { "/export?again=true" } else { "/export" });
        let moved = self.relay(&source, tell).and_then(|moved: Moved| {
            self.from.order(Method::POST, &self.path("/moved"))?;
            Ok(moved)
        });
        // It stays: its puts are accepted here as before. If another command moves it, that goes on.
        let is_others = |error: &anyhow::Error| is_kind(error, MOVING) || is_kind(error, HAS_MOVED);
        if moved.as_ref().is_err_and(|error| !is_others(error)) && !self.client.frozen {
            // If that fails, the daemon is gone, and thaws the client when it is there again.
            let _ = patiently(|| self.from.order(Method::POST, &self.path("/thaw")));
        }
        moved
    }

    /// Sends the client's pools to the other daemon.
    fn relay(&self, source: &str, mut tell: impl FnMut(u64)) -> anyhow::Result<Moved> {
        let target = self.path("/import?again=true");
        patiently(|| self.from.relay(source, self.to, &target, &mut tell))
    }

    /// Makes sure that the other daemon knows the client. Returns whether its pools there are of an earlier try.
    fn prepare(&self) -> anyhow::Result<bool> {
        let client = self.client;
        match self.to.get::<Client>(&self.path("")) {
            Ok(known) if known.identity == client.identity => return Ok(known.arrived),
            Ok(known) => {
                let identity = show::identity(&known.identity);
                return Err(Refusal::of_one(format!(
                    "the client of this name on the other daemon is another one ({identity})"
                ))
                .into());
            }
            Err(error) if is_kind(&error, NO_CLIENT) => {}
            Err(error) => return Err(error),
        }
        if !matches!(client.identity, Identity::Uid(_) | Identity::Gid(_) | Identity::Name(_)) {
            let identity = show::identity(&client.identity);
            return Err(Refusal::of_one(format!(
                "the other daemon does not know it ({identity}), and its secret, password or disk is not for this \
                 command: name it in the configuration there"
            ))
            .into());
        }
        let new = NewClient {
            name: client.name.clone(),
            identity: client.identity.clone(),
            secret: None,
            target_pages: None,
            connections_max: Some(client.connections_max),
            operations_max: Some(client.operations_max),
            bytes_max: Some(client.bytes_max),
            domain: client.domain,
            shared: client.shared.clone(),
        };
        self.to.send::<Client>(Method::POST, "/v1/clients", &new)?;
        Ok(false)
    }

    /// Transfers the flushes since the copy.
    fn rest(&self) -> anyhow::Result<u64> {
        let mut flushes = Vec::new();
        self.from.download(&self.path("/export?rest=true"), &mut flushes)?;
        let moved: Moved =
            self.to.upload(&self.path("/import?rest=true"), Box::new(Cursor::new(flushes)))?;
        Ok(moved.flushes)
    }

    /// Removes what has moved, if the other daemon still has it. A client of the configuration stays, and stores nothing
    /// more.
    fn remove(&self) -> anyhow::Result<()> {
        let own = self.pools(self.from)?.iter().filter(|pool| is_own(pool)).count();
        let there = self.pools(self.to)?.iter().filter(|pool| is_own(pool)).count();
        let arrived = find(self.to, &self.client.name)?.is_some_and(|client| client.arrived);
        if !arrived || there < own {
            let line = "the other daemon has lost its values, or a program has used them already: compare both";
            return Err(Refusal::of_one(line).into());
        }
        match self.from.order(Method::DELETE, &self.path("?moved=true")) {
            // Another command has done it.
            Err(error) if is_kind(&error, NO_CLIENT) => Ok(()),
            removed => removed,
        }
    }

    /// Its pools on a daemon.
    fn pools(&self, at: &Api) -> anyhow::Result<Vec<Pool>> {
        let mut pools: Vec<Pool> = at.get("/v1/pools").context("can't list pools")?;
        pools.retain(|pool| pool.client == self.client.name);
        Ok(pools)
    }

    fn path(&self, rest: &str) -> String {
        path_of(&self.client.name) + rest
    }
}

/// Whether a pool moves.
fn is_own(pool: &Pool) -> bool {
    pool.uuid.is_none() && matches!(pool.lifetime, Lifetime::Persistent)
}

/// Whether a daemon has refused for this reason.
fn is_kind(error: &anyhow::Error, kind: &str) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.is_kind(kind))
}

/// Repeats what a daemon refuses because an earlier move has not ended: it may need a moment to notice the end of a
/// command that was killed.
fn patiently<T>(mut ask: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        let answer = ask();
        let is_moving = answer.as_ref().is_err_and(|error| is_kind(error, MOVING));
        if !is_moving || began.elapsed() >= MOVING_MAX {
            return answer;
        }
        thread::sleep(MOVING_PAUSE);
    }
}
