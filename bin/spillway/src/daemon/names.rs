//! Names that the daemon knows, for the shell's completion of arguments.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap_complete::{ArgValueCompleter, CompletionCandidate};
use serde::de::DeserializeOwned;
use spillway_api::types::{Client, DiskStatus, Pool, VmList};

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::show::Output;

/// Longest time that a shell waits for the daemon.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Clients, and programs that run paged.
pub fn clients() -> ArgValueCompleter {
    of("/v1/clients", |clients: Vec<Client>| clients.into_iter().map(|it| it.name).collect())
}

/// Numbers of pools.
pub fn pools() -> ArgValueCompleter {
    of("/v1/pools", |pools: Vec<Pool>| pools.into_iter().map(|it| it.number.to_string()).collect())
}

/// Block devices.
pub fn blocks() -> ArgValueCompleter {
    of("/v1/pools", |pools: Vec<Pool>| pools.into_iter().filter_map(|it| it.block).collect())
}

/// Tmem disks.
pub fn disks() -> ArgValueCompleter {
    of("/v1/disks", |disks: Vec<DiskStatus>| disks.into_iter().map(|it| it.name).collect())
}

/// Guests.
pub fn vms() -> ArgValueCompleter {
    of("/v1/vms", |list: VmList| list.vms.into_iter().map(|it| it.name).collect())
}

fn of<T: DeserializeOwned + 'static>(
    path: &'static str,
    names: fn(T) -> Vec<String>,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let current = current.to_string_lossy();
        let names = ask(path, names).unwrap_or_default().into_iter();
        names.filter(|it| it.starts_with(&*current)).map(CompletionCandidate::new).collect()
    })
}

/// What the daemon names; none if it does not answer in time. The shell shows no errors.
fn ask<T: DeserializeOwned + 'static>(
    path: &'static str,
    names: fn(T) -> Vec<String>,
) -> Option<Vec<String>> {
    let daemon = Daemon {
        api: typed("--api"),
        token_file: typed("--token-file").map(Into::into),
        api_ca: typed("--api-ca").map(Into::into),
        api_guarded: std::env::args().any(|word| word == "--api-guarded"),
        output: Output::default(),
    };
    let (answer, answers) = mpsc::channel();
    thread::spawn(move || {
        let list = Api::new(&daemon).and_then(|api| api.get::<T>(path));
        // After the deadline nobody takes it.
        let _ = answer.send(list.ok().map(names));
    });
    answers.recv_timeout(TIMEOUT).ok()?
}

/// The value of an option in the line that is being completed, which the shell gives as arguments.
fn typed(option: &str) -> Option<String> {
    let mut words = std::env::args().skip_while(|word| word != "--");
    while let Some(word) = words.next() {
        if word == option {
            return words.next();
        }
        if let Some(value) = word.strip_prefix(option).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.to_owned());
        }
    }
    None
}
