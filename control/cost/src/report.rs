//! The report: costs, throughput and throughput per cost of the configurations, derived numbers, and which claims they
//! support.

use serde::Serialize;

use crate::derivations;
use crate::model::Model;
use crate::prices::{ConfigurationName, Input, Prices, Relation, Statement};

/// Counts of servers in an enclosure that the report shows beside the requested one.
const ENCLOSURES: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the prices.
    pub title: String,
    /// The years that the cost covers.
    pub years: f64,
    /// Servers that share the memory blades of an enclosure.
    pub blades_per_enclosure: f64,
    /// The configurations, in the paper's order.
    pub configurations: Vec<ConfigurationReport>,
    /// For 1, 2, 3 ... instances the configuration with the most throughput per cost.
    pub best: Vec<ConfigurationName>,
    /// Numbers that follow from the prices.
    pub derived: Vec<Derived>,
    /// The file's claims, in its order.
    pub claims: Vec<Claim>,
    /// Claims that a derivation does not support; the same claim in several places counts once.
    pub contradictions: Vec<Contradiction>,
    /// The effect of sharing blades among more servers.
    pub sharing: Vec<Sharing>,
    /// Keys of inputs that are assumptions.
    pub assumptions: Vec<String>,
    /// Every number of the file.
    pub inputs: Vec<Input>,
}

/// A configuration.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigurationReport {
    /// Its name.
    pub name: ConfigurationName,
    /// Its own memory, GiB.
    pub local_gib: f64,
    /// Its memory on the blade, GiB.
    pub remote_gib: f64,
    /// Instances that fit in its memory.
    pub fits: u32,
    /// Instances that it hosts.
    pub hosts: u32,
    /// Hardware, USD.
    pub hardware_usd: f64,
    /// Power and cooling over all years, USD.
    pub operating_usd: f64,
    /// Both, USD.
    pub total_usd: f64,
    /// The hardware, part by part.
    pub parts: Vec<PartCost>,
    /// Throughput of 1, 2, 3 ... instances, in units of one instance on Max.
    pub throughput: Vec<f64>,
    /// The same for 1000 USD of total cost.
    pub throughput_per_kusd: Vec<f64>,
    /// The same in units of Max's, for the numbers of instances that Max hosts.
    pub beside_max: Vec<f64>,
}

/// A part of the hardware.
#[derive(Clone, Debug, Serialize)]
pub struct PartCost {
    /// What it is.
    pub name: String,
    /// What it costs, USD.
    pub usd: f64,
}

/// A number that follows from the prices.
#[derive(Clone, Debug, Serialize)]
pub struct Derived {
    /// Its name, for claims.
    pub name: &'static str,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// How it is derived.
    pub formula: &'static str,
}

/// Whether derived numbers support a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All derivations support it.
    Derived,
    /// Some derivations support it, others do not.
    DerivedAndContradicted,
    /// No derivation supports it.
    Contradicted,
}

/// A claim of the file.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The section of the paper.
    #[serde(rename = "where")]
    pub place: String,
    /// The sentence.
    pub sentence: String,
    /// The number in it.
    pub says: f64,
    /// Its unit.
    pub unit: String,
    pub(crate) relation: Relation,
    /// Whether it is supported.
    pub verdict: Verdict,
    /// Each derivation.
    pub ways: Vec<Way>,
}

/// A derivation of a claim.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// The derivation's name.
    pub from: String,
    /// The derived number; none if the prices lack the inputs.
    pub value: Option<f64>,
    /// Distance to the point where it would no longer support the claim; negative if it does not support it.
    pub margin: Option<f64>,
    /// Whether it supports the claim.
    pub agrees: bool,
}

/// An unsupported claim.
#[derive(Clone, Debug, Serialize)]
pub struct Contradiction {
    /// The sections that have it.
    #[serde(rename = "where")]
    pub places: Vec<String>,
    /// One line with the claim, the derived numbers and their formulas.
    pub line: String,
}

/// The cost and gain with this many servers sharing the blades.
#[derive(Clone, Debug, Serialize)]
pub struct Sharing {
    /// Servers in an enclosure.
    pub blades_per_enclosure: f64,
    /// The cost of a server's share of the blades over all years, USD.
    pub share_usd: f64,
    /// The total cost of DM+CBPS, USD.
    pub total_usd: f64,
    /// Throughput per total cost of DM+CBPS with all instances, percent above Max's.
    pub gain_over_max: Option<f64>,
}

/// The report for these prices.
pub fn report(prices: &Prices) -> Report {
    let model = Model::new(prices, prices.blades);
    let value_of = |name: &str| (derivations::find(name)?.derive)(&model);
    let derived = derivations::ALL.iter().filter_map(|it| {
        let value = (it.derive)(&model)?;
        Some(Derived { name: it.name, value, unit: it.unit, formula: it.formula })
    });
    let claims: Vec<_> = prices.statements.iter().map(|it| claim(it, value_of)).collect();
    Report {
        title: prices.title.clone(),
        years: prices.years,
        blades_per_enclosure: prices.blades,
        configurations: ConfigurationName::ALL.map(|it| configuration(&model, it)).to_vec(),
        best: (1..=prices.consolidation.instances).map_while(|it| best(&model, it)).collect(),
        derived: derived.collect(),
        contradictions: contradictions(&claims),
        claims,
        sharing: sharing(prices),
        assumptions: assumptions(prices),
        inputs: prices.inputs.clone(),
    }
}

fn configuration(model: &Model<'_>, name: ConfigurationName) -> ConfigurationReport {
    let configuration = model.prices.configuration(name);
    let cost = model.cost(name);
    let part = |(name, usd): &(String, f64)| PartCost { name: name.clone(), usd: *usd };
    let counts = 1..=configuration.hosts();
    let per_cost = |n| model.per_cost(name, n);
    let beside_max = |n| Some(per_cost(n)? / model.per_cost(ConfigurationName::Max, n)?);
    ConfigurationReport {
        name,
        local_gib: configuration.local_gib,
        remote_gib: configuration.remote_gib,
        fits: configuration.fits(model.prices.consolidation.instance_gib),
        hosts: configuration.hosts(),
        hardware_usd: cost.hardware_usd,
        operating_usd: cost.operating_usd,
        total_usd: cost.total_usd(),
        parts: cost.parts.iter().map(part).collect(),
        throughput: configuration.throughput.clone(),
        throughput_per_kusd: counts.clone().filter_map(per_cost).collect(),
        beside_max: counts.map_while(beside_max).collect(),
    }
}

/// The configuration with the most throughput per cost; the earlier one if equal.
fn best(model: &Model<'_>, instances: u32) -> Option<ConfigurationName> {
    let hosting = ConfigurationName::ALL.into_iter();
    let hosting = hosting.filter_map(|name| Some((name, model.per_cost(name, instances)?)));
    let better = |one: (_, f64), other: (_, f64)| if other.1 > one.1 { other } else { one };
    hosting.reduce(better).map(|(name, _)| name)
}

fn claim(statement: &Statement, value_of: impl Fn(&str) -> Option<f64>) -> Claim {
    let ways: Vec<_> = statement.from.iter().map(|it| way(statement, it, value_of(it))).collect();
    let agreeing = ways.iter().filter(|way| way.agrees).count();
    let verdict = match agreeing {
        0 => Verdict::Contradicted,
        all if all == ways.len() => Verdict::Derived,
        _ => Verdict::DerivedAndContradicted,
    };
    let Statement { place, sentence, says, unit, relation, .. } = statement.clone();
    Claim { place, sentence, says, unit, relation, verdict, ways }
}

fn way(statement: &Statement, from: &str, value: Option<f64>) -> Way {
    let above = value.map(|value| value - statement.says);
    let margin = above.map(|above| match statement.relation {
        Relation::Equal => statement.within - above.abs(),
        Relation::AtMost | Relation::Below => -above,
        Relation::AtLeast | Relation::Above => above,
    });
    // Decimal numbers have only approximate binary fractions.
    let agrees = margin.is_some_and(|margin| match statement.relation {
        Relation::Below | Relation::Above => margin > 1e-9,
        _ => margin > -1e-9,
    });
    Way { from: from.to_owned(), value, margin, agrees }
}

fn contradictions(claims: &[Claim]) -> Vec<Contradiction> {
    let mut found: Vec<Contradiction> = Vec::new();
    for claim in claims.iter().filter(|claim| claim.verdict != Verdict::Derived) {
        let line = contradiction(claim);
        match found.iter_mut().find(|it| it.line == line) {
            Some(same) if same.places.contains(&claim.place) => {}
            Some(same) => same.places.push(claim.place.clone()),
            None => found.push(Contradiction { places: vec![claim.place.clone()], line }),
        }
    }
    found
}

/// One line for an unsupported claim.
fn contradiction(claim: &Claim) -> String {
    let differs = claim.ways.iter().filter(|way| !way.agrees);
    let differs = differs.map(|way| {
        let formula = derivations::find(&way.from).map_or("", |it| it.formula);
        match way.value {
            Some(value) => {
                format!("{} ({}: {formula})", quantity(value, &claim.unit), way.from)
            }
            None => format!("not derivable ({}: {formula})", way.from),
        }
    });
    let differs = differs.collect::<Vec<_>>().join(" and ");
    let relation = match claim.relation {
        Relation::Equal => "",
        Relation::AtMost => "at most ",
        Relation::AtLeast => "at least ",
        Relation::Below => "below ",
        Relation::Above => "above ",
    };
    format!("says {relation}{}, but it is {differs}", quantity(claim.says, &claim.unit))
}

/// A number with its unit, with a suitable number of digits.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    let small = unit == "USD" && value.abs() < 100.0 && value.fract() != 0.0;
    let digits = match unit {
        "%" => 1,
        _ if small => 2,
        _ => 0,
    };
    // Rounding must not produce a negative zero.
    let value = if value.abs() < 0.5 * 10f64.powi(-digits) { 0.0 } else { value };
    let text = format!("{value:.*}", digits as usize);
    let one = unit.strip_suffix('s').filter(|_| text == "1");
    format!("{text} {}", one.unwrap_or(unit))
}

fn sharing(prices: &Prices) -> Vec<Sharing> {
    let mut counts = ENCLOSURES.map(f64::from).to_vec();
    if !counts.contains(&prices.blades) {
        counts.push(prices.blades);
        counts.sort_by(f64::total_cmp);
    }
    let row = |blades: &f64| {
        let model = Model::new(prices, *blades);
        let total_usd = model.cost(ConfigurationName::DmCbps).total_usd();
        Sharing {
            blades_per_enclosure: *blades,
            share_usd: total_usd - model.cost(ConfigurationName::Base).total_usd(),
            total_usd,
            gain_over_max: derivations::gain_over_max(&model, ConfigurationName::DmCbps),
        }
    };
    counts.iter().map(row).collect()
}

fn assumptions(prices: &Prices) -> Vec<String> {
    let assumed = prices.inputs.iter().filter(|input| input.source.starts_with("assumed"));
    assumed.map(|input| input.key.clone()).collect()
}
