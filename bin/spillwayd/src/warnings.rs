//! What a configuration permits, but its operator may not want: lines of the log, and of `--check`.

use crate::config::{Config, Listen};
use crate::secret_files::open_to_all;

/// A line for each thing to look at.
pub fn of(config: &Config) -> Vec<String> {
    let mut lines = open_to_all(config);
    lines.extend(in_the_clear(&config.listen));
    lines
}

/// The HTTP interface does not encrypt, so whoever is between it and another host reads the token.
fn in_the_clear(listen: &Listen) -> Option<String> {
    let address = listen.api_tcp.filter(|address| !address.ip().is_loopback())?;
    Some(format!(
        "listen.api_tcp {address} is reachable from other hosts, and the HTTP interface does not encrypt: tokens and \
         answers are sent in the clear; listen on 127.0.0.1, and use ssh -L or a proxy with TLS"
    ))
}
