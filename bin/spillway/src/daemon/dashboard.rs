//! `spillway dashboard`: the dashboard's address.

use std::fs;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use spillway_api::types;

use crate::daemon::api::{Api, segment};
use crate::daemon::options::Daemon;
use crate::refusal::Refusal;
use crate::show::{self, Output};

/// Prints the address of a daemon's dashboard, a page for a browser.
///
/// If you may read the daemon's token file, the address includes the token: keep it secret, because it gives
/// full control of the daemon. Otherwise the page asks for the token.
#[derive(Debug, Args)]
pub struct Dashboard {
    #[command(flatten)]
    daemon: Daemon,
}

/// The JSON output.
#[derive(Serialize)]
struct Answer {
    url: String,
    with_token: bool,
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or serves no dashboard.
pub fn run(options: &Dashboard) -> anyhow::Result<ExitCode> {
    let found: types::Dashboard = Api::new(&options.daemon)?.get("/v1/dashboard")?;
    let Some(address) = found.address else {
        let line = "the daemon serves no dashboard: start it by spillway serve --dashboard, or set listen.api_tcp = \
                    \"127.0.0.1:8430\" and listen.api_token_file, a file with the output of openssl rand -hex 32";
        return Err(Refusal::usage(line).into());
    };
    let token = found.token_file.and_then(|file| fs::read_to_string(file).ok());
    let with_token = token.is_some();
    let fragment = token.map_or_else(String::new, |it| format!("#token={}", segment(it.trim())));
    let scheme = if found.tls { "https" } else { "http" };
    let url = format!("{scheme}://{address}/{fragment}");
    match options.daemon.output {
        Output::Json => show::json(&Answer { url, with_token })?,
        Output::Table => show::print(&format!("{url}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
