//! Prints two or three runs side by side.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::work::Measured;

/// What `lab/zram` writes of its control group and its device.
#[derive(Debug, Deserialize)]
struct Group {
    limit_bytes: u64,
    zram_peak_bytes: u64,
    swapped_in: u64,
}

/// The statistics of a paged run.
struct Stats(Value);

impl Stats {
    fn number(&self, pointer: &str) -> Result<f64> {
        let number = self.0.pointer(pointer).and_then(Value::as_f64);
        number.with_context(|| format!("no {pointer}"))
    }

    /// What a run of this size has beside local pages and the store, bytes.
    fn native(&self, pss_bytes: f64) -> Result<f64> {
        let pages = self.number("/fullest/local_bytes")? + self.number("/fullest/store_bytes")?;
        Ok((pss_bytes - pages).max(0.0))
    }
}

/// Prints the limit, bytes, of a control group with the local memory of a paged run: its budget, and
/// its code, stacks and libraries, which the kernel counts too.
///
/// # Errors
/// A file is missing or invalid.
pub fn print_limit(paged: &Path, stats: &Path) -> Result<()> {
    let paged: Measured = read(paged)?;
    let stats = Stats(read(stats)?);
    let native = stats.native(paged.pss_bytes as f64)?;
    println!("{:.0}", stats.number("/settings/local_bytes")? + native);
    Ok(())
}

/// Prints the table of a plain run and a paged one, with the paged run's statistics; beside them the run
/// in a control group with swap on zram: its measurements, and the figures of its group.
///
/// # Errors
/// A file is missing or invalid.
pub fn print(plain: &Path, paged: &Path, stats: &Path, zram: Option<(&Path, &Path)>) -> Result<()> {
    let (plain, paged): (Measured, Measured) = (read(plain)?, read(paged)?);
    let stats = Stats(read(stats)?);
    let zram: Option<(Measured, Group)> = match zram {
        Some((measured, group)) => Some((read(measured)?, read(group)?)),
        None => None,
    };
    println!("\nmemcached -m 1024 -t 2 with {}.", plain.description);
    println!(
        "{} connections, one request at a time on each, Zipf 0.99, nine gets to one set.\n",
        plain.connections
    );
    let budget = format!("in {}", mib(stats.number("/settings/local_bytes")?));
    let title = zram.as_ref().map(|_| ["with zram".into(), "ratio".into()]);
    row("", ["all local".into(), budget, "ratio".into()], title);
    print_speed(&plain, &paged, zram.as_ref().map(|(measured, _)| measured));
    print_memory(&plain, &paged, &stats, zram.as_ref())?;
    print_values(&plain, &paged, zram.as_ref().map(|(measured, _)| measured));
    print_faults(&stats)?;
    if let Some((_, group)) = zram {
        println!(
            "zram: the kernel's swap, in a control group of {}, code, stacks and libraries included; \
             {} pages swapped in.",
            mib(group.limit_bytes as f64),
            group.swapped_in
        );
    }
    Ok(())
}

fn print_speed(plain: &Measured, paged: &Measured, zram: Option<&Measured>) {
    let figure = |name, of: fn(&Measured) -> f64| {
        compare(name, |figure| format!("{figure:.0}"), of(plain), of(paged), zram.map(of));
    };
    figure("requests a second", |run| run.requests_per_second);
    figure("values filled a second", |run| run.fills_per_second);
    figure("request time p50, us", |run| run.p50_us);
    figure("request time p99, us", |run| run.p99_us);
}

fn print_memory(
    plain: &Measured,
    paged: &Measured,
    stats: &Stats,
    zram: Option<&(Measured, Group)>,
) -> Result<()> {
    let all = paged.pss_bytes as f64;
    let part = |name, paged: f64, zram: Option<f64>| {
        let zram = zram.map(|bytes| [mib(bytes), String::new()]);
        row(name, [String::new(), mib(paged), String::new()], zram);
    };
    part("memory: local pages", stats.number("/fullest/local_bytes")?, None);
    let compressed = zram.map(|(_, group)| group.zram_peak_bytes as f64);
    part("memory: store (compressed)", stats.number("/fullest/store_bytes")?, compressed);
    part("memory: code, stacks, libraries", stats.native(all)?, None);
    let zram = zram.map(|(measured, group)| (measured.pss_bytes + group.zram_peak_bytes) as f64);
    compare("memory in all (Pss)", mib, plain.pss_bytes as f64, all, zram);
    Ok(())
}

fn print_values(plain: &Measured, paged: &Measured, zram: Option<&Measured>) {
    let values = |name, of: fn(&Measured) -> u64| {
        let zram = zram.map(|run| [of(run).to_string(), String::new()]);
        row(name, [of(plain).to_string(), of(paged).to_string(), String::new()], zram);
    };
    values("values verified", |run| run.verified);
    values("values wrong", |run| run.wrong);
}

fn print_faults(stats: &Stats) -> Result<()> {
    println!(
        "\n{:.0} faults: {:.0} first touches, {:.0} fetched from the store, {:.0} pages evicted; \
         a fault took {:.1} us (p50), {:.1} us (p99).",
        stats.number("/counters/faults")?,
        stats.number("/counters/first_touches")?,
        stats.number("/counters/fetches")?,
        stats.number("/counters/evictions")?,
        stats.number("/fault_times/p50_ns")? / 1e3,
        stats.number("/fault_times/p99_ns")? / 1e3,
    );
    Ok(())
}

/// A row with the ratio of each run to the plain one.
fn compare(name: &str, show: fn(f64) -> String, plain: f64, paged: f64, zram: Option<f64>) {
    let ratio = |figure: f64| format!("{:.2}", figure / plain);
    let zram = zram.map(|figure| [show(figure), ratio(figure)]);
    row(name, [show(plain), show(paged), ratio(paged)], zram);
}

fn row(name: &str, [plain, paged, ratio]: [String; 3], zram: Option<[String; 2]>) {
    let zram = zram.map_or(String::new(), |[zram, ratio]| format!(" {zram:>12} {ratio:>7}"));
    let line = format!("{name:<32} {plain:>12} {paged:>12} {ratio:>7}{zram}");
    println!("{}", line.trim_end());
}

fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / f64::from(1 << 20))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}
