//! Options that all commands that talk to a daemon share.

use std::env::{self, VarError};
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::daemon::address::ApiAddress;
use crate::refusal::Refusal;
use crate::show::Output;

/// Name of the HTTP interface's socket in the daemon's directory.
const SOCKET: &str = "api.sock";

/// Which daemon, and how answers are printed.
#[derive(Clone, Debug, Args)]
pub struct Daemon {
    /// The daemon's HTTP interface: a socket's path, http://HOST:PORT or https://HOST:PORT. Default:
    /// $SPILLWAY_API, else api.sock in /run/spillway for root and in $XDG_RUNTIME_DIR/spillway for
    /// others.
    #[arg(long, value_name = "PATH|URL", value_hint = ValueHint::FilePath)]
    pub api: Option<String>,

    /// File with the token that the interface requires over TCP.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// For https: file with the certificates of the authorities that can have signed the daemon's certificate, in PEM.
    /// Default: $SPILLWAY_API_CA, else those that this host trusts.
    #[arg(long, value_name = "FILE")]
    pub api_ca: Option<PathBuf>,

    /// For http to another host, which does not encrypt: something else does, such as WireGuard. Without this, no token is
    /// sent there.
    #[arg(long)]
    pub api_guarded: bool,

    /// How answers are printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

impl Daemon {
    /// Where the interface is.
    ///
    /// # Errors
    /// No address is given, and there is no default directory; or the address can't be used.
    pub fn address(&self) -> Result<ApiAddress, Refusal> {
        let authorities = || authorities(self.api_ca.clone());
        if let Some(address) = &self.api {
            return ApiAddress::new("--api", address, authorities());
        }
        match env::var("SPILLWAY_API") {
            Ok(address) => ApiAddress::new("SPILLWAY_API", &address, authorities()),
            Err(VarError::NotPresent) => {
                let address = default_dir()?.join(SOCKET).display().to_string();
                ApiAddress::new("the socket", &address, None)
            }
            Err(VarError::NotUnicode(_)) => Err(Refusal::usage("SPILLWAY_API is not UTF-8")),
        }
    }
}

/// The file with the authorities of a daemon's certificate: the one given, else the environment's.
pub fn authorities(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(|| env::var_os("SPILLWAY_API_CA").map(PathBuf::from))
}

/// The default directory of a daemon's sockets. It is never one in which other users could create sockets of their
/// own.
///
/// # Errors
/// The user has no directory for that.
pub fn default_dir() -> Result<PathBuf, Refusal> {
    let is_root = rustix::process::geteuid().is_root();
    dir_of(is_root, env::var_os("XDG_RUNTIME_DIR"))
}

fn dir_of(is_root: bool, run: Option<OsString>) -> Result<PathBuf, Refusal> {
    if is_root {
        return Ok("/run/spillway".into());
    }
    let run = run.map(PathBuf::from).filter(|run| run.is_absolute());
    run.map(|run| run.join("spillway")).ok_or_else(|| {
        Refusal::usage(
            "XDG_RUNTIME_DIR is not set to a directory, so there is no default place for the daemon's sockets: set it, or \
             name a directory of your own: spillway serve --dir DIR, and --api DIR/api.sock for the other commands",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::dir_of;

    #[test]
    fn sockets_are_never_where_others_may_write() {
        let of = |is_root, run: Option<&str>| dir_of(is_root, run.map(Into::into));
        assert_eq!(of(false, Some("/run/user/7")).unwrap().as_os_str(), "/run/user/7/spillway");
        for run in [None, Some("/run/user/0")] {
            assert_eq!(of(true, run).unwrap().as_os_str(), "/run/spillway");
        }
        for run in [None, Some(""), Some("run")] {
            let refusal = of(false, run).unwrap_err();
            let line = refusal.to_string();
            assert!(line.contains("--dir DIR") && line.contains("--api"), "{line}");
            assert_eq!((line.lines().count(), refusal.code()), (1, 2));
        }
    }
}
