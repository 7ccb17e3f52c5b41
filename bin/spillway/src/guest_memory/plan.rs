//! The plan: what a manager and a successor of the supervisor need. It lies in a memory file that outlives them.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use anyhow::Context;
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use spillway_guest_memory::{Handshake, Layout};

/// The numbers of descriptors, which stay the same across fork and exec, and their use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Whether it is Firecracker's guest.
    pub firecracker: bool,
    pub layout: Layout,
    pub local_bytes: u64,
    pub monitor_pid: u32,
    /// A pidfd.
    pub monitor: RawFd,
    pub uffd: RawFd,
    pub files: Vec<RawFd>,
    pub source: Option<RawFd>,
    pub map: RawFd,
    pub tiers: Option<TierPlan>,
}

/// Where pages go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TierPlan {
    pub capacity_bytes: u64,
    pub memory: [RawFd; 3],
    pub disk: Option<[RawFd; 2]>,
    pub disk_dir: Option<PathBuf>,
    pub blade: Option<BladePlan>,
}

/// Where the mirror's pages go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BladePlan {
    /// The blade, and its mirror where there is one.
    pub ways: Vec<Way>,
    pub timeout_ns: u64,
    /// Plans of earlier versions have none.
    #[serde(default)]
    pub loss_timeout_ns: u64,
    pub encrypt: bool,
    /// Whether the key is that of a sharing domain.
    #[serde(default)]
    pub share: bool,
    pub key: [u8; 32],
}

/// How a blade is reached, and the pool on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Way {
    pub address: String,
    pub secret: Option<String>,
    pub identity: [u8; 16],
}

impl Plan {
    /// Writes the plan to a descriptor that stays open across exec.
    pub fn write(&self) -> anyhow::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("spillway-guest-plan", MemfdFlags::CLOEXEC)
            .context("can't make a memory file")?;
        let file = inherited(&file)?;
        let mut writer = File::from(file.try_clone()?);
        writer.write_all(&serde_json::to_vec(self)?)?;
        Ok(file)
    }

    /// Reads it back.
    pub fn read(number: RawFd) -> anyhow::Result<Self> {
        let mut file = File::from(adopt(number)?.try_clone()?);
        file.rewind()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        serde_json::from_slice(&text).context("the descriptor holds no plan of a guest's memory")
    }

    pub const fn handshake(&self) -> Handshake {
        if self.firecracker { Handshake::Firecracker } else { Handshake::CloudHypervisor }
    }
}

/// A copy of a descriptor that stays open across exec.
pub fn inherited(file: impl AsFd) -> anyhow::Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, 3)?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

/// The descriptor with a number that this process was started with. It is a copy: the number stays open for
/// the process that is started next.
pub fn adopt(number: RawFd) -> anyhow::Result<OwnedFd> {
    anyhow::ensure!(number > 2, "no descriptor was inherited as {number}");
    // SAFETY: nothing else owns a descriptor of this number, which was opened for this process before it began, and
    // it is not closed here.
    let given = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::fcntl_dupfd_cloexec(given.as_fd(), 3)
        .with_context(|| format!("no descriptor was inherited as {number}"))
}

/// The numbers of the inherited descriptors.
pub fn numbers<const N: usize>(files: &[OwnedFd; N]) -> [RawFd; N] {
    std::array::from_fn(|at| files[at].as_raw_fd())
}
