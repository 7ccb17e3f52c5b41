//! The sides of a paging benchmark. Each runs the workload program differently.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, error, fmt, fs, process, thread};

use anyhow::{Context, anyhow, ensure};
use serde::Deserialize;

use super::machine::SwapSettings;
use super::spec::{Floor, Handler, Outcome, PAGE, Spec};
use super::swap_file::SwapFile;
use super::zram::Zram;
use super::{built, go_on};

/// Time between two looks at zswap's memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// So often the kernel may kill the workload of a side that swaps.
const KILLED_MAX: u32 = 4;
const SIGKILL: i32 = 9;

/// Options of `spillway run` that differ between runs. Sizes in bytes.
#[derive(Clone, Copy)]
pub struct Options {
    /// Budget of resident pages.
    pub local_bytes: u64,
    /// How faults are answered.
    pub faults: Handler,
    /// `--replacement` and `--eviction`, if not the defaults.
    pub policy: Option<(&'static str, &'static str)>,
    /// Delay of the emulated link, µs.
    pub link_delay_us: u32,
}

/// Runs the workload under `spillway run`.
pub fn spillway(spec: &Spec, options: &Options) -> anyhow::Result<(Outcome, Stats)> {
    let path = env::temp_dir().join(format!("spillway-bench-{}.json", process::id()));
    let mut command = Command::new(built()?.join("spillway"));
    command.args(["run", "--local", &options.local_bytes.to_string()]);
    command.args(["--faults", if options.faults == Handler::Thread { "thread" } else { "signal" }]);
    if let Some((replacement, eviction)) = options.policy {
        command.args(["--replacement", replacement, "--eviction", eviction]);
    }
    if options.link_delay_us > 0 {
        command.args(["--link-delay", &format!("{}us", options.link_delay_us)]);
    }
    command.arg("--stats").arg(&path).arg("--").arg(workload()?);
    let outcome = finish(command, spec).context("spillway run");
    let text = fs::read(&path);
    // It does not exist if the run failed; then the outcome contains the error.
    let _ = fs::remove_file(&path);
    let outcome = within(options.local_bytes, outcome?)?;
    Ok((outcome, serde_json::from_slice(&text.context("the statistics")?)?))
}

/// Runs the workload with the bare handler that `spec` names.
pub fn floor(spec: &Spec, floor: Floor) -> anyhow::Result<Outcome> {
    let spec = match floor.local_pages {
        Some(_) => Spec { floor: Some(floor), ..*spec },
        None => Spec { floor: Some(floor), warm_ops: 0, ops: spec.pages as u64, ..*spec },
    };
    finish(Command::new(workload()?), &spec).context("the bare handler")
}

/// Runs the workload in a control group with swap on zram. Also returns zram's peak memory, bytes.
pub fn zram(spec: &Spec, settings: SwapSettings) -> anyhow::Result<(Outcome, u64)> {
    let zram = Zram::set_up(settings).context("setting up zram")?;
    let outcome = finish(zram.machine.command(&workload()?), spec).context("zram")?;
    Ok((within(settings.limit_bytes, outcome)?, zram.peak_bytes()?))
}

/// Runs the workload in a control group with swap on a file. Also returns zswap's peak memory, bytes; 0 without zswap.
pub fn swap_file(
    spec: &Spec,
    settings: SwapSettings,
    with_zswap: bool,
) -> anyhow::Result<(Outcome, u64)> {
    let swap = SwapFile::set_up(settings, with_zswap).context("setting up a swap file")?;
    let command = swap.machine.command(&workload()?);
    let is_over = AtomicBool::new(false);
    let (outcome, peak_bytes) = thread::scope(|scope| {
        let peak = scope.spawn(|| {
            let before = SwapFile::zswap_bytes()?;
            let mut peak_bytes = before;
            while !is_over.load(Ordering::Relaxed) {
                peak_bytes = peak_bytes.max(SwapFile::zswap_bytes()?);
                thread::sleep(SAMPLE_INTERVAL);
            }
            anyhow::Ok(peak_bytes - before)
        });
        let outcome = finish(command, spec).context("swap file");
        is_over.store(true, Ordering::Relaxed);
        (outcome, peak.join())
    });
    let peak_bytes = peak_bytes.map_err(|_| anyhow!("reading /proc/meminfo"))?;
    Ok((within(settings.limit_bytes, outcome?)?, peak_bytes?))
}

/// Runs the workload as it is, with all its memory.
pub fn resident(spec: &Spec) -> anyhow::Result<Outcome> {
    finish(Command::new(workload()?), spec)
}

/// Fails if the run exceeded its budget by more than the pages that are being evicted.
fn within(local_bytes: u64, outcome: Outcome) -> anyhow::Result<Outcome> {
    let resident_bytes = outcome.resident_pages * PAGE as u64;
    ensure!(
        resident_bytes <= local_bytes + local_bytes / 32,
        "{resident_bytes} bytes were resident, and {local_bytes} allowed: the run was not paged"
    );
    Ok(outcome)
}

fn workload() -> anyhow::Result<PathBuf> {
    Ok(built()?.join("bench-workload"))
}

/// The kernel killed the workload.
#[derive(Debug)]
struct Killed;

impl fmt::Display for Killed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the kernel has killed the workload")
    }
}

impl error::Error for Killed {}

/// Runs a side that swaps. The kernel kills a workload that allocates faster than its group's pages reach the swap: once
/// more then.
pub fn retried<T>(run: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    for _ in 1..KILLED_MAX {
        match run() {
            Err(error) if error.root_cause().is::<Killed>() => eprintln!("{error:#}: once more"),
            done => return done,
        }
    }
    run()
}

/// Runs the command with the spec as its last argument, and reads its output.
fn finish(mut command: Command, spec: &Spec) -> anyhow::Result<Outcome> {
    let output = command.arg(serde_json::to_string(spec)?).output()?;
    go_on()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.signal() == Some(SIGKILL) {
        return Err(Killed.into());
    }
    ensure!(output.status.success(), "{}: {}", output.status, errors.trim());
    let outcome: Outcome = serde_json::from_slice(&output.stdout).context("the outcome")?;
    ensure!(outcome.wrong == 0, "{} accesses read a wrong word", outcome.wrong);
    Ok(outcome)
}

/// The statistics of a run that the benchmarks use; docs/stats.md lists all.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    /// The counters.
    pub counters: Counters,
    /// Time from reading a fault to having answered it.
    pub fault_times: FaultTimes,
    /// The highest values of each kind of memory.
    pub peaks: Peaks,
}

/// Counters of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct Counters {
    /// Faults answered from the store.
    pub fetches: u64,
    /// Faults answered from the victim pool.
    pub rescues: u64,
}

/// Quantiles of the handler's own time, within 12.5 %.
#[derive(Clone, Debug, Deserialize)]
pub struct FaultTimes {
    /// The median, ns.
    pub p50_ns: u64,
}

/// Peaks of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct Peaks {
    /// Resident pages of the run, including those that wait to leave, bytes.
    pub local_bytes: u64,
    /// The store's index and frames, bytes.
    pub store_bytes: u64,
}
