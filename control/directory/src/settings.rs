//! An operator's settings of clients.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spillway_types::{Limits, PAGE_BYTES, Size};
use spillway_wire::auth::SecretError;

use crate::error::Error;

/// Longest name of a client or device, in bytes.
pub const NAME_BYTES_MAX: usize = 223;
/// Bounds of a client's weight.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;
/// Largest floor of a client, in pages: 1 PiB.
pub const FLOOR_PAGES_MAX: u64 = (1 << 50) / PAGE_BYTES as u64;
/// Longest key of a secret, in bytes: the longest of DH-HMAC-CHAP.
pub(crate) const SECRET_BYTES_MAX: usize = 64;

/// How a client is identified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// A local user's processes, by user id.
    User(u32),
    /// A local group's processes, by group id.
    Group(u32),
    /// A host of the network, by its NVMe Qualified Name.
    Host(String),
    /// A name from a front end's own authentication, such as a certificate's subject.
    Name(String),
    /// No connection has this identity: it is a guest known by its disks, under the client's own
    /// name.
    Disk(String),
    /// A connection that sends the client's password, under the client's own name.
    Password(String),
    /// A paged program of this host, by its supervisor's process.
    Program(i32),
}

impl core::fmt::Display for Who {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Group(gid) => write!(f, "gid {gid}"),
            Self::Host(nqn) => write!(f, "host {nqn}"),
            Self::Name(name) => write!(f, "name {name}"),
            Self::Disk(_) => f.write_str("its disks"),
            Self::Password(_) => f.write_str("its password"),
            Self::Program(pid) => write!(f, "process {pid}"),
        }
    }
}

/// A host's authentication secret, or the digest of a password. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Reads a secret of the host `nqn`, in the form that `nvme gen-dhchap-key` prints.
    ///
    /// # Errors
    /// What is wrong with it, without repeating any of it.
    pub fn parse(text: &str, nqn: &str) -> Result<Self, SecretError> {
        let (key, bytes) = spillway_wire::auth::Secret::parse(text)?.key_of(nqn);
        Ok(Self(key[..bytes].to_vec()))
    }

    /// The digest of a password. The password itself is not kept.
    pub fn of_password(password: &[u8]) -> Self {
        Self(Sha256::digest(password).to_vec())
    }

    /// Whether this matches the password. The time does not depend on where they differ.
    pub(crate) fn is_of(&self, password: &[u8]) -> bool {
        let digest = Sha256::digest(password);
        let differ = self.0.iter().zip(&digest).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == digest.len() && differ == 0
    }

    /// Copies it out; returns its length.
    pub(crate) fn write_to(&self, secret: &mut [u8; SECRET_BYTES_MAX]) -> usize {
        secret[..self.0.len()].copy_from_slice(&self.0);
        self.0.len()
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// A client in the operator's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Its name.
    pub name: String,
    /// How it is identified.
    pub who: Who,
    /// A host's secret, or a user's password; none if not required.
    pub secret: Option<Secret>,
    /// Its cap, pages; `u64::MAX` means no limit.
    pub target_pages: u64,
    /// Its floor, pages; only utility uses it.
    pub floor_pages: u64,
    /// Its weight, which scales its waiting and its share; only utility uses it.
    pub weight: u32,
    /// Its limits.
    pub limits: Limits,
    /// Its sharing domain: clients of one domain share frames of equal content.
    pub domain: Option<u32>,
    /// Shared pools that it may join.
    pub shared: Vec<u128>,
}

impl ClientSettings {
    pub(crate) const fn bounds(&self) -> Bounds {
        let Self { target_pages: cap_pages, floor_pages, weight, .. } = *self;
        Bounds { cap_pages, floor_pages, weight }
    }
}

/// An operator's changes of a client while the daemon runs; none leaves a setting unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientChange {
    /// Its cap, pages; `u64::MAX` means no limit, for a program only its user's.
    pub cap_pages: Option<u64>,
    /// Its floor, pages.
    pub floor_pages: Option<u64>,
    /// Its weight.
    pub weight: Option<u32>,
}

/// What bounds the target of a client or program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) cap_pages: u64,
    pub(crate) floor_pages: u64,
    pub(crate) weight: u32,
}

impl Bounds {
    /// Checks that the floor is not above the cap, which would win.
    ///
    /// # Errors
    /// [`Error::FloorAboveCap`].
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        if self.floor_pages <= self.cap_pages {
            return Ok(());
        }
        let size = |pages: u64| Size(pages.saturating_mul(PAGE_BYTES as u64));
        let (floor, cap) = (size(self.floor_pages), size(self.cap_pages));
        Err(Error::FloorAboveCap { name: name.to_owned(), floor, cap })
    }
}

impl ClientChange {
    /// What bounds a client's target after this change.
    ///
    /// # Errors
    /// [`Error::FloorAboveCap`], if this change makes it so.
    pub(crate) fn of(&self, name: &str, before: Bounds) -> Result<Bounds, Error> {
        let after = Bounds {
            cap_pages: self.cap_pages.unwrap_or(before.cap_pages),
            floor_pages: self.floor_pages.unwrap_or(before.floor_pages),
            weight: self.weight.unwrap_or(before.weight),
        };
        if self.cap_pages.is_some() || self.floor_pages.is_some() {
            after.check(name)?;
        }
        Ok(after)
    }
}

/// A block device in the operator's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSettings {
    /// Its name, unique over the daemon.
    pub name: String,
    /// The name of the client that may use it.
    pub client: String,
    /// Its length, bytes; a multiple of 4096.
    pub bytes: u64,
    /// The length of a block, bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Whether its memory is reserved, so that no write is refused. Otherwise its pages are stored like
    /// others.
    pub reserve: bool,
}

/// How the memory manager computes targets, in the registry's form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerSettings {
    /// The policy, in its setter's form.
    pub policy: String,
    /// Milliseconds between two samples of the clients.
    pub interval_ms: u64,
}

/// Which unnamed local users may be clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// The daemon's user, and root.
    Same,
    /// Everyone, each user a client of its own.
    All,
    /// Nobody.
    None,
}

/// Settings of unnamed clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which local users are admitted.
    pub users: Users,
    /// Whether hosts are admitted under any name that they give.
    pub hosts: bool,
    /// Whether other machines can reach the target, so that a host needs a secret.
    pub exposed: bool,
    /// The cap of such a client, pages; `u64::MAX` means no limit.
    pub target_pages: u64,
    /// The limits of such a client.
    pub limits: Limits,
    /// How long such a client's pools are kept when its last connection has ended, seconds.
    pub grace_s: u64,
}
