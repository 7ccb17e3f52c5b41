//! The figures and the page are well formed, and show the numbers of the report.

use roxmltree::{Document, Node};
use spillway_cost::{CURRENT, PAPER, figures, page, read, report, text};

fn lines(svg: &str) -> Vec<(String, Vec<(f64, f64)>)> {
    let document = Document::parse(svg).expect("an SVG document");
    let lines = document
        .descendants()
        .filter(|it| it.has_tag_name(("http://www.w3.org/2000/svg", "polyline")));
    let line = |node: Node<'_, '_>| {
        let name = node.descendants().find_map(|it| it.text()).expect("a name").to_owned();
        let points = node.attribute("points").expect("points").split(' ').map(|point| {
            let (x, y) = point.split_once(',').expect("two numbers");
            (x.parse().expect("a number"), y.parse().expect("a number"))
        });
        (name, points.collect())
    };
    lines.map(line).collect()
}

#[test]
fn lines_have_the_reports_points_in_proportion() {
    for text in [PAPER, CURRENT] {
        let report = report(&read("prices", text).expect("a sound file"));
        let figures = figures(&report);
        let files: Vec<_> = figures.iter().map(|it| it.file).collect();
        assert_eq!(files, ["throughput.svg", "throughput-per-cost.svg", "cost.svg", "sharing.svg"]);
        for (figure, values) in [(0, 0), (1, 1)] {
            let lines = lines(&figures[figure].svg);
            assert_eq!(lines.len(), 5);
            let pick = |at: usize| match values {
                0 => &report.configurations[at].throughput,
                _ => &report.configurations[at].throughput_per_kusd,
            };
            // The scale, from two points of Max's line.
            let max = &lines[2].1;
            let unit = (max[0].1 - max[7].1) / (pick(2)[7] - pick(2)[0]);
            let zero = max[0].1 + unit * pick(2)[0];
            assert!(unit > 0.0, "more is higher");
            for (at, (name, points)) in lines.iter().enumerate() {
                assert_eq!(*name, report.configurations[at].name.to_string());
                assert_eq!(points.len(), pick(at).len());
                for ((x, y), value) in points.iter().zip(pick(at)) {
                    assert!((zero - unit * value - y).abs() < 0.2, "{name} {value}");
                    assert!((62.0..640.0).contains(x) && (34.0..=238.1).contains(y), "{x} {y}");
                }
                assert!(points.windows(2).all(|pair| pair[1].0 > pair[0].0));
            }
        }
        let sharing = &lines(&figures[3].svg)[0].1;
        assert_eq!(sharing.len(), report.sharing.len());
    }
}

#[test]
fn marks_are_where_base_and_cbps_host_no_more() {
    let report = report(&read("paper", PAPER).expect("a sound file"));
    let svg = &figures(&report)[0].svg;
    let document = Document::parse(svg).expect("an SVG document");
    let marks = document.descendants().filter(|it| {
        it.attribute("d").is_some_and(|path| path.contains('V'))
            && it.attribute("stroke-dasharray").is_some()
    });
    let marks: Vec<_> = marks.filter_map(|it| it.attribute("d")).collect();
    let lines = lines(svg);
    let right_of = |line: usize, path: &str| {
        let x: f64 = path[1..].split(' ').next().expect("x").parse().expect("a number");
        let (last, next) =
            (lines[line].1.last().expect("a point").0, lines[2].1[lines[line].1.len()].0);
        last < x && x < next
    };
    assert_eq!(marks.len(), 2, "{marks:?}");
    assert!(right_of(0, marks[0]) && right_of(1, marks[1]));
}

#[test]
fn bars_are_as_high_as_their_costs() {
    for text in [PAPER, CURRENT] {
        let report = report(&read("prices", text).expect("a sound file"));
        let svg = &figures(&report)[2].svg;
        let document = Document::parse(svg).expect("an SVG document");
        let bars = document
            .descendants()
            .filter(|it| it.has_tag_name(("http://www.w3.org/2000/svg", "rect")));
        let heights: Vec<f64> = bars
            .map(|it| it.attribute("height").expect("a height").parse().expect("a number"))
            .collect();
        let costs: Vec<f64> = report
            .configurations
            .iter()
            .flat_map(|it| it.parts.iter().map(|part| part.usd).chain([it.operating_usd]))
            .collect();
        assert_eq!(heights.len(), costs.len());
        let unit = heights[0] / costs[0];
        for (height, cost) in heights.iter().zip(&costs) {
            assert!((height - unit * cost).abs() < 0.2, "{height} {cost}");
        }
    }
}

#[test]
fn the_page_has_figures_tables_sentences_and_sources() {
    let changed = PAPER.replacen("title = \"System", "title = \"<Sys&tem", 1);
    let changed = changed.replacen("local_gib = \"Base is", "local_gib = \"<b>Base & is", 1);
    let report = report(&read("paper", &changed).expect("a sound file"));
    let page = page(&report);
    assert!(page.contains("&lt;Sys&amp;tem") && !page.contains("<Sys"));
    assert!(page.contains("&lt;b&gt;Base &amp; is") && !page.contains("<b>"));
    for figure in figures(&report) {
        assert!(page.contains(&figure.svg), "{}", figure.file);
    }
    for claim in &report.claims {
        assert!(page.contains(&claim.sentence.replace('&', "&amp;")), "{}", claim.sentence);
    }
    for input in &report.inputs {
        assert!(page.contains(&input.key), "{}", input.key);
    }
    for it in &report.contradictions {
        assert!(page.contains(&it.line), "{}", it.line);
    }
    assert!(!page.contains("src=") && !page.contains("@import"), "it loads something");
    let body = &page[page.find("<h1>").expect("a title")..page.find("</html>").expect("an end")];
    Document::parse(&format!("<body>{body}</body>")).expect("tags that match");
}

#[test]
fn the_text_has_figure_8_and_the_contradictions() {
    let report = report(&read("paper", PAPER).expect("a sound file"));
    let text = text(&report);
    for line in [
        "  Base                  32           0     4      4          1680                    754       2434",
        "  DM+CBPS               32          32    13      8          2222                    830       3052",
        "  8               -       -  2.2112  2.3591   2.5885  DM+CBPS",
        "  4          1.6434  1.6270  1.1056  1.3041   1.2975     Base",
        "  8              -      -  1.000  1.067    1.171",
        "  section 5  17.0 %            17.1 %, 13.5 % (differs)                    derived, and contradicted",
        "  section 1: says 25.0 %, but it is 16.0 % (dm-cbps.saving_hardware: 1 - DM+CBPS's hardware / Max's) and 15.6 % (dm-cbps.saving_total: 1 - DM+CBPS's total cost / Max's)",
        "  subtotals.blade_fixed_part",
        "  16             618       3052   +17.1 %",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(text.lines().all(|line| line == line.trim_end()));
}
