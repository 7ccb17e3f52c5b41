//! `spillway target`: a client's target and its cap.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use spillway_api::types;
use spillway_types::PAGE_BYTES;

use crate::daemon::api::{Api, segment};
use crate::daemon::names;
use crate::daemon::options::Daemon;
use crate::show;
use crate::units::parse_size;

/// Shows a client's target, and sets its cap.
#[derive(Debug, Args)]
pub struct Target {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows a client's present target and its cap.
    Get {
        /// The client.
        #[arg(add = names::clients())]
        client: String,
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Sets a client's cap, the most that it may hold. The policy may give it less. Puts above the
    /// cap are refused. If the client holds more now, the daemon gradually drops its ephemeral values,
    /// then compresses pages or moves them to disks. It drops no persistent value.
    Set {
        /// The client.
        #[arg(add = names::clients())]
        client: String,
        /// A size such as 2G, or none for no limit.
        #[arg(value_name = "SIZE|none", value_parser = parse_limit)]
        size: Limit,
        #[command(flatten)]
        daemon: Daemon,
    },
}

/// A limit in bytes; none is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

impl Limit {
    /// In whole pages.
    pub fn pages(self) -> Option<u64> {
        self.0.map(|bytes| bytes / PAGE_BYTES as u64)
    }
}

/// Reads a size or `none`.
///
/// # Errors
/// A line that says what is invalid.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { parse_size(text).map(|bytes| Limit(Some(bytes))) }
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &Target) -> anyhow::Result<ExitCode> {
    let (client, daemon, target) = match &options.action {
        Action::Get { client, daemon } => {
            let path = format!("/v1/clients/{}/target", segment(client));
            (client, daemon, Api::new(daemon)?.get::<types::ClientTarget>(&path)?)
        }
        Action::Set { client, size, daemon } => {
            let path = format!("/v1/clients/{}/target", segment(client));
            let target = types::Target { target_pages: size.pages() };
            (client, daemon, Api::new(daemon)?.send(Method::PUT, &path, &target)?)
        }
    };
    let row = [client.clone(), show::limit(target.target_pages), show::limit(target.cap_pages)];
    show::answer(daemon.output, &target, ["client", "target", "cap"], [row])?;
    Ok(ExitCode::SUCCESS)
}
