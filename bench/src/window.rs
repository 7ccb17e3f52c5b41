//! `window`: a program in a guest puts pages into the host's store and gets them, through a window in the guest's
//! memory.
//!
//! The guest runs in software (TCG), which makes the program's own work many times slower than KVM. The embedded store
//! in the same guest shows by how much. The ring on the host is the same store without a guest.

use serde::Deserialize;

use super::rows::{Report, Row, median};
use super::{build_programs, by_size, go_on, measured_by, rounds, wanted};

const BENCH: &str = "window";
/// Puts of a round, and gets.
const COUNT: usize = 5000;
/// The goal for a put or a get, microseconds.
const WANTED_US: f64 = 4.0;

/// One round of a side.
#[derive(Deserialize)]
struct Round {
    side: String,
    put_us: f64,
    get_us: f64,
}

/// Measures all sides alternately.
///
/// # Errors
/// A build that fails, or the user's interruption. The report contains guests that fail.
pub fn run() -> anyhow::Result<Report> {
    build_programs()?;
    go_on()?;
    let mut report = Report::default();
    if !wanted(BENCH) {
        return Ok(report);
    }
    let measured = measure(rounds()?, by_size(COUNT, 200));
    let Some(measured) = report.keep(BENCH, measured) else { return Ok(report) };
    let sides = ["window", "window, both sides asleep"];
    let others = ["embedded store in the guest", "ring on the host"];
    for (kind, us) in [("put", (|it| it.put_us) as fn(&Round) -> f64), ("get", |it| it.get_us)] {
        let of = |side: &str| median(measured.iter().filter(|it| it.side == side).map(us));
        for side in sides {
            let metric = format!("{side}, {kind} 4 KiB");
            for other in others {
                let theirs = (other, of(other));
                report.rows.push(Row::new(BENCH, metric.clone(), "us", of(side), theirs));
            }
        }
        let wanted = ("at most, while polling", WANTED_US);
        report.rows.push(Row::new(
            BENCH,
            format!("window, {kind} 4 KiB"),
            "us",
            of("window"),
            wanted,
        ));
    }
    Ok(report)
}

fn measure(rounds: usize, count: usize) -> anyhow::Result<Vec<Round>> {
    measured_by("bench-window", [rounds.to_string(), count.to_string()])
}
