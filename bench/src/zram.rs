//! The kernel's method: a memory limit on a control group, and swap on compressed memory.

use std::fs;
use std::path::Path;

use anyhow::Context;

use super::machine::{self, Machine, SwapSettings};

const DEVICE: &str = "/dev/zram0";
const SYSFS: &str = "/sys/block/zram0";

/// A control group with swap on zram. Dropping it restores the machine.
pub struct Zram {
    /// The control group.
    pub machine: Machine,
}

impl Zram {
    /// Why this side can't run here, if it can't.
    pub fn unavailable() -> Option<String> {
        machine::unavailable().or_else(|| match fs::read_to_string(format!("{SYSFS}/disksize")) {
            Err(_) => Some("no /dev/zram0 (modprobe zram)".into()),
            Ok(size) if size.trim() != "0" => Some("/dev/zram0 is in use".into()),
            Ok(_) => None,
        })
    }

    /// Sets both up; LZ4 compresses.
    pub fn set_up(settings: SwapSettings) -> anyhow::Result<Self> {
        let mut machine = Machine::default();
        let algorithms = fs::read_to_string(format!("{SYSFS}/comp_algorithm"))?;
        let before = algorithms.split(['[', ']']).nth(1).context("no algorithm chosen")?.to_owned();
        machine.change(format!("{SYSFS}/comp_algorithm"), "lz4", before)?;
        machine::write(format!("{SYSFS}/disksize"), "1G")?;
        machine.undo(|| fs::write(format!("{SYSFS}/reset"), "1"));
        machine.swap_on(Path::new(DEVICE), settings)?;
        Ok(Self { machine })
    }

    /// zram's peak memory since it was set up, bytes.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("{SYSFS}/mm_stat");
        let text = fs::read_to_string(&path)?;
        let peak = text.split_whitespace().nth(4).context("mm_stat has no fifth figure")?;
        Ok(peak.parse()?)
    }
}
