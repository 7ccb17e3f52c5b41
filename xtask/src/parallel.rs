//! Runs independent steps two at a time: tests and small benchmarks spend much of their time waiting for deadlines and for
//! programs that they start.

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::ensure;

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
    let results = Mutex::new(Vec::new());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = step(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    all(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// All results as one.
///
/// # Errors
/// The errors of all that failed, a line each.
pub fn all(results: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let failed = results.into_iter().filter_map(Result::err);
    let failed: Vec<_> = failed.map(|error| format!("{error:#}")).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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

    #[test]
    fn one_success_hides_no_failure() {
        let fails = || Err(anyhow::anyhow!("fails"));
        assert!(all([Ok(()), Ok(())]).is_ok());
        for results in [[fails(), Ok(())], [Ok(()), fails()]] {
            assert_eq!(all(results).expect_err("one failed").to_string(), "fails");
        }
    }
}
