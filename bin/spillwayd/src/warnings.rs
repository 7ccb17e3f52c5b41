//! What a configuration permits, but its operator may not want: lines of the log, and of `--check`.

use spillway_host::Limits;
use spillway_types::Size;

use crate::capacity;
use crate::config::{Block, Config, Listen, NamedClient};
use crate::secret_files::open_to_all;

/// A line for each thing to look at.
pub fn of(config: &Config, limits: &Limits) -> Vec<String> {
    let mut lines = open_to_all(config);
    lines.extend(in_the_clear(&config.listen));
    if let Some(room) = room(config, limits) {
        lines.extend(larger_than_the_store(&config.blocks, room));
        lines.extend(floors_above_the_store(&config.clients, room));
    }
    lines
}

/// The bytes of all that the store can take; none if its capacity can't be used, which a start says.
fn room(config: &Config, limits: &Limits) -> Option<u64> {
    let store = &config.store;
    let own_bytes = capacity::bytes(store.capacity, limits).ok()?;
    let disk_bytes = if store.disk.is_some() { store.disk_capacity_bytes } else { 0 };
    Some(own_bytes.saturating_add(config.sections.lend_bytes).saturating_add(disk_bytes))
}

/// The settings that [`room`] adds up.
const ROOM: &str = "store.capacity, store.disk_capacity, sections.lend";

/// Floors that promise more than the store can take. That is no error: a policy divides the pages that fit, and packed
/// pages take less.
fn floors_above_the_store(clients: &[NamedClient], room: u64) -> Option<String> {
    let sum = clients.iter().fold(0, |sum: u64, client| sum.saturating_add(client.floor_bytes));
    (sum > room).then(|| {
        format!(
            "the floors of all clients are {} together, more than the {} that the store can take ({ROOM}): unless pages \
             pack well, each gets a part of its floor; lower them, or give the store more room",
            Size(sum),
            Size(room)
        )
    })
}

/// Block devices without reserved memory that are larger than all that the store can take. That is no error: a device
/// may stay partly empty, and equal or packed pages take less.
fn larger_than_the_store(blocks: &[Block], room: u64) -> impl Iterator<Item = String> {
    let large = blocks.iter().filter(move |block| !block.reserve && block.size_bytes > room);
    let line = move |block: &Block| {
        format!(
            "block '{}' of {} is larger than the {} that the store can take ({ROOM}): when the store is full, \
             writes to it fail; give it a smaller size, or the store more room",
            block.name,
            Size(block.size_bytes),
            Size(room)
        )
    };
    large.map(line)
}

/// `api_tcp` does not encrypt, so whoever is between it and another host reads the token.
fn in_the_clear(listen: &Listen) -> Option<String> {
    let address = listen.api_tcp.filter(|address| !address.ip().is_loopback())?;
    Some(format!(
        "listen.api_tcp {address} is reachable from other hosts, as listen.api_tcp_guarded permits: unless a tunnel or a \
         proxy encrypts, tokens and answers are sent in the clear; listen.api_tls encrypts"
    ))
}
