//! Charts as SVG: lines over counts, and stacked bars. They are readable on white and on black, and without colours.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 42.0;
const BOTTOM: f64 = 62.0;
/// Approximate number of grid lines.
const STEPS: f64 = 5.0;

/// The colours of Okabe and Ito, which colour-blind people can distinguish, and dashes.
const STYLES: [(&str, &str); 6] = [
    ("#777", ""),
    ("#e69f00", "2 3"),
    ("#d55e00", "8 3"),
    ("#0072b2", "8 3 2 3"),
    ("#009e73", "4 2"),
    ("#cc79a7", "1 2"),
];

/// A line of a chart: its name, and its points.
#[derive(Debug)]
pub(crate) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A bar of a chart: its name, and its pieces from below.
#[derive(Debug)]
pub(crate) struct Bar {
    pub name: String,
    pub pieces: Vec<(String, f64)>,
}

/// Title and axes.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub title: &'a str,
    pub across: &'a str,
    pub up: &'a str,
}

/// Lines over their points' counts, evenly spaced. `marks` are counts at which the line of that name ends.
pub(crate) fn lines(frame: &Frame<'_>, lines: &[Line], marks: &[(usize, f64)]) -> String {
    let mut counts: Vec<f64> = lines.iter().flat_map(|it| &it.points).map(|it| it.0).collect();
    counts.sort_by(f64::total_cmp);
    counts.dedup();
    let values = lines.iter().flat_map(|it| &it.points).map(|it| it.1);
    let scale = Scale::of(values);
    let room = (WIDTH - LEFT - RIGHT) / counts.len().max(1) as f64;
    let across = |count: f64| {
        let at = counts.iter().position(|it| *it >= count).unwrap_or(0);
        LEFT + room * (at as f64 + 0.5)
    };
    let mut svg = start(frame, &scale);
    for count in &counts {
        tick(&mut svg, across(*count), &count.to_string());
    }
    for (style, count) in marks {
        let (colour, _) = STYLES[style % STYLES.len()];
        let x = across(*count) + room / 2.0;
        let bottom = HEIGHT - BOTTOM;
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"{colour}\" stroke-dasharray=\"6 4\"/>"
        );
    }
    for (at, line) in lines.iter().enumerate() {
        let (colour, dashes) = STYLES[at % STYLES.len()];
        let point = |(count, value): &(f64, f64)| {
            format!("{:.1},{:.1}", across(*count), scale.height(*value))
        };
        let points = line.points.iter().map(point).collect::<Vec<_>>();
        let name = escape(&line.name);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"><title>{name}</title></polyline>",
            points.join(" ")
        );
    }
    let names: Vec<_> = lines.iter().map(|it| it.name.as_str()).collect();
    legend(&mut svg, &names);
    svg + "</svg>\n"
}

/// Bars of pieces; pieces of one name have one colour.
pub(crate) fn bars(frame: &Frame<'_>, bars: &[Bar]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in bars.iter().flat_map(|it| &it.pieces) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let scale = Scale::of(bars.iter().map(|it| it.pieces.iter().map(|piece| piece.1).sum()));
    let room = (WIDTH - LEFT - RIGHT) / bars.len().max(1) as f64;
    let mut svg = start(frame, &scale);
    for (at, bar) in bars.iter().enumerate() {
        let left = LEFT + room * (at as f64 + 0.2);
        tick(&mut svg, left + room * 0.3, &bar.name);
        let mut below = 0.0;
        for (name, value) in &bar.pieces {
            let style = names.iter().position(|it| it == name).unwrap_or(0);
            let (colour, _) = STYLES[style % STYLES.len()];
            let (foot, top) = (scale.height(below), scale.height(below + value));
            let (y, height) = (foot.min(top), (foot - top).abs());
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
                 stroke=\"#fff\" stroke-width=\".5\"><title>{}: {value:.0}</title></rect>",
                room * 0.6,
                escape(name)
            );
            below += value;
        }
    }
    legend(&mut svg, &names);
    svg + "</svg>\n"
}

/// Maps values to heights.
#[derive(Debug)]
struct Scale {
    least: f64,
    most: f64,
    step: f64,
}

impl Scale {
    /// A scale from 0, or from below if values are negative, in round steps.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) =
            values.fold((0.0_f64, 0.0_f64), |(least, most), it| (least.min(it), most.max(it)));
        let span = if most > least { most - least } else { 1.0 };
        let rough = span / STEPS;
        let power = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|it| it * power >= rough);
        let step = factor.unwrap_or(10.0) * power;
        let (least, most) = ((least / step).floor() * step, (most / step).ceil() * step);
        Self { least, most: most.max(least + step), step }
    }

    fn height(&self, value: f64) -> f64 {
        let part = (value - self.least) / (self.most - self.least);
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - part)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.most - self.least) / self.step).round() as u32;
        let (least, step) = (self.least, self.step);
        (0..=count).map(move |at| least + step * f64::from(at))
    }

    fn digits(&self) -> usize {
        (-self.step.log10().floor()).clamp(0.0, 9.0) as usize
    }
}

fn start(frame: &Frame<'_>, scale: &Scale) -> String {
    let [title, across, up] = [frame.title, frame.across, frame.up].map(escape);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\" \
         aria-label=\"{title}\" font-size=\"11\" font-family=\"system-ui, sans-serif\" fill=\"#777\">\n\
         <text x=\"4\" y=\"14\" font-weight=\"600\" font-size=\"12\">{title}</text>\n\
         <text x=\"4\" y=\"28\">{up}</text>\n"
    );
    for value in scale.ticks() {
        let y = scale.height(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#8886\" stroke-width=\".5\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.*}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            scale.digits()
        );
    }
    let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM + 30.0);
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{across}</text>");
    svg
}

fn tick(svg: &mut String, x: f64, name: &str) {
    let y = HEIGHT - BOTTOM + 15.0;
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
        escape(name)
    );
}

/// Names with their colours, in a row below.
fn legend(svg: &mut String, names: &[&str]) {
    let room = (WIDTH - LEFT - RIGHT) / names.len().max(1) as f64;
    let y = HEIGHT - 12.0;
    for (at, name) in names.iter().enumerate() {
        let (colour, dashes) = STYLES[at % STYLES.len()];
        let x = LEFT + room * at as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {y}h18\" stroke=\"{colour}\" stroke-width=\"3\" stroke-dasharray=\"{dashes}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>",
            x + 22.0,
            y + 4.0,
            escape(name)
        );
    }
}

/// A text for SVG and HTML, between tags and in quotes.
pub(crate) fn escape(text: &str) -> String {
    // XML can't represent control characters.
    let text: String = text.chars().filter(|it| !it.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
