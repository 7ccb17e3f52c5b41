//! The server process of the ring's benchmark: a store behind a ring, for any client.
//!
//! Started as `bench-ring-server SOCKET POLL_US`. It serves until it is killed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use anyhow::Context;
use spillway_ring::{Config, Server};
use spillway_store::{Backing, ClientConfig, ClientId, Config as StoreConfig, Store};
use spillway_types::{Access, Admitted, Denied, Identity, Limits};

/// Makes every connection the same client.
struct Open(ClientId);

impl Access for Open {
    fn admit(&self, _: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 16, operations_max: 1024, bytes_max: 1 << 30 };
        Ok(Admitted { client: self.0, limits })
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let socket: PathBuf =
        arguments.next().context("usage: bench-ring-server SOCKET POLL_US")?.into();
    let poll_us = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let poll = Duration::from_micros(poll_us.context("POLL_US is not a number")?);
    // As in the daemon.
    let config = StoreConfig { backing: Backing::Memfd, ..StoreConfig::embedded(1 << 30) };
    let store = Arc::new(Store::open(config)?);
    let client = store.add_client(ClientConfig::default())?;
    let config = Config { poll, pollers_max: 1, ..Config::default() };
    let _server = Server::start(Server::bind(&socket)?, store, Arc::new(Open(client)), config)?;
    loop {
        thread::park();
    }
}
