//! The kernel's methods that need a disk: a memory limit on a control group, and swap on a file, with or without zswap.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process;

use anyhow::Context;
use rustix::fs::{FallocateFlags, fallocate};

use super::machine::{self, Machine, SwapSettings};

const FILE_BYTES: u64 = 1 << 30;
const ZSWAP: &str = "/sys/module/zswap/parameters";

/// A control group with swap on a file. Dropping it restores the machine.
pub struct SwapFile {
    /// The control group.
    pub machine: Machine,
}

impl SwapFile {
    /// Why this side can't run here, if it can't.
    pub fn unavailable(with_zswap: bool) -> Option<String> {
        let has_zswap = || fs::exists(format!("{ZSWAP}/enabled")).unwrap_or(false);
        machine::unavailable()
            .or_else(|| (with_zswap && !has_zswap()).then(|| "this kernel has no zswap".into()))
    }

    /// Sets both up. The file is in the folder of the build. LZ4 compresses, if zswap has it.
    pub fn set_up(settings: SwapSettings, with_zswap: bool) -> anyhow::Result<Self> {
        let mut machine = Machine::default();
        let path = Self::path()?;
        let file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("making {}", path.display()))?;
        let made = path.clone();
        machine.undo(move || fs::remove_file(made));
        fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES)?;
        file.sync_all()?;
        let mut set = |name: &str, to: &str| -> anyhow::Result<()> {
            let path = format!("{ZSWAP}/{name}");
            let before = fs::read_to_string(&path)?.trim().to_owned();
            machine.change(path, to, before)
        };
        if with_zswap {
            // A kernel without it keeps its own.
            let _ = set("compressor", "lz4");
        }
        if fs::exists(ZSWAP)? {
            set("enabled", if with_zswap { "Y" } else { "N" })?;
        }
        machine.swap_on(&path, settings)?;
        Ok(Self { machine })
    }

    /// The file.
    pub fn path() -> anyhow::Result<PathBuf> {
        Ok(super::built()?.join(format!("bench-swap-{}", process::id())))
    }

    /// zswap's memory now, of the whole machine, bytes; 0 without zswap.
    pub fn zswap_bytes() -> anyhow::Result<u64> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let kib = text.lines().find_map(|line| line.strip_prefix("Zswap:"));
        let Some(kib) = kib else { return Ok(0) };
        Ok(kib.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
    }
}
