//! Transports between a run and its blade.
//!
//! `spillway run` [claims](claim()) a pool on the blade before the program starts. Each paged process
//! then has a [`carrier`] of its own, which connects when the first page leaves. Carriers run on the
//! pager's tasks, which are not threads of the C library.

#![forbid(unsafe_code)]

mod claim;
mod directory;
mod line;
mod nvme_tcp;
mod ring;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use spillway_client::Url;
use spillway_client::nvme_tcp::settings::Settings;
use spillway_tiers::blade::Carrier;
use spillway_wire::auth::Secret;

pub use claim::{Claim, claim};

use crate::directory::Directory;
use crate::line::Line;
use crate::nvme_tcp::NvmeTcp;
use crate::ring::RingWay;

/// The reason why a blade can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client library reported an error.
    #[error(transparent)]
    Client(#[from] spillway_client::Error),
    /// No files can be created in the directory.
    #[error("{path}: {source}; name a directory that you can write to")]
    Directory {
        /// The path of the directory.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// An embedded store lies in this process.
    #[error("'{0}' is a store in this process, not a blade: write ring:PATH or nvme+tcp://HOST")]
    Embedded(String),
    /// A guest's window serves only programs that call the store themselves.
    #[error(
        "{0}: pages of a program in a guest can't go through a window; name a blade by nvme+tcp:"
    )]
    Guest(String),
    /// The pager's tasks can't run TLS.
    #[error("'{0}' can't be a blade: pages leave sealed, so write nvme+tcp")]
    Tls(String),
    /// The new pool is not in the client's list of pools.
    #[error("{0} does not list the pool that it has just created")]
    Unlisted(String),
    /// The text does not have the format that [`Claim`] writes.
    #[error("'{0}' is not a blade's address in the format of this version")]
    Address(String),
}

/// Whether `text` is the path of a directory and not a URL.
pub fn is_directory(text: &str) -> bool {
    !["embed:", "ring:", "guest:", "nvme+tcp:", "nvme+tls:"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
}

/// A transport to the blade, from the address, secret and pool identity of a [`Claim`]. It is not
/// connected yet, and needs no name resolution.
///
/// # Errors
/// [`Error::Address`] for another text; [`Error::Directory`].
pub fn carrier(
    address: &str,
    secret: Option<&str>,
    identity: u128,
    timeout: Duration,
) -> Result<Box<dyn Carrier>, Error> {
    if is_directory(address) {
        let opened = Directory::open(Path::new(address));
        let path = address.to_owned();
        return Ok(Box::new(opened.map_err(|source| Error::Directory { path, source })?));
    }
    let wrong = || Error::Address(address.to_owned());
    match address.parse()? {
        Url::Ring { path } => {
            Ok(Box::new(Line::new(RingWay::new(path, timeout, identity), timeout)))
        }
        Url::NvmeTcp { tls: true, .. } => Err(Error::Tls(address.to_owned())),
        Url::NvmeTcp { host, port, subsystem, options, .. } => {
            let ip: IpAddr = host.parse().map_err(|_| wrong())?;
            let mut settings = Settings::new(options.host_nqn.clone().ok_or_else(wrong)?, [0; 16]);
            options.apply(&mut settings);
            settings.subsystem = subsystem.unwrap_or(settings.subsystem);
            settings.secret = secret.map(Secret::parse).transpose().map_err(|_| wrong())?;
            let way = NvmeTcp::new((ip, port).into(), settings, timeout, identity)?;
            Ok(Box::new(Line::new(way, timeout)))
        }
        Url::Embedded { .. } => Err(Error::Embedded(address.to_owned())),
        Url::Guest { .. } => Err(Error::Guest(address.to_owned())),
    }
}
