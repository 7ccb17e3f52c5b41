//! The daemon: arguments, configuration, parts, run.

mod arguments;
mod capacity;
mod config;
mod descriptors;
mod disks;
mod fd_store;
mod frontends;
mod hardening;
mod kept;
mod keys;
mod lend;
mod listeners;
mod log;
mod manager;
mod memory;
mod metrics;
mod packing;
mod parts;
mod process;
mod read_secret;
mod reclaim;
mod reload;
mod run;
mod sandbox;
mod secret_files;
mod sharing;
mod sockets;
mod store_disk;
mod targets;
mod user;
mod vm;
mod warnings;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use spillway_host::Limits;

use crate::arguments::{Arguments, Format};
use crate::config::{Config, DeviceUse, MemoryLock};
use crate::frontends::Secrets;
use crate::kept::Inherited;
use crate::keys::Keys;
use crate::lend::helper::Helper;
use crate::parts::Parts;

fn main() -> ExitCode {
    if lend::helper::is_helper() {
        return lend::helper::run().unwrap_or(ExitCode::FAILURE);
    }
    let arguments = Arguments::parse();
    daemon(&arguments).unwrap_or_else(|error| {
        log::last_words(&error);
        // Exit code 2 means bad input, as with other commands.
        let bad_input = error.is::<config::Error>() || error.is::<spillway_directory::Error>();
        ExitCode::from(if bad_input { 2 } else { 1 })
    })
}

fn daemon(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match arguments.document {
        Some(Format::Markdown) => return print(&config::document()),
        Some(Format::Man) => return print(&config::manual()),
        None => {}
    }
    let config = arguments.read()?;
    if arguments.check {
        let refusals = check(&config)?;
        let refusals =
            refusals.iter().map(|line| format!("a start by this user is refused: {line}"));
        for line in warnings::of(&config, &Limits::read()).into_iter().chain(refusals) {
            eprintln!("warning: {line}");
        }
        return print("the configuration is good\n");
    }
    // Also for the keeper. A change of user makes the process dumpable.
    user::change(&config)?;
    hardening::no_dumps()?;
    if config.process.keeper && fd_store::is_needed() {
        return fd_store::run(config.process.lock_memory);
    }
    log::start();
    let inherited = Inherited::take()?;
    let (bounds, line) = descriptors::raise_limit(&config);
    if let Some(line) = line {
        tracing::warn!("{line}");
    }
    // The helper keeps the privileges that the daemon drops.
    let helper = if needs_helper(&config) { Some(Helper::start()?) } else { None };
    hardening::permit_preference();
    if config.lend.borrows() {
        hardening::serve_page_out();
    }
    let parts = Parts::open(config, inherited, helper, bounds)?;
    run::run(parts, arguments)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks for anything that a start would refuse. It binds no socket and takes no memory. Returns a line for each thing
/// that a start with this process's user, groups and limits would refuse: a service manager may give the daemon others.
///
/// # Errors
/// The first thing that is wrong.
fn check(config: &Config) -> Result<Vec<String>, config::Error> {
    let user = user::of_daemon(config)?;
    let mut refusals = listeners::check(config, &user)?;
    let clients = config::Clients::new(config)?;
    let keys = Keys::read(config, &clients.clients)?;
    Secrets::new(&config.listen, &keys)?;
    let limits = Limits::read();
    let own_bytes = capacity::bytes(config.store.capacity, &limits)?;
    capacity::check_lent(config.sections.lend_bytes, own_bytes)?;
    capacity::program_pages(config.memory.programs, &limits)?;
    store_disk::check(&config.store)?;
    capacity::check_reserved(&clients.blocks, own_bytes)?;
    disks::check(&config.disks)?;
    vm::check(config)?;
    refusals.extend(user.refusal);
    refusals.extend(user.groups.iter().flat_map(|own| listeners::foreign_groups(config, own)));
    if config.process.lock_memory == MemoryLock::On || needs_helper(config) {
        refusals.extend(hardening::lock_refused(own_bytes));
    }
    Ok(refusals)
}

/// Whether the configuration requires privileged changes of this host.
fn needs_helper(config: &Config) -> bool {
    let lend = &config.lend;
    lend.borrows() && lend.device == DeviceUse::Swap && !lend.dry_run
}

/// Prints the requested text.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text.as_bytes()) {
        // A pipe that is closed early is the reader's choice.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.context("can't print")?,
    }
    Ok(ExitCode::SUCCESS)
}
