//! Prices other than the built-in files: numbers that coincide in the paper differ here.

mod common;

use common::{close, derived, json, of, set};
use proptest::prelude::*;
use serde_json::Value;
use spillway_cost::{CURRENT, PAPER, figures, read, report};

/// Subtotals that are all different, for other years and another enclosure than they cover.
fn distinct() -> String {
    let changes = [
        ("configuration.base", "throughput", "[1, 2, 3]"),
        ("configuration.base", "hardware_usd", "1000"),
        ("configuration.base", "total_usd", "1600"),
        ("configuration.cbps", "hardware_usd", "1100"),
        ("configuration.cbps", "total_usd", "1750"),
        ("configuration.max", "local_gib", "80"),
        ("configuration.max", "hardware_usd", "3000"),
        ("configuration.max", "total_usd", "4200"),
        ("configuration.dm", "local_gib", "24"),
        ("configuration.dm", "remote_gib", "48"),
        // The largest loss is not at the last count.
        ("configuration.dm", "throughput", "[1, 2, 3, 3.2, 4.93, 5.88, 6.78, 7.2]"),
        ("configuration.dm", "hardware_usd", "2000"),
        ("configuration.dm", "total_usd", "2900"),
        ("configuration.dm-cbps", "hardware_usd", "2100"),
        ("configuration.dm-cbps", "total_usd", "3100"),
        ("enclosure", "blades", "8"),
        ("subtotals", "years", "2"),
        ("subtotals", "sockets", "2"),
        ("scale-out", "servers", "3"),
        ("scale-out", "module_gib", "16"),
        ("scale-out", "local_gib", "2"),
        ("scale-out", "servers_throughput", "1.1"),
        ("scale-out", "servers_hardware_usd", "3300"),
        ("scale-out", "servers_total_usd", "5400"),
        ("scale-out", "blade_hardware_usd", "2500"),
        ("scale-out", "blade_total_usd", "3600"),
    ];
    changes
        .into_iter()
        .fold(PAPER.to_owned(), |text, (section, key, to)| set(&text, section, key, to))
}

// By hand: power and cooling times 3/2; three quarters of a share once and a quarter of it twice: 1.25.
const BASE: f64 = 1000.0 + 900.0;
const MAX: f64 = 3000.0 + 1800.0;
const DM: f64 = 2250.0 + 1462.5;
const DM_CBPS: f64 = 2375.0 + 1650.0;
const SERVERS: f64 = 3300.0 + 3150.0;
const WITH_BLADE: f64 = 2850.0 + 1800.0;

#[test]
fn what_follows_when_no_two_numbers_are_the_same() {
    let report = json(&distinct()).expect("a sound file");
    for (name, total) in
        [("base", BASE), ("cbps", 2075.0), ("max", MAX), ("dm", DM), ("dm-cbps", DM_CBPS)]
    {
        assert!(close(of(&report, name, "total_usd"), total), "{name}");
    }
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let expected = [
        ("base.fits", 4.0),
        ("cbps.extra_fits", 2.0),
        ("cbps.holds_gib", 32.0 / 0.6),
        ("dm-cbps.holds_gib", 64.0 / 0.6),
        ("max.fits", 10.0),
        ("max.gib", 80.0),
        ("dm.fits", 9.0),
        ("dm.local_part", 100.0 / 3.0),
        ("dm.remote_gib", 48.0),
        ("base.hosted_gib", 24.0),
        ("server.sockets", 2.0),
        ("dm.loss", 20.0),
        ("dm-cbps.loss", 1.25),
        ("dm-cbps.ahead_of_dm_at_half", percent(3.96 / 3.2)),
        ("base.total", BASE),
        ("dm.hardware", 2250.0),
        ("dm.total", DM),
        ("dm-cbps.saving_hardware", 100.0 * (1.0 - 2375.0 / 3000.0)),
        ("dm-cbps.saving_total", 100.0 * (1.0 - DM_CBPS / MAX)),
        ("max.usd_per_gib", 2000.0 / 48.0),
        ("share.usd_per_gib", 1250.0 / 48.0),
        ("share.hardware", 1250.0),
        ("share.operating", 562.5),
        ("share.total", DM - BASE),
        ("share.break_even", 0.9875 * MAX - BASE),
        ("base.best_up_to", 3.0),
        ("base.peak_behind", 4.0),
        ("cbps.gain_over_base", percent(0.99 * BASE / 2075.0)),
        ("dm.gain_over_max", percent(0.9 * MAX / DM)),
        ("dm-cbps.gain_over_max", percent(0.9875 * MAX / DM_CBPS)),
        ("dm-cbps.gain_over_max_by_hardware", percent(0.9875 * 3000.0 / 2375.0)),
        ("dm-cbps.gain_over_max_at_equal_throughput", percent(MAX / DM_CBPS)),
        ("dm-cbps.gain_over_max_at_loss", percent(0.95 * MAX / DM_CBPS)),
        ("dm-cbps.gain_over_max_at_scale_out_price", percent(0.9875 * MAX / WITH_BLADE)),
        ("scale-out.server_gib", 64.0),
        ("scale-out.measured_gib", 7.0),
        ("scale-out.remote_gib_as_measured", 60.0),
        ("base.servers_hardware", 3000.0),
        ("base.servers_total", 3.0 * BASE),
        ("scale-out.server_hardware", 1100.0),
        ("scale-out.server_total", 2150.0),
        ("scale-out.blade_hardware", 2850.0),
        ("scale-out.blade_total", WITH_BLADE),
        ("scale-out.share_hardware", 1750.0),
        ("scale-out.share_operating", 750.0),
        ("scale-out.share_operating_beside_base", 900.0),
        ("scale-out.gain", percent(SERVERS / WITH_BLADE)),
        ("scale-out.gain_at_measured_throughput", percent(0.95 / 1.1 * SERVERS / WITH_BLADE)),
        ("scale-out.gain_by_hardware", percent(3300.0 / 2850.0)),
        ("scale-out.gain_if_servers_add_throughput", percent(0.95 / 3.0 * SERVERS / WITH_BLADE)),
        ("scale-out.gain_at_consolidation_price", percent(3.0 * BASE / DM)),
    ];
    for (name, value) in expected {
        let found = derived(&report, name);
        assert!(close(found, value), "{name} is {found}, by hand {value}");
    }
}

#[test]
fn of_equals_the_first_configuration_is_best() {
    let text = set(PAPER, "configuration.cbps", "throughput", "[1, 2, 3, 4, 4.95]");
    let report = json(&text).expect("a sound file");
    assert_eq!(report["best"][3], "base");
    assert_eq!(derived(&report, "base.best_up_to"), 4.0, "as good is not better");
}

#[test]
fn parts_count_as_often_as_a_server_has_them() {
    let before = json(CURRENT).expect("a sound file");
    let after = json(&set(CURRENT, "part", "count", "3")).expect("a sound file");
    let more = of(&after, "max", "hardware_usd") - of(&before, "max", "hardware_usd");
    assert!(close(more, 2.0 * 6250.0), "{more}");
    let more = of(&after, "max", "operating_usd") - of(&before, "max", "operating_usd");
    assert!(close(more, 1.0 * 8760.0 * 3.0 * 1.54 * 0.146), "{more}");
}

/// The verdict on the claim that the derived 32 GiB is `relation` `says`.
fn agrees(relation: &str, says: f64) -> bool {
    let claim = format!(
        "{CURRENT}\n[[claim]]\nwhere = \"here\"\nsentence = \"so it is\"\nsays = {says}\nunit = \"GiB\"\n{relation}\nfrom = [\"dm.remote_gib\"]\n"
    );
    let report = json(&claim).expect("a sound file");
    let agrees = report["claims"][0]["ways"][0]["agrees"] == true;
    assert_eq!(report["claims"][0]["verdict"] == "derived", agrees);
    assert_eq!(report["contradictions"] == Value::Array(vec![]), agrees);
    agrees
}

#[test]
fn claims_agree_up_to_their_bound() {
    for (relation, below, at, above) in [
        ("within = 0", false, true, false),
        ("is = \"at most\"", false, true, true),
        ("is = \"at least\"", true, true, false),
        ("is = \"below\"", false, false, true),
        ("is = \"above\"", true, false, false),
        ("within = 1", true, true, true),
    ] {
        for (says, wanted) in [(1023.0, below), (1024.0, at), (1025.0, above)] {
            assert_eq!(agrees(relation, says), wanted, "{relation} {says}");
        }
    }
    assert!(!agrees("within = 1", 1022.9) && !agrees("within = 1", 1025.1));
}

#[test]
fn a_claim_of_what_can_not_be_derived_is_contradicted() {
    let few = set(PAPER, "configuration.dm-cbps", "throughput", "[1, 2]");
    let report = json(&few).expect("a sound file");
    let claims = report["claims"].as_array().expect("claims");
    let seventeen = claims.iter().find(|it| it["says"] == 17.0).expect("the claim");
    assert_eq!(seventeen["verdict"], "contradicted");
    assert_eq!(seventeen["ways"][0]["value"], Value::Null);
}

#[test]
fn dates_are_those_of_the_sections_source() {
    let prices = read("current", CURRENT).expect("a sound file");
    let date = |key: &str| {
        let input = prices.inputs().iter().find(|it| it.key == key).expect("the input");
        input.date.clone()
    };
    assert_eq!(date("energy.usd_per_kwh").as_deref(), Some("2026-04-26"));
    assert_eq!(date("module.dense.price_usd").as_deref(), Some("2025-11"));
    for own in ["energy.pue", "part[1].power_w", "module.dense.power_w", "blade.price_usd"] {
        assert_eq!(date(own), None, "{own}");
    }
}

#[test]
fn lines_of_lists_over_several_lines() {
    let list = "[\n  1,\n  2,\n  -3,\n]";
    let text = set(PAPER, "configuration.base", "throughput", list);
    let first = 1 + text[..text.find("[\n  1,").expect("the list")].matches('\n').count();
    let error = read("mine.toml", &text).expect_err("a negative number").to_string();
    assert!(error.starts_with(&format!("mine.toml line {}: ", first + 3)), "{first} {error}");
    let error =
        read("mine.toml", &text.replace("-3", "3, 4, 5")).expect_err("too many").to_string();
    assert!(error.starts_with(&format!("mine.toml line {first}: ")), "{first} {error}");
}

/// A chart's scale: computes the height of a value, from the chart's lines and their numbers.
fn scale(svg: &str) -> impl Fn(f64) -> f64 {
    let document = roxmltree::Document::parse(svg).expect("an SVG document");
    let ticks: Vec<(f64, f64)> = document
        .descendants()
        .filter(|it| it.attribute("text-anchor") == Some("end"))
        .map(|it| {
            let value: f64 = it.text().expect("a number").parse().expect("a number");
            (value, it.attribute("y").expect("y").parse::<f64>().expect("a number") - 4.0)
        })
        .collect();
    let ((low, foot), (high, top)) = (ticks[0], ticks[ticks.len() - 1]);
    for (value, y) in &ticks {
        assert!((foot + (top - foot) * (value - low) / (high - low) - y).abs() < 0.2);
    }
    assert!(top < foot && ticks.len() > 3);
    assert!((40.0..60.0).contains(&top) && (230.0..240.0).contains(&foot), "{top} {foot}");
    move |value| foot + (top - foot) * (value - low) / (high - low)
}

#[test]
fn points_are_where_the_scale_says() {
    for text in [PAPER, CURRENT, &distinct()] {
        let report = report(&read("prices", text).expect("a sound file"));
        for (figure, values) in figures(&report).iter().zip([
            report.configurations[2].throughput.clone(),
            report.configurations[2].throughput_per_kusd.clone(),
            Vec::new(),
            report.sharing.iter().filter_map(|it| it.gain_over_max).collect(),
        ]) {
            let height = scale(&figure.svg);
            let document = roxmltree::Document::parse(&figure.svg).expect("an SVG document");
            let lines: Vec<_> =
                document.descendants().filter(|it| it.tag_name().name() == "polyline").collect();
            let Some(line) = lines.get(2).or(lines.first()) else { continue };
            let points: Vec<_> = line.attribute("points").expect("points").split(' ').collect();
            assert_eq!(points.len(), values.len(), "{}", figure.file);
            for (point, value) in points.iter().zip(values) {
                let y: f64 =
                    point.split_once(',').expect("two numbers").1.parse().expect("a number");
                assert!((y - height(value)).abs() < 0.3, "{} {value}: {y}", figure.file);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // The cost includes whole blades: a partly filled blade counts in full.
    #[test]
    fn blades_are_bought_whole(blades in 1u32..64, capacity_gib in 300u32..5000) {
        let text = set(CURRENT, "blade", "capacity_gib", &capacity_gib.to_string());
        let mut prices = read("mine", &text).expect("a sound file");
        prices.set_blades_per_enclosure(blades);
        let report = serde_json::to_value(report(&prices)).expect("JSON");
        let bought = (1u32..).find(|it| it * capacity_gib >= blades * 1024).expect("enough");
        let share = f64::from(bought) / f64::from(blades) * 6250.0 + 16.0 * 700.0;
        prop_assert!(close(derived(&report, "share.hardware"), share));
        let filled = f64::from(blades * 1024) / f64::from(bought * capacity_gib);
        prop_assert!(close(derived(&report, "blade.filled"), 100.0 * filled));
    }

    // As many instances fit as the memory was made for, whatever the fractions.
    #[test]
    fn instances_fit_exactly(count in 4u32..40, shared in 1u32..95, instance_gib in 1u32..97) {
        let shared = f64::from(shared) / 100.0;
        let memory_gib = f64::from(count) * f64::from(instance_gib) * (1.0 - shared);
        let mut text = set(PAPER, "configuration.cbps", "shared", &shared.to_string());
        text = set(&text, "configuration.cbps", "throughput", "[1]");
        text = set(&text, "configuration.cbps", "local_gib", &memory_gib.to_string());
        for (section, gib) in [("base", 4), ("max", 8), ("dm", 8), ("dm-cbps", 8)] {
            text = set(&text, &format!("configuration.{section}"), "local_gib", &(gib * instance_gib).to_string());
        }
        text = set(&text, "consolidation", "instance_gib", &instance_gib.to_string());
        let report = json(&text).expect("a sound file");
        prop_assert_eq!(of(&report, "cbps", "fits"), f64::from(count));
    }
}
