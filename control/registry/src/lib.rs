//! The hosts that lend and borrow memory: their addresses and spare memory.
//!
//! A running [`Registry`] updates a watch channel. It queries each host of a static list ([`listed`]);
//! with etcd each host announces itself, under a lease ([`etcd`]). Both are only discovery: a host that
//! is not seen for a while is not chosen, but its loans continue.

#![forbid(unsafe_code)]

mod error;
pub mod etcd;
pub mod listed;

use std::net::SocketAddr;

use tokio::sync::watch;

pub use error::Error;

/// Most known hosts. Further ones are skipped.
pub const HOSTS_MAX: usize = 4096;

/// A host that can lend or borrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The DNS name in its certificate, in lower case.
    pub name: String,
    /// Its address for messages.
    pub address: SocketAddr,
    /// Hosts of one rack fail together.
    pub rack: String,
    /// Spare bytes by its last report; 0 if it does not answer.
    pub spare_bytes: u64,
}

/// The source of hosts.
#[derive(Clone, Debug)]
pub enum Registry {
    /// A static list; each host is queried for its spare memory.
    Static(listed::List),
    /// Hosts register themselves in etcd.
    Etcd(etcd::Settings),
}

impl Registry {
    /// Keeps `hosts` up to date, without this host, and announces `own` if required. Never ends by
    /// itself.
    pub async fn run(self, own: watch::Receiver<Host>, hosts: watch::Sender<Vec<Host>>) {
        match self {
            Self::Static(list) => list.run(&hosts).await,
            Self::Etcd(settings) => etcd::run(&settings, own, &hosts).await,
        }
    }
}

/// Whether a name is valid for a host: a DNS name's length and characters, in lower case.
pub fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    (1..=253).contains(&name.len()) && name.chars().all(good)
}
