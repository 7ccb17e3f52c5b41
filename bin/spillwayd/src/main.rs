//! The daemon: arguments, configuration, parts, run.

mod arguments;
mod capacity;
mod config;
mod disks;
mod frontends;
mod hardening;
mod keeper;
mod kept;
mod listeners;
mod log;
mod manager;
mod memory;
mod metrics;
mod parts;
mod reclaim;
mod run;
mod sandbox;
mod sockets;
mod targets;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;
use crate::kept::Inherited;
use crate::parts::Parts;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    daemon(&arguments).unwrap_or_else(|error| {
        log::last_words(&error);
        // As with other commands, 2 is bad input.
        let bad_input = error.is::<config::Error>() || error.is::<spillway_directory::Error>();
        ExitCode::from(if bad_input { 2 } else { 1 })
    })
}

fn daemon(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.document {
        print!("{}", config::document());
        return Ok(ExitCode::SUCCESS);
    }
    let config = arguments.read()?;
    if arguments.check {
        config::Clients::new(&config)?;
        println!("the configuration is good");
        return Ok(ExitCode::SUCCESS);
    }
    hardening::no_dumps()?;
    if config.process.keeper && keeper::is_needed() {
        return keeper::run(config.process.lock_memory);
    }
    log::start();
    let inherited = Inherited::take()?;
    hardening::raise_file_limit();
    let parts = Parts::open(config, inherited)?;
    run::run(parts, arguments)?;
    Ok(ExitCode::SUCCESS)
}
