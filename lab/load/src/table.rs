//! Prints two runs side by side.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::work::Measured;

/// Prints the table of a plain run and a paged one, with the paged run's statistics.
///
/// # Errors
/// A file is missing or invalid.
pub fn print(plain: &Path, paged: &Path, stats: &Path) -> Result<()> {
    let plain: Measured = read(plain)?;
    let paged: Measured = read(paged)?;
    let stats: Value = read(stats)?;
    let number = |pointer: &str| {
        stats.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no {pointer}"))
    };
    let budget = number("/settings/local_bytes")?;
    let local = number("/fullest/local_bytes")?;
    let store = number("/fullest/store_bytes")?;
    let native = paged.pss_bytes as f64 - local - store;

    println!("\nmemcached -m 1024 -t 2 with {}.", plain.description);
    println!(
        "{} connections, one request at a time on each, Zipf 0.99, nine gets to one set.\n",
        plain.connections
    );
    row("", "all local", &format!("in {}", mib(budget)), "ratio");
    let ratio = |ours: f64, other: f64| format!("{:.2}", ours / other);
    for (name, other, ours) in [
        ("requests a second", plain.requests_per_second, paged.requests_per_second),
        ("values filled a second", plain.fills_per_second, paged.fills_per_second),
        ("request time p50, us", plain.p50_us, paged.p50_us),
        ("request time p99, us", plain.p99_us, paged.p99_us),
    ] {
        row(name, &format!("{other:.0}"), &format!("{ours:.0}"), &ratio(ours, other));
    }
    let all = plain.pss_bytes as f64;
    row("memory: local pages", "", &mib(local), "");
    row("memory: store (compressed)", "", &mib(store), "");
    row("memory: code, stacks, libraries", "", &mib(native.max(0.0)), "");
    row(
        "memory in all (Pss)",
        &mib(all),
        &mib(paged.pss_bytes as f64),
        &ratio(paged.pss_bytes as f64, all),
    );
    row("values verified", &plain.verified.to_string(), &paged.verified.to_string(), "");
    row("values wrong", &plain.wrong.to_string(), &paged.wrong.to_string(), "");
    println!(
        "\n{:.0} faults: {:.0} first touches, {:.0} fetched from the store, {:.0} pages evicted; \
         a fault took {:.1} us (p50), {:.1} us (p99).",
        number("/counters/faults")?,
        number("/counters/first_touches")?,
        number("/counters/fetches")?,
        number("/counters/evictions")?,
        number("/fault_times/p50_ns")? / 1e3,
        number("/fault_times/p99_ns")? / 1e3,
    );
    Ok(())
}

fn row(name: &str, plain: &str, paged: &str, ratio: &str) {
    println!("{name:<32} {plain:>12} {paged:>12} {ratio:>7}");
}

fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / f64::from(1 << 20))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}
