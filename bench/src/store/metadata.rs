//! The store's memory for each page besides the page's bytes.

use std::fs;

use anyhow::{Context, ensure};
use spillway_store::Put;

use super::{BENCH, Embedded, key};
use crate::rows::{Report, Row};
use crate::spec::PAGE;
use crate::{by_size, go_on};

/// Numbers of pages.
const COUNTS: [usize; 3] = [1 << 20, 4 << 20, 16 << 20];
/// The number of pages with `BENCH_SIZE=ci`.
const COUNTS_CI: [usize; 1] = [64 << 10];
/// The goal for a page, bytes.
const LIMIT_BYTES: f64 = 32.0;

/// The content of the pages.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Bytes that need a frame.
    Framed,
    /// Equal 32-bit words. Such a page needs no frame, nor the store's metadata of one.
    SameFilled,
}

/// Fills stores with millions of pages. Framed pages are left out if they would take more than three quarters of the
/// available memory; 64 GiB of them nearly always do. At 1 Mi pages, the difference between the two kinds is the cost
/// of a frame.
pub fn rows(report: &mut Report) -> anyhow::Result<()> {
    for &count in by_size(&COUNTS[..], &COUNTS_CI) {
        let pages = match count >> 20 {
            0 => format!("{} Ki", count >> 10),
            mi => format!("{mi} Mi"),
        };
        for (kind, name) in [(Kind::Framed, "framed"), (Kind::SameFilled, "same-filled")] {
            if kind == Kind::Framed && count * PAGE > available_bytes()? / 4 * 3 {
                eprintln!("{pages} framed pages don't fit here; same-filled ones stand in");
                continue;
            }
            eprintln!("metadata of {pages} {name} pages");
            go_on()?;
            let name = format!("metadata a page, {pages} {name}");
            let Some((resident, counted)) = report.keep(&name, measure(count, kind)) else {
                continue;
            };
            for (who, bytes) in [("resident", resident), ("own count", counted)] {
                let metric = format!("{name}, {who}");
                report.rows.push(Row::new(BENCH, metric, "B", bytes, ("limit", LIMIT_BYTES)));
            }
        }
    }
    Ok(())
}

/// Metadata per page, bytes: by the growth of the process's resident memory, and by the store's own count.
fn measure(count: usize, kind: Kind) -> anyhow::Result<(f64, f64)> {
    let frame_bytes = if kind == Kind::Framed { PAGE } else { 0 };
    let room_bytes = count * (frame_bytes + 4 * LIMIT_BYTES as usize) + (1 << 30);
    let mut page = vec![0; PAGE];
    let before_bytes = resident_bytes()?;
    let embedded = Embedded::with_capacity(room_bytes as u64)?;
    for number in 0..count {
        let word = (number as u32 + 1).to_ne_bytes();
        match kind {
            Kind::Framed => page[..4].copy_from_slice(&word),
            Kind::SameFilled => page.chunks_exact_mut(4).for_each(|at| at.copy_from_slice(&word)),
        }
        let put = embedded.store.put(embedded.pool, key(number), &page);
        ensure!(put == Put::Stored, "page {number}: {put:?}");
        if number % (1 << 20) == 0 {
            go_on()?;
        }
    }
    let resident = resident_bytes()?.saturating_sub(before_bytes + count * frame_bytes);
    let counted = (embedded.store.memory_bytes() as usize).saturating_sub(count * frame_bytes);
    Ok((resident as f64 / count as f64, counted as f64 / count as f64))
}

/// `VmRSS` of this process.
fn resident_bytes() -> anyhow::Result<usize> {
    field_bytes("/proc/self/status", "VmRSS:")
}

fn available_bytes() -> anyhow::Result<usize> {
    field_bytes("/proc/meminfo", "MemAvailable:")
}

/// Reads a line such as `VmRSS:  1234 kB`.
fn field_bytes(path: &str, name: &str) -> anyhow::Result<usize> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: usize = kib.with_context(|| format!("{path} has no {name}"))?.parse()?;
    Ok(kib << 10)
}
