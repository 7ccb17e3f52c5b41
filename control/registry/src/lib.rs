//! Which hosts there are that lend and borrow memory, where they are, and what they can spare.
//!
//! A [`Registry`] tells that to a watch channel as long as it runs. A static list is asked host by host
//! ([`listed`]); with etcd each host says it itself, under one lease ([`etcd`]). Either is discovery and
//! no more: a host that is not seen for a while is not chosen, and its loans go on.

#![forbid(unsafe_code)]

mod error;
pub mod etcd;
pub mod listed;

use std::net::SocketAddr;

use tokio::sync::watch;

pub use error::Error;

/// Most hosts that are known at a time. More are passed over.
pub const HOSTS_MAX: usize = 4096;

/// A host that can lend or borrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The DNS name in its certificate, in lower case.
    pub name: String,
    /// Where it takes messages.
    pub address: SocketAddr,
    /// Hosts of one rack fail together.
    pub rack: String,
    /// Bytes that it would lend, by the last that it said; 0 when it does not answer.
    pub spare_bytes: u64,
}

/// Where hosts are found.
#[derive(Clone, Debug)]
pub enum Registry {
    /// Those of a list; they are asked what they can spare.
    Static(listed::List),
    /// Those that have written themselves into etcd.
    Etcd(etcd::Settings),
}

impl Registry {
    /// Keeps `hosts` up to date, without this host itself, and announces `own` where that is asked for.
    /// It never ends by itself.
    pub async fn run(self, own: watch::Receiver<Host>, hosts: watch::Sender<Vec<Host>>) {
        match self {
            Self::Static(list) => list.run(&hosts).await,
            Self::Etcd(settings) => etcd::run(&settings, own, &hosts).await,
        }
    }
}

/// Whether a name can be that of a host: a DNS name's length and characters, in lower case.
pub fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    (1..=253).contains(&name.len()) && name.chars().all(good)
}
