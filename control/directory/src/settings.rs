//! What an operator says about clients.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spillway_types::Limits;
use spillway_wire::auth::SecretError;

/// Most bytes of a client's or device's name.
pub const NAME_BYTES_MAX: usize = 223;
/// What a client's waiting may count beside that of others.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;
/// Most pages that a client may be left at any time: 1 PiB.
pub const FLOOR_PAGES_MAX: u64 = (1 << 50) / spillway_types::PAGE_BYTES as u64;
/// Most bytes of a secret's key: the longest that DH-HMAC-CHAP knows.
pub(crate) const SECRET_BYTES_MAX: usize = 64;

/// By what a client is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// A local user's processes, by user id.
    User(u32),
    /// A local group's processes, by group id.
    Group(u32),
    /// A host of the network, by its NVMe Qualified Name.
    Host(String),
    /// A name that a frontend's own authentication vouches for, such as a certificate's subject.
    Name(String),
    /// Nobody connects as it: it is a guest known by its disks, under the client's own name.
    Disk(String),
    /// Whoever gives the client's password, under the client's own name.
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

/// What a host must prove to know, or the digest of a password. It is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Reads a secret of the host `nqn` as `nvme gen-dhchap-key` prints it.
    ///
    /// # Errors
    /// What is wrong with it; nothing of it is repeated.
    pub fn parse(text: &str, nqn: &str) -> Result<Self, SecretError> {
        let (key, bytes) = spillway_wire::auth::Secret::parse(text)?.key_of(nqn);
        Ok(Self(key[..bytes].to_vec()))
    }

    /// Of a password, which is compared and not kept.
    pub fn of_password(password: &[u8]) -> Self {
        Self(Sha256::digest(password).to_vec())
    }

    /// Whether this is of the password. It takes the same time wherever they differ.
    pub(crate) fn is_of(&self, password: &[u8]) -> bool {
        let digest = Sha256::digest(password);
        let differ = self.0.iter().zip(&digest).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == digest.len() && differ == 0
    }

    /// Copies it out; its length.
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

/// One client, as the operator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Its name.
    pub name: String,
    /// By what it is known.
    pub who: Who,
    /// What a host must prove to know, or a user's password; none when it need not.
    pub secret: Option<Secret>,
    /// Most pages that it may hold; `u64::MAX` is no limit.
    pub target_pages: u64,
    /// Pages that the policy leaves it at any time; utility alone minds it.
    pub floor_pages: u64,
    /// What its waiting counts beside 1 for others, and its share; utility alone minds it.
    pub weight: u32,
    /// What it may have at the same time.
    pub limits: Limits,
    /// Its sharing domain: clients of one domain share frames of equal content.
    pub domain: Option<u32>,
    /// Shared pools that it may join.
    pub shared: Vec<u128>,
}

/// What an operator changes of a client while the daemon runs; none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientChange {
    /// Most pages that it may hold; `u64::MAX` is no limit, for a program none but its user's.
    pub cap_pages: Option<u64>,
    /// Pages that it is left at any time.
    pub floor_pages: Option<u64>,
    /// What its waiting counts beside 1 for others.
    pub weight: Option<u32>,
}

/// One block device, as the operator names it.
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
    /// Whether its memory is set aside, so that no write is refused. Else its pages are kept as any others.
    pub reserve: bool,
}

/// How the memory manager finds targets, as the registry keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerSettings {
    /// The policy, in the words of whoever sets it.
    pub policy: String,
    /// Milliseconds between two looks at the clients.
    pub interval_ms: u64,
}

/// Which local users that nobody named may be clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// The user that the daemon runs as, and root.
    Same,
    /// Everyone, each user a client of its own.
    All,
    /// Nobody.
    None,
}

/// What holds for clients that nobody named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which local users are let in.
    pub users: Users,
    /// Whether hosts are let in by whatever name they give.
    pub hosts: bool,
    /// Whether other machines reach the target, so that a host needs a secret.
    pub exposed: bool,
    /// Most pages that such a client may hold; `u64::MAX` is no limit.
    pub target_pages: u64,
    /// What such a client may have at the same time.
    pub limits: Limits,
    /// How long such a client's pools are kept when its last connection has ended, seconds.
    pub grace_s: u64,
}
