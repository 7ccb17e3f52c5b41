//! Which cells a run measures, how many times, and at which size.

use std::env;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};

/// The cells for which [`wanted`] was called.
static ASKED: Mutex<Asked> = Mutex::new(Asked { names: Vec::new(), chosen: false });

struct Asked {
    /// All cells so far, without duplicates.
    names: Vec<String>,
    /// Whether one of them is measured.
    chosen: bool,
}

fn asked() -> MutexGuard<'static, Asked> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `BENCH_ONLY` selects the cell `name`.
pub fn wanted(name: &str) -> bool {
    let chosen = env::var("BENCH_ONLY").map_or(true, |only| name.contains(&only));
    asked().note(name, chosen);
    chosen
}

/// Fails if `BENCH_ONLY` selected no cell of the benchmark that has just run.
pub fn some_chosen(bench: &str) -> anyhow::Result<()> {
    let asked = asked();
    let only = env::var("BENCH_ONLY").unwrap_or_default();
    ensure!(
        asked.chosen,
        "no cell of {bench} contains BENCH_ONLY={only}; there are: {}",
        asked.list()
    );
    Ok(())
}

/// The number of rounds whose median is taken.
pub fn rounds() -> anyhow::Result<usize> {
    match env::var("BENCH_ROUNDS") {
        Ok(text) => {
            let rounds =
                text.parse().with_context(|| format!("BENCH_ROUNDS={text} is not a number"))?;
            ensure!(rounds > 0, "BENCH_ROUNDS=0 measures nothing");
            Ok(rounds)
        }
        Err(_) => Ok(5),
    }
}

/// The one of two sizes that `BENCH_SIZE` selects. The figures of the small one, for `ci`, are meaningless.
pub fn by_size<T>(full: T, ci: T) -> T {
    if env::var_os("BENCH_SIZE").is_some_and(|size| size == "ci") { ci } else { full }
}

impl Asked {
    fn note(&mut self, name: &str, chosen: bool) {
        self.chosen |= chosen;
        if !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_owned());
        }
    }

    fn list(&self) -> String {
        self.names.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_listed_once_whether_or_not_they_are_chosen() {
        let mut asked = Asked { names: Vec::new(), chosen: false };
        for name in ["4 KiB", "metadata", "4 KiB"] {
            asked.note(name, false);
        }
        assert!(!asked.chosen);
        assert_eq!(asked.list(), "4 KiB; metadata");
        asked.note("sampling", true);
        asked.note("1 MiB", false);
        assert!(asked.chosen);
    }
}
