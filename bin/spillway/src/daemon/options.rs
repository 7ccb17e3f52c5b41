//! What all commands that talk to a daemon take.

use std::env;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::cli::Output;

/// Name of the HTTP interface's socket in the daemon's directory.
const SOCKET: &str = "api.sock";

/// Which daemon, and how answers are printed.
#[derive(Clone, Debug, Args)]
pub struct Daemon {
    /// The daemon's HTTP interface: a socket's path, or http://HOST:PORT. Default:
    /// $SPILLWAY_API, else api.sock in /run/spillway for root and in $XDG_RUNTIME_DIR/spillway for
    /// others.
    #[arg(long, value_name = "PATH|URL", value_hint = ValueHint::FilePath)]
    pub api: Option<String>,

    /// File with the token that the interface asks for over TCP.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// How answers are printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

impl Daemon {
    /// Where the interface is.
    pub fn address(&self) -> String {
        let default = || default_dir().join(SOCKET).display().to_string();
        let named = || env::var("SPILLWAY_API").ok();
        self.api.clone().or_else(named).unwrap_or_else(default)
    }
}

/// The directory of a daemon's sockets when nobody names one.
pub fn default_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/spillway".into();
    }
    let run = env::var_os("XDG_RUNTIME_DIR").map_or_else(env::temp_dir, PathBuf::from);
    run.join("spillway")
}
