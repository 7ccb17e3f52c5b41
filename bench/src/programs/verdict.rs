//! What the programs say together, and which of them were too small to say anything.

use crate::rows::{Row, figure};

/// Least time under zram, s.
const LEAST_SECONDS: f64 = 10.0;
/// Least number of misses under zram.
const LEAST_MISSES: f64 = 50_000.0;

/// The medians of a program.
pub struct Medians {
    /// Its name.
    pub name: &'static str,
    /// At most one of its threads faults at a time.
    pub one_thread: bool,
    /// The time with Spillway, s.
    pub ours_seconds: f64,
    /// The time with zram, s; NaN if it ended badly there, or did not run.
    pub zram_seconds: f64,
    /// Misses with zram, NaN as before.
    pub zram_misses: f64,
}

/// Geometric means of the times of programs that ended well under both.
pub fn rows(bench: &'static str, all: &[Medians]) -> Vec<Row> {
    let kinds = [(true, "one thread faults at a time"), (false, "several threads fault")];
    let rows = kinds.map(|(one_thread, what)| {
        let mine =
            all.iter().filter(|it| it.one_thread == one_thread && it.zram_seconds.is_finite());
        let (ours, zram) = mine.map(|it| (it.ours_seconds, it.zram_seconds)).unzip();
        let means = (geometric_mean(ours), geometric_mean(zram));
        let metric = format!("programs of which {what}: time, geometric mean");
        Row::new(bench, metric, "s", means.0, ("zram", means.1))
    });
    rows.into_iter().filter(|row| row.ratio.is_finite()).collect()
}

/// A line for each program that was too small under zram, if there is one.
pub fn too_small(all: &[Medians]) -> Option<String> {
    let small = |it: &&Medians| it.zram_seconds < LEAST_SECONDS || it.zram_misses < LEAST_MISSES;
    let lines: Vec<_> = all
        .iter()
        .filter(small)
        .map(|it| {
            let (seconds, misses) = (figure(it.zram_seconds), figure(it.zram_misses));
            format!("{}: {seconds} s, {misses} misses", it.name)
        })
        .collect();
    (!lines.is_empty()).then(|| {
        format!(
            "Too small to say much, for they took less than {LEAST_SECONDS} s under zram or missed fewer than \
             {LEAST_MISSES} times:\n{}",
            lines.join("\n")
        )
    })
}

/// NaN for none.
fn geometric_mean(values: Vec<f64>) -> f64 {
    let count = values.len() as f64;
    (values.into_iter().map(f64::ln).sum::<f64>() / count).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(
        name: &'static str,
        one_thread: bool,
        ours_seconds: f64,
        zram: (f64, f64),
    ) -> Medians {
        let (zram_seconds, zram_misses) = zram;
        Medians { name, one_thread, ours_seconds, zram_seconds, zram_misses }
    }

    #[test]
    fn times_are_averaged_over_programs_that_ended_under_both() {
        let all = [
            program("a", true, 40.0, (10.0, 1e6)),
            program("b", true, 10.0, (40.0, 1e6)),
            program("killed", true, 10.0, (f64::NAN, f64::NAN)),
        ];
        let rows = rows("programs", &all);
        assert_eq!(rows.len(), 1, "no program of several threads");
        assert!((rows[0].ours - 20.0).abs() < 1e-9 && (rows[0].ratio - 1.0).abs() < 1e-9);
    }

    #[test]
    fn small_programs_are_named() {
        let fits = program("fits", true, 9.0, (10.0, 50_000.0));
        let killed = program("killed", true, 9.0, (f64::NAN, f64::NAN));
        assert_eq!(too_small(&[fits, killed]), None);
        let short = program("short", true, 9.0, (9.9, 60_000.0));
        let said = too_small(&[short, program("calm", false, 20.0, (20.0, 49_999.0))]);
        let said = said.expect("both are too small");
        assert!(said.contains("short: 9.90 s, 60000 misses\ncalm: 20.00 s, 49999"), "{said}");
    }
}
