//! The report's figures.

use crate::chart::{self, Bar, Frame, Line};
use crate::report::{ConfigurationReport, Report};

/// A figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its file's name.
    pub file: &'static str,
    /// SVG.
    pub svg: String,
}

/// Throughput and throughput per cost by instances (the paper's Figure 8), the components of the cost, and the effect
/// of sharing blades.
pub fn figures(report: &Report) -> Vec<Figure> {
    let frame = |title, across, up| Frame { title, across, up };
    let years = format!("USD over {} years", report.years);
    let throughput = chart::lines(
        &frame(
            "Throughput by consolidated instances (Figure 8a)",
            "instances",
            "in units of one instance on Max",
        ),
        &by_instances(report, |it| &it.throughput),
        &marks(report),
    );
    let per_cost = chart::lines(
        &frame(
            "Throughput per total cost (Figure 8b)",
            "instances",
            "for 1000 USD, in units of one instance on Max",
        ),
        &by_instances(report, |it| &it.throughput_per_kusd),
        &marks(report),
    );
    let cost = chart::bars(&frame("Cost of a server", "", &years), &bars(report));
    let sharing = chart::lines(
        &frame(
            "DM+CBPS beside Max, by how many servers share the memory blades",
            "servers in an enclosure",
            "throughput per total cost, % above Max's",
        ),
        &[sharing(report)],
        &[],
    );
    vec![
        Figure { file: "throughput.svg", svg: throughput },
        Figure { file: "throughput-per-cost.svg", svg: per_cost },
        Figure { file: "cost.svg", svg: cost },
        Figure { file: "sharing.svg", svg: sharing },
    ]
}

fn by_instances(report: &Report, values: fn(&ConfigurationReport) -> &Vec<f64>) -> Vec<Line> {
    let line = |it: &ConfigurationReport| Line {
        name: it.name.to_string(),
        points: (1..).map(f64::from).zip(values(it).iter().copied()).collect(),
    };
    report.configurations.iter().map(line).collect()
}

/// The counts at which configurations can't host more although others can, as marked in the paper.
fn marks(report: &Report) -> Vec<(usize, f64)> {
    let most = report.configurations.iter().map(|it| it.hosts).max().unwrap_or(0);
    let numbered = report.configurations.iter().enumerate();
    numbered.filter(|(_, it)| it.hosts < most).map(|(at, it)| (at, f64::from(it.hosts))).collect()
}

fn bars(report: &Report) -> Vec<Bar> {
    let bar = |it: &ConfigurationReport| {
        let mut pieces: Vec<_> =
            it.parts.iter().map(|part| (part.name.clone(), part.usd)).collect();
        pieces.push(("power and cooling".to_owned(), it.operating_usd));
        Bar { name: it.name.to_string(), pieces }
    };
    report.configurations.iter().map(bar).collect()
}

fn sharing(report: &Report) -> Line {
    let points = report.sharing.iter();
    let points = points.filter_map(|it| Some((it.blades_per_enclosure, it.gain_over_max?)));
    Line { name: "DM+CBPS".to_owned(), points: points.collect() }
}
