//! The memory of a process.

use std::fs;

use anyhow::{Context, Result};

/// Proportional set size of a process, bytes: all its resident pages, shared ones by their share.
///
/// # Errors
/// The process has ended, or belongs to another user.
pub fn pss_bytes(pid: u64) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let kib: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .with_context(|| format!("{path} has no Pss"))?
        .trim()
        .parse()?;
    Ok(kib << 10)
}
