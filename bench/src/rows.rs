//! The output of a benchmark: rows of two figures and their ratio, as JSON or as a table.

use std::fs;
use std::sync::LazyLock;

use serde::Serialize;

/// The model of this machine's processor, and its number of cores.
static PROCESSOR: LazyLock<String> =
    LazyLock::new(|| processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()));

/// A figure and the one that it is compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The benchmark.
    pub bench: &'static str,
    /// The measured quantity.
    pub metric: String,
    /// The unit of both figures.
    pub unit: &'static str,
    /// Spillway's figure.
    pub ours: f64,
    /// The other side's figure, from the same run.
    pub other: f64,
    /// The name of the other side.
    pub other_name: String,
    /// `ours / other`.
    pub ratio: f64,
    /// The processor of both.
    pub processor: &'static str,
}

impl Row {
    /// Makes a row, and computes its ratio.
    pub fn new(
        bench: &'static str,
        metric: impl Into<String>,
        unit: &'static str,
        ours: f64,
        (other_name, other): (impl Into<String>, f64),
    ) -> Self {
        let (metric, other_name) = (metric.into(), other_name.into());
        let (ratio, processor) = (ours / other, PROCESSOR.as_str());
        Self { bench, metric, unit, ours, other, other_name, ratio, processor }
    }
}

/// The result of a benchmark: its rows, and text that explains them.
#[derive(Default)]
pub struct Report {
    /// The figures.
    pub rows: Vec<Row>,
    /// Tables and remarks that are not ratios.
    pub remarks: Vec<String>,
    /// Runs that failed. The rows are from the rounds that succeeded.
    pub failures: Vec<String>,
}

impl Report {
    /// Returns the result of a side. On an error, prints and records it, and continues without the side.
    pub fn keep<T>(&mut self, name: &str, result: anyhow::Result<T>) -> Option<T> {
        result
            .inspect_err(|error| {
                let line = format!("{name}: {error:#}");
                eprintln!("{line}");
                self.failures.push(line);
            })
            .ok()
    }

    /// Prints JSON, one row a line, or a table and the remarks.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            for row in &self.rows {
                println!("{}", serde_json::to_string(row)?);
            }
            return Ok(());
        }
        let titles = ["metric", "unit", "ours", "other", "ratio", "other side", "processor"];
        let mut lines = vec![line_of(titles)];
        for row in &self.rows {
            let ratio = format!("{:.2}", row.ratio);
            let (ours, other) = (figure(row.ours), figure(row.other));
            let figures = [&row.metric, row.unit, &ours, &other, &ratio];
            let names = [&row.other_name, row.processor];
            lines.push(figures.into_iter().chain(names).map(str::to_owned).collect());
        }
        println!("{}", table(&lines));
        for remark in &self.remarks {
            println!("\n{remark}");
        }
        Ok(())
    }
}

/// The processor's description in `/proc/cpuinfo`.
fn processor(cpuinfo: &str) -> String {
    let values = |name: &str| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mine = lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
        mine.map(str::to_owned).collect::<Vec<_>>()
    };
    let model = values("model name").into_iter().next().unwrap_or("unknown processor".to_owned());
    match values("processor").len() {
        1 => format!("{model}, 1 core"),
        cores => format!("{model}, {cores} cores"),
    }
}

/// One line of a table.
pub fn line_of<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// Aligns columns: the first to the left, figures to the right, the last as it is.
pub fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let rendered = lines.iter().map(|line| {
        let padded = line.iter().enumerate().map(|(at, text)| match at {
            0 => format!("{text:<width$}", width = widths[at]),
            _ => format!("{text:>width$}", width = widths[at]),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    rendered.collect::<Vec<_>>().join("\n")
}

/// A number with at least three significant digits and no meaningless ones; a dash for NaN.
pub fn figure(value: f64) -> String {
    match value.abs() {
        none if none.is_nan() => "-".to_owned(),
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The median; for an even number of values the mean of the middle two; NaN for none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn columns_line_up() {
        let lines = [line_of(["metric", "ours", "side"]), line_of(["p50", "12.00", "zram"])];
        assert_eq!(table(&lines), "metric   ours  side\np50     12.00  zram");
    }

    #[test]
    fn the_processor_is_named_with_its_cores() {
        let core = |at| format!("processor\t: {at}\nmodel name\t: AMD EPYC\nflags\t\t: fpu\n\n");
        assert_eq!(processor(&(core(0) + &core(1))), "AMD EPYC, 2 cores");
        assert_eq!(processor(&core(0)), "AMD EPYC, 1 core");
    }

    #[test]
    fn a_row_is_one_json_object() {
        let row = Row::new("store", "get", "GB/s", 3.0, ("memcpy", 4.0));
        let json = serde_json::to_value(row).expect("plain data");
        assert_eq!(json["ratio"], 0.75);
        assert_eq!(json["other_name"], "memcpy");
        assert_ne!(json["processor"], "");
    }
}
