//! Runs independent steps two at a time: tests and small benchmarks spend much of their time waiting for deadlines and for
//! programs that they start.

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::bail;

/// The number of processors of the smallest machine that runs the checks.
const WORKERS: usize = 2;

/// Calls `step` for each item, in their order, on [`WORKERS`] threads. The others still run after a failure.
///
/// # Errors
/// The errors of all steps that failed, a line each.
pub fn each<T: Send>(
    items: Vec<T>,
    step: impl Fn(T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let items = Mutex::new(items.into_iter());
    let failed = Mutex::new(Vec::new());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(item) = next() {
                    if let Err(error) = step(item) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push(format!("{error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{}", failed.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use anyhow::ensure;

    use super::*;

    #[test]
    fn each_item_is_passed_once_and_every_failure_is_told() {
        let sum = AtomicUsize::new(0);
        let done = each((1..=100).collect(), |item| {
            sum.fetch_add(item, Relaxed);
            ensure!(item % 50 != 0, "item {item}");
            Ok(())
        });
        assert_eq!(sum.into_inner(), 5050);
        let told = done.expect_err("two items fail").to_string();
        let mut lines: Vec<_> = told.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["item 100", "item 50"]);
    }
}
