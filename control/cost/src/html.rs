//! The report as one HTML page, with its figures.

use std::fmt::Write;

use crate::chart::escape;
use crate::figures::figures;
use crate::prices::Value;
use crate::report::Report;
use crate::text::{Table, headline, tables};

const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
.text { text-align: left; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
svg { max-width: 100%; height: auto; }
";

/// The page. It loads nothing.
pub fn page(report: &Report) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Cost report</title>\n\
         <style>{STYLE}</style>\n<h1>Cost report</h1>\n<p>{}</p>\n<div class=\"figures\">\n",
        escape(&headline(report).replace('\n', "; "))
    );
    for figure in figures(report) {
        html.push_str(&figure.svg);
    }
    html.push_str("</div>\n");
    if !report.claims.is_empty() {
        html.push_str("<h2>Contradictions</h2>\n<ul>\n");
        for it in &report.contradictions {
            let _ =
                writeln!(html, "<li>{}: {}</li>", escape(&it.places.join(", ")), escape(&it.line));
        }
        html.push_str("</ul>\n");
    }
    for table in tables(report) {
        write_table(&mut html, &table);
    }
    if !report.claims.is_empty() {
        write_table(&mut html, &sentences(report));
    }
    write_table(&mut html, &inputs(report));
    html + "</html>\n"
}

fn sentences(report: &Report) -> Table {
    let row = |it: &crate::report::Claim| vec![it.place.clone(), it.sentence.clone()];
    Table {
        title: "The claims' sentences".into(),
        heads: ["where", "sentence"].map(str::to_owned).to_vec(),
        rows: report.claims.iter().map(row).collect(),
        texts: 2,
    }
}

fn inputs(report: &Report) -> Table {
    let rows = report.inputs.iter().map(|input| {
        let value = match &input.value {
            Value::Number(number) => number.to_string(),
            Value::Numbers(numbers) => {
                numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
            }
        };
        let date = input.date.clone().unwrap_or_default();
        vec![input.key.clone(), input.source.clone(), date, value]
    });
    Table {
        title: "Inputs".into(),
        heads: ["key", "source", "date", "value"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        texts: 3,
    }
}

fn write_table(html: &mut String, table: &Table) {
    let row = |cells: &[String], tag: &str| {
        let cells = cells.iter().enumerate().map(|(at, cell)| {
            let class = if at < table.texts { " class=\"text\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let _ = write!(html, "<h2>{}</h2>\n<table>\n{}", escape(&table.title), row(&table.heads, "th"));
    for cells in &table.rows {
        html.push_str(&row(cells, "td"));
    }
    html.push_str("</table>\n");
}
