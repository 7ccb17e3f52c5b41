//! The report as text tables, and the sections that it shares with the HTML page.

use std::fmt::Write;

use crate::report::{Claim, ConfigurationReport, Report, Verdict, quantity};

/// A table with its title.
#[derive(Debug)]
pub(crate) struct Table {
    pub title: String,
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// How many columns are texts, from the left; the others are numbers.
    pub texts: usize,
}

/// The report as text.
pub fn text(report: &Report) -> String {
    let mut text = format!("{}\n", headline(report));
    for table in tables(report) {
        let _ = write!(text, "\n{}\n\n{}", table.title, lines(&table));
    }
    text.push_str(&contradictions(report));
    let _ = write!(text, "\nAssumptions (-o json has every input with its source)\n\n");
    for key in &report.assumptions {
        let _ = writeln!(text, "  {key}");
    }
    text
}

/// The title and parameters.
pub(crate) fn headline(report: &Report) -> String {
    format!(
        "{}\nyears: {}, servers that share an enclosure's memory blades: {}",
        report.title, report.years, report.blades_per_enclosure
    )
}

/// The tables, in the order of the report.
pub(crate) fn tables(report: &Report) -> Vec<Table> {
    let mut tables = vec![costs(report), parts(report)];
    tables.push(by_instances(
        report,
        "Throughput of so many instances, in units of one on Max (Figure 8a)",
        |it| &it.throughput,
        2,
        false,
    ));
    tables.push(by_instances(
        report,
        "Throughput for 1000 USD of total cost (Figure 8b)",
        |it| &it.throughput_per_kusd,
        4,
        true,
    ));
    tables.push(by_instances(
        report,
        "Throughput per total cost, in units of Max's",
        |it| &it.beside_max,
        3,
        false,
    ));
    tables.push(sharing(report));
    tables.push(derived(report));
    if !report.claims.is_empty() {
        tables.push(claims(report));
    }
    tables
}

fn costs(report: &Report) -> Table {
    let heads = [
        "configuration",
        "local GiB",
        "remote GiB",
        "fits",
        "hosts",
        "hardware USD",
        "power and cooling USD",
        "total USD",
    ];
    let row = |it: &ConfigurationReport| {
        vec![
            it.name.to_string(),
            format!("{}", it.local_gib),
            format!("{}", it.remote_gib),
            it.fits.to_string(),
            it.hosts.to_string(),
            usd(it.hardware_usd),
            usd(it.operating_usd),
            usd(it.total_usd),
        ]
    };
    let rows = report.configurations.iter().map(row).collect();
    Table { title: "Cost of a server".into(), heads: owned(&heads), rows, texts: 1 }
}

fn parts(report: &Report) -> Table {
    let rows = report.configurations.iter().flat_map(|it| {
        it.parts.iter().map(|part| vec![it.name.to_string(), part.name.clone(), usd(part.usd)])
    });
    let heads = ["configuration", "part", "USD"];
    Table { title: "Its hardware".into(), heads: owned(&heads), rows: rows.collect(), texts: 2 }
}

fn by_instances(
    report: &Report,
    title: &str,
    values: fn(&ConfigurationReport) -> &Vec<f64>,
    digits: usize,
    with_best: bool,
) -> Table {
    let names = report.configurations.iter().map(|it| it.name.to_string());
    let mut heads: Vec<_> = ["instances".to_owned()].into_iter().chain(names).collect();
    if with_best {
        heads.push("best".into());
    }
    let row = |at: usize| {
        let value =
            |it| values(it).get(at).map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        let mut row = vec![(at + 1).to_string()];
        row.extend(report.configurations.iter().map(value));
        if with_best {
            row.push(report.best.get(at).map_or("-".to_owned(), ToString::to_string));
        }
        row
    };
    let most = report.configurations.iter().map(|it| values(it).len()).max().unwrap_or(0);
    Table { title: title.into(), heads, rows: (0..most).map(row).collect(), texts: 1 }
}

fn sharing(report: &Report) -> Table {
    let row = |it: &crate::report::Sharing| {
        vec![
            it.blades_per_enclosure.to_string(),
            usd(it.share_usd),
            usd(it.total_usd),
            it.gain_over_max.map_or("-".to_owned(), |gain| format!("{gain:+.1} %")),
        ]
    };
    Table {
        title: "Servers that share the memory blades: DM+CBPS's share and what it gains over Max per total cost"
            .into(),
        heads: owned(&["servers", "share USD", "total USD", "over Max"]),
        rows: report.sharing.iter().map(row).collect(),
        texts: 1,
    }
}

fn derived(report: &Report) -> Table {
    let row = |it: &crate::report::Derived| {
        vec![it.name.to_owned(), it.formula.to_owned(), quantity(it.value, it.unit)]
    };
    Table {
        title: "Derived".into(),
        heads: owned(&["name", "formula", "value"]),
        rows: report.derived.iter().map(row).collect(),
        texts: 2,
    }
}

fn claims(report: &Report) -> Table {
    let row = |it: &Claim| {
        let said = format!("{}{}", relation(it), quantity(it.says, &it.unit));
        let ways = it.ways.iter().map(|way| {
            let mark = if way.agrees { "" } else { " (differs)" };
            let value = way.value.map_or("none".to_owned(), |value| quantity(value, &it.unit));
            format!("{value}{mark}")
        });
        let verdict = match it.verdict {
            Verdict::Derived => "derived",
            Verdict::DerivedAndContradicted => "derived, and contradicted",
            Verdict::Contradicted => "contradicted",
        };
        vec![it.place.clone(), said, ways.collect::<Vec<_>>().join(", "), verdict.to_owned()]
    };
    Table {
        title: "What is claimed, and what follows from the prices".into(),
        heads: owned(&["where", "says", "derived", "verdict"]),
        rows: report.claims.iter().map(row).collect(),
        texts: 4,
    }
}

fn relation(claim: &Claim) -> &'static str {
    use crate::prices::Relation::{Above, AtLeast, AtMost, Below, Equal};
    match claim.relation {
        Equal => "",
        AtMost => "at most ",
        AtLeast => "at least ",
        Below => "below ",
        Above => "above ",
    }
}

fn contradictions(report: &Report) -> String {
    if report.claims.is_empty() {
        return String::new();
    }
    let mut text = "\nContradictions\n\n".to_owned();
    for it in &report.contradictions {
        let _ = writeln!(text, "  {}: {}", it.places.join(", "), it.line);
    }
    if report.contradictions.is_empty() {
        text.push_str("  none\n");
    }
    text
}

fn usd(value: f64) -> String {
    let text = quantity(value, "USD");
    text.strip_suffix(" USD").unwrap_or(&text).to_owned()
}

fn owned(heads: &[&str]) -> Vec<String> {
    heads.iter().map(|&head| head.to_owned()).collect()
}

/// A table in columns: texts to the left, numbers to the right.
fn lines(table: &Table) -> String {
    let width = |at: usize| {
        let cells = table.rows.iter().chain([&table.heads]);
        cells.filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..table.heads.len()).map(width).collect();
    let mut text = String::new();
    for row in [&table.heads].into_iter().chain(&table.rows) {
        let mut line = String::from(" ");
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let cell = match at < table.texts {
                true => format!(" {cell:<width$} "),
                false => format!(" {cell:>width$} "),
            };
            line.push_str(&cell);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
