//! What a configuration permits, but its operator may not want: lines of the log, and of `--check`.

use crate::config::{Config, Listen};
use crate::secret_files::open_to_all;

/// A line for each thing to look at.
pub fn of(config: &Config) -> Vec<String> {
    let mut lines = open_to_all(config);
    lines.extend(in_the_clear(&config.listen));
    lines
}

/// `api_tcp` does not encrypt, so whoever is between it and another host reads the token.
fn in_the_clear(listen: &Listen) -> Option<String> {
    let address = listen.api_tcp.filter(|address| !address.ip().is_loopback())?;
    Some(format!(
        "listen.api_tcp {address} is reachable from other hosts, as listen.api_tcp_guarded permits: unless a tunnel or a \
         proxy encrypts, tokens and answers are sent in the clear; listen.api_tls encrypts"
    ))
}
