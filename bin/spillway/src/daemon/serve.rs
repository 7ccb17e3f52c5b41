//! `spillway serve`: the daemon in the foreground.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;

use crate::daemon::options::default_dir;
use crate::program::plain;
use crate::refusal::Refusal;
use crate::units::parse_size;

/// The daemon's program.
const PROGRAM: &str = "spillwayd";

/// Runs the daemon in the foreground: one page store for this host's programs, guests and
/// neighbours.
///
/// Ctrl-C ends it and frees its memory. The configuration file has more settings: see `spillwayd --help`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Most memory that the store may take. Default: a quarter of what the machine or cgroup has.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,

    /// Directory for its sockets. Default: /run/spillway for root, else $XDG_RUNTIME_DIR/spillway.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Also serves NVMe over TCP at this address, such as 127.0.0.1:4420.
    #[arg(long, value_name = "ADDRESS:PORT")]
    nvme_tcp: Option<SocketAddr>,

    /// Also serves NBD over TCP at this address, such as 127.0.0.1:10809.
    #[arg(long, value_name = "ADDRESS:PORT")]
    nbd_tcp: Option<SocketAddr>,

    /// Also serves the dashboard at this address. A new token in a file beside the sockets protects it.
    /// `spillway dashboard` prints the full address. Default address: 127.0.0.1:8430.
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true,
          default_missing_value = "127.0.0.1:8430", conflicts_with = "config")]
    dashboard: Option<SocketAddr>,

    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Overrides one setting of the file. Can be repeated.
    #[arg(long = "set", value_name = "SECTION.NAME=VALUE")]
    overrides: Vec<String>,
}

/// Replaces this process with the daemon.
///
/// # Errors
/// The daemon's program is missing, or no directory for its sockets is known.
pub fn run(options: &Serve) -> anyhow::Result<ExitCode> {
    let program = find();
    let mut command = Command::new(&program);
    let mut set = |name: &str, value: String| {
        command.arg("--set").arg(format!("{name}={value}"));
    };
    let dir = match (&options.dir, &options.config) {
        (Some(dir), _) => Some(std::path::absolute(dir)?),
        (None, Some(_)) => None,
        (None, None) => Some(default_dir()?),
    };
    if let Some(dir) = &dir {
        set("listen.dir", dir.display().to_string());
    }
    if let (Some(address), Some(dir)) = (options.dashboard, &dir) {
        set("listen.api_tcp", address.to_string());
        set("listen.api_token_file", make_token(dir)?.display().to_string());
    }
    if let Some(capacity) = options.capacity {
        set("store.capacity", capacity.to_string());
    }
    if let Some(address) = options.nvme_tcp {
        set("listen.nvme_tcp", address.to_string());
        // Lets every program on this host connect, as the ring does for the user's own.
        if address.ip().is_loopback() && options.config.is_none() {
            set("unnamed.hosts", "true".to_owned());
        }
    }
    if let Some(address) = options.nbd_tcp {
        set("listen.nbd_tcp", address.to_string());
    }
    for setting in &options.overrides {
        command.arg("--set").arg(setting);
    }
    if let Some(config) = &options.config {
        command.arg("--config").arg(config);
    }
    let error = command.exec();
    let line = format!("can't run {}: {}", program.display(), plain(&error));
    Err(Refusal::not_found(line).into())
}

/// Writes a new token for the HTTP interface to a file that only its owner can read, and returns the file's path.
fn make_token(dir: &Path) -> anyhow::Result<PathBuf> {
    let file = dir.join("token");
    let failed = || format!("can't write {}", file.display());
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let token = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).with_context(failed)?;
    // Never writes to a file, or through a link, that another user created.
    if let Err(error) = fs::remove_file(&file) {
        anyhow::ensure!(error.kind() == ErrorKind::NotFound, "{}: {}", failed(), plain(&error));
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
    writeln!(made.with_context(failed)?, "{token}").with_context(failed)?;
    Ok(file)
}

/// The daemon's program: beside this one, else on the search path.
fn find() -> PathBuf {
    let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into())
}
