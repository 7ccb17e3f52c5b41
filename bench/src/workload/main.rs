//! The program whose memory the benchmarks page: it maps anonymous memory, fills it, accesses it, checks what it reads,
//! and prints its measurements. It does not know Spillway.
//!
//! Started as `bench-workload SPEC`, with a [`Spec`] as JSON.

mod access;
mod bound;
mod clock;
mod compute;
mod counts;
mod floor;
mod pages;
#[path = "../spec.rs"]
mod spec;
mod walk;

use std::os::unix::fs::FileExt;
use std::{env, fs};

use anyhow::Context;

use access::{Accesses, Each};
use clock::Clock;
use compute::Work;
use counts::Counts;
use pages::Region;
use spec::{MISS_NS, Outcome, PAGE, Spec};

fn main() -> anyhow::Result<()> {
    let text = env::args().nth(1).context("usage: bench-workload SPEC")?;
    let spec: Spec = serde_json::from_str(&text).context("the spec")?;
    println!("{}", serde_json::to_string(&run(&spec)?)?);
    Ok(())
}

fn run(spec: &Spec) -> anyhow::Result<Outcome> {
    let clock = Clock::calibrate();
    let region = Region::map(spec.pages)?;
    let handler = match spec.floor {
        Some(floor) => Some(floor::start(&region, spec, clock, floor)?),
        None => {
            for page in 0..spec.pages {
                pages::fill(region.page(page), page, spec.content);
            }
            None
        }
    };

    let mut walks: Vec<_> = (0..spec.threads).map(|thread| walk::of(spec, thread)).collect();
    let share = |ops: u64| ops / spec.threads as u64;
    let each =
        Each { write_percent: spec.write_percent, work: Work::of_ns(spec.compute_ns), clock };
    access::run(&region, &mut walks, share(spec.warm_ops), each);
    let before = Counts::now().context("counts of the kernel")?;
    let Accesses { seconds, times, wrong } =
        access::run(&region, &mut walks, share(spec.ops), each);
    let Counts { interrupts, switches } = Counts::now()?.since(before);

    let misses = times.over_ns(MISS_NS);
    Ok(Outcome {
        seconds,
        ops: share(spec.ops) * spec.threads as u64,
        misses: misses.count(),
        miss_mean_ns: misses.mean_ns(),
        miss_p50_ns: misses.percentile_ns(50.0),
        miss_p90_ns: misses.percentile_ns(90.0),
        miss_p99_ns: misses.percentile_ns(99.0),
        interrupts,
        switches,
        wrong,
        resident_pages: resident_pages(&region)?,
        handler_p50_ns: handler.map(|handler| handler.times().percentile_ns(50.0)),
    })
}

/// Counts the pages that `/proc/self/pagemap` reports as present (bit 63).
fn resident_pages(region: &Region) -> anyhow::Result<u64> {
    let pagemap = fs::File::open("/proc/self/pagemap")?;
    let mut entries = [0u8; PAGE];
    let mut resident = 0;
    let per_read = entries.len() / 8;
    for first in (0..region.pages()).step_by(per_read) {
        let wanted = per_read.min(region.pages() - first) * 8;
        let page_number = region.address() / PAGE + first;
        pagemap.read_exact_at(&mut entries[..wanted], page_number as u64 * 8)?;
        resident += entries[..wanted].chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count();
    }
    Ok(resident as u64)
}
