//! `spillway reload`: the daemon reads its configuration again.

use std::process::ExitCode;

use clap::Args;
use hyper::Method;
use spillway_api::types;

use crate::daemon::api::Api;
use crate::daemon::options::Daemon;
use crate::show::{self, Output};

/// Has the daemon read its configuration again, with its keys, certificates and tokens. Returns when the new settings
/// are in force, or fails with the line that says what is wrong: then the old ones stay in force.
#[derive(Debug, Args)]
pub struct Reload {
    #[command(flatten)]
    daemon: Daemon,
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or keeps its old configuration.
pub fn run(options: &Reload) -> anyhow::Result<ExitCode> {
    let daemon = &options.daemon;
    let reload: types::Reload = Api::new(daemon)?.send(Method::POST, "/v1/reload", &())?;
    match daemon.output {
        Output::Json => show::json(&reload)?,
        Output::Table => {
            let mut text = "configuration reloaded\n".to_owned();
            if !reload.renewed.is_empty() {
                text.push_str(&format!("renewed: {}\n", reload.renewed.join(", ")));
            }
            for line in &reload.warnings {
                text.push_str(&format!("warning: {line}\n"));
            }
            show::print(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
