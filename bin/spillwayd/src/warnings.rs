//! What a configuration permits, but its operator may not want: lines of the log, and of `--check`.

use spillway_host::Limits;
use spillway_types::Size;

use crate::capacity;
use crate::config::{Block, Config, Listen};
use crate::secret_files::open_to_all;

/// A line for each thing to look at.
pub fn of(config: &Config, limits: &Limits) -> Vec<String> {
    let mut lines = open_to_all(config);
    lines.extend(in_the_clear(&config.listen));
    lines.extend(larger_than_the_store(config, limits));
    lines
}

/// Block devices without reserved memory that are larger than all that the store can take. That is no error: a device
/// may stay partly empty, and equal or packed pages take less.
fn larger_than_the_store(config: &Config, limits: &Limits) -> Vec<String> {
    let store = &config.store;
    // If it can't be used, a start says so.
    let Ok(own_bytes) = capacity::bytes(store.capacity, limits) else { return Vec::new() };
    let disk_bytes = if store.disk.is_some() { store.disk_capacity_bytes } else { 0 };
    let room = own_bytes.saturating_add(config.sections.lend_bytes).saturating_add(disk_bytes);
    let large = config.blocks.iter().filter(|block| !block.reserve && block.size_bytes > room);
    let line = |block: &Block| {
        format!(
            "block '{}' of {} is larger than the {} that the store can take (store.capacity, store.disk_capacity, \
             sections.lend): when the store is full, writes to it fail; give it a smaller size, or the store more room",
            block.name,
            Size(block.size_bytes),
            Size(room)
        )
    };
    large.map(line).collect()
}

/// `api_tcp` does not encrypt, so whoever is between it and another host reads the token.
fn in_the_clear(listen: &Listen) -> Option<String> {
    let address = listen.api_tcp.filter(|address| !address.ip().is_loopback())?;
    Some(format!(
        "listen.api_tcp {address} is reachable from other hosts, as listen.api_tcp_guarded permits: unless a tunnel or a \
         proxy encrypts, tokens and answers are sent in the clear; listen.api_tls encrypts"
    ))
}
