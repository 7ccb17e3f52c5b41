//! The numbers of the paper's cost sections: each is an input, derived, or listed as a contradiction.

mod common;

use common::{close, derived, json, of};
use spillway_cost::{CURRENT, PAPER, Value};

/// Derivations from the paper's numbers, computed by hand.
const DERIVED: [(&str, f64); 53] = [
    ("configurations", 5.0),
    ("base.fits", 4.0),
    ("cbps.extra_fits", 2.0),
    ("cbps.holds_gib", 32.0 / 0.6),
    ("dm-cbps.holds_gib", 64.0 / 0.6),
    ("max.fits", 8.0),
    ("max.gib", 64.0),
    ("dm.fits", 8.0),
    ("dm.local_part", 50.0),
    ("dm.remote_gib", 32.0),
    ("base.hosted_gib", 32.0),
    ("server.sockets", 1.0),
    ("dm.loss", 10.0),
    ("dm-cbps.loss", 100.0 * (1.0 - 7.9 / 8.0)),
    ("dm-cbps.ahead_of_dm_at_half", 100.0 * (3.96 / 3.98 - 1.0)),
    ("dm-cbps.ahead_of_dm", 100.0 * (7.9 / 7.2 - 1.0)),
    ("base.total", 2434.0),
    ("dm.hardware", 2222.0),
    ("dm.total", 3052.0),
    ("dm-cbps.saving_hardware", 100.0 * 424.0 / 2646.0),
    ("dm-cbps.saving_total", 100.0 * 566.0 / 3618.0),
    ("max.usd_per_gib", 966.0 / 32.0),
    ("share.usd_per_gib", 542.0 / 32.0),
    ("share.hardware", 542.0),
    ("share.operating", 76.0),
    ("share.total", 618.0),
    ("share.break_even", 7.9 / 8.0 * 3618.0 - 2434.0),
    ("base.best_up_to", 4.0),
    ("base.peak_behind", 4.0),
    ("cbps.gain_over_base", -1.0),
    ("dm.gain_over_max", 100.0 * (0.9 * 3618.0 / 3052.0 - 1.0)),
    ("dm-cbps.gain_over_max", 100.0 * (0.9875 * 3618.0 / 3052.0 - 1.0)),
    ("dm-cbps.gain_over_max_by_hardware", 100.0 * (0.9875 * 2646.0 / 2222.0 - 1.0)),
    ("dm-cbps.gain_over_max_at_equal_throughput", 100.0 * (3618.0 / 3052.0 - 1.0)),
    ("dm-cbps.gain_over_max_at_loss", 100.0 * (0.95 * 3618.0 / 3052.0 - 1.0)),
    ("dm-cbps.gain_over_max_at_scale_out_price", 100.0 * (0.9875 * 3618.0 / 3148.0 - 1.0)),
    ("scale-out.server_gib", 32.0),
    ("scale-out.measured_gib", 6.0),
    ("scale-out.remote_gib_as_measured", 160.0),
    ("base.servers_hardware", 3360.0),
    ("base.servers_total", 4868.0),
    ("scale-out.server_hardware", 1680.0),
    ("scale-out.server_total", 2384.0),
    ("scale-out.blade_hardware", 2410.0),
    ("scale-out.blade_total", 3148.0),
    ("scale-out.share_hardware", 730.0),
    ("scale-out.share_operating", 34.0),
    ("scale-out.share_operating_beside_base", -16.0),
    ("scale-out.gain", 100.0 * (4768.0 / 3148.0 - 1.0)),
    ("scale-out.gain_at_measured_throughput", 100.0 * (0.95 * 4768.0 / 3148.0 - 1.0)),
    ("scale-out.gain_by_hardware", 100.0 * (3360.0 / 2410.0 - 1.0)),
    ("scale-out.gain_if_servers_add_throughput", 100.0 * (0.475 * 4768.0 / 3148.0 - 1.0)),
    ("scale-out.gain_at_consolidation_price", 100.0 * (4868.0 / 3052.0 - 1.0)),
];

/// The role of a number of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Made {
    /// Taken as an input.
    Input,
    /// Derived from other numbers.
    Derived,
    /// One derivation confirms it, another does not.
    Both,
    /// Not confirmed by any derivation.
    Contradicted,
}
use Made::{Both, Contradicted, Derived, Input};

/// The numbers of the paper's cost sections, with words of their sentences: the abstract and section 1 as far as they
/// are about cost, and sections 5 and 6 from the evaluation of cost on.
const NUMBERS: [(&str, f64, Made); 45] = [
    ("can provide a 50% improvement", 50.0, Both),
    ("within 5% of a system", 5.0, Derived),
    ("within 5% of a system", 0.05, Input),
    ("at 25% lower cost", 25.0, Contradicted),
    ("showing a 50% improvement", 50.0, Both),
    ("8 quad-core AMD Opteron", 8.0, Contradicted),
    ("256 GB of total RAM", 256.0, Contradicted),
    ("8 GB address space", 8.0, Input),
    ("the 3-year total cost", 3.0, Input),
    ("VMs from 1 to 8", 8.0, Input),
    ("five server configurations", 5.0, Derived),
    ("host all 8 VMs", 8.0, Derived),
    ("sufficient for only 4 VMs", 4.0, Derived),
    ("only 4 VMs (32 GB)", 32.0, Derived),
    ("only 4 VMs (32 GB)", 32.0, Input),
    ("half of the RAM (32 GB) is local", 50.0, Derived),
    ("half of the RAM (32 GB) is local", 32.0, Input),
    ("only able to host 4 VMs", 4.0, Derived),
    ("approximately 40%", 0.4, Input),
    ("allowing one additional VM", 1.0, Contradicted),
    ("within 10% of the Max", 10.0, Derived),
    ("at 4 VMs compared to DM", 0.0, Derived),
    ("better scaling at higher VMs", 0.0, Derived),
    ("as the 40% memory", 0.4, Input),
    ("a server cost of $1680", 1680.0, Input),
    ("a server cost of $1680", 1680.0, Derived),
    ("3-year TCO of $2434", 2434.0, Input),
    ("3-year TCO of $2434", 2434.0, Contradicted),
    ("has a $2646 cost", 2646.0, Input),
    ("($3618 3-year", 3618.0, Input),
    ("a $2222 cost", 2222.0, Contradicted),
    ("($3052 3-year", 3052.0, Contradicted),
    ("best perf/$ for 1-4 VMs", 4.0, Derived),
    ("as high peak perf/$", 4.0, Derived),
    ("up to 17% perf/$", 17.0, Both),
    ("at a 50% improvement", 50.0, Both),
    ("using 6 GB local memory", 6.0, Derived),
    ("1 GB local memory and 5 GB", 5.0, Input),
    ("achieves 95% of the peak", 0.95, Input),
    ("with 4x 8GB DRAM", 4.0, Input),
    ("addition of 32GB remote", 32.0, Both),
    ("compute blades is $3360", 3360.0, Derived),
    ("and $2410 for", 2410.0, Contradicted),
    ("is $4768, whereas", 4768.0, Contradicted),
    ("is $3148, reflecting", 3148.0, Contradicted),
];

#[test]
fn what_follows_from_the_papers_numbers() {
    let report = json(PAPER).expect("a sound file");
    for (name, value) in DERIVED {
        let found = derived(&report, name);
        assert!(close(found, value), "{name} is {found}, by hand {value}");
    }
    assert_eq!(report["derived"].as_array().map(Vec::len), Some(DERIVED.len()));
}

#[test]
fn each_number_is_an_input_or_derived_or_a_contradiction() {
    let prices = spillway_cost::read("paper", PAPER).expect("a sound file");
    let report = spillway_cost::report(&prices);
    for (words, number, made) in NUMBERS {
        if made == Input {
            let same = |value: &Value| match value {
                Value::Number(value) => *value == number,
                Value::Numbers(_) => false,
            };
            let found =
                prices.inputs().iter().any(|it| it.source.contains(words) && same(&it.value));
            assert!(found, "{number} of '{words}' is no input");
            continue;
        }
        let is_it = |it: &&spillway_cost::Claim| it.sentence.contains(words) && it.says == number;
        let claims: Vec<_> = report.claims.iter().filter(is_it).collect();
        assert!(!claims.is_empty(), "{number} of '{words}' is no claim");
        // For a number that is also compared with bounds, the worst verdict counts.
        let worst = claims.iter().map(|it| match it.verdict {
            spillway_cost::Verdict::Derived => 0,
            spillway_cost::Verdict::DerivedAndContradicted => 1,
            spillway_cost::Verdict::Contradicted => 2,
        });
        let made_of = [Derived, Both, Contradicted][worst.max().expect("a claim")];
        assert_eq!(made_of, made, "{number} of '{words}'");
    }
}

/// Numbers in quoted sentences that are not about cost or size, by the word that contains them.
const ASIDE: [&str; 3] = ["6128HE", "10GbE", "1-4"];

#[test]
fn no_number_of_a_quoted_sentence_is_left_out() {
    let prices = spillway_cost::read("paper", PAPER).expect("a sound file");
    let report = spillway_cost::report(&prices);
    let mut quoted: Vec<&str> = report.claims.iter().map(|it| it.sentence.as_str()).collect();
    let sources = prices.inputs().iter().map(|it| it.source.as_str());
    quoted.extend(sources.filter(|it| !it.starts_with("assumed")));
    let mut values: Vec<f64> = report.claims.iter().map(|it| it.says).collect();
    for input in prices.inputs() {
        match &input.value {
            Value::Number(value) => values.push(*value),
            Value::Numbers(them) => values.extend(them),
        }
    }
    let mut seen = 0;
    for sentence in quoted {
        for word in
            sentence.split_whitespace().filter(|word| !ASIDE.iter().any(|it| word.contains(it)))
        {
            let digits: String =
                word.chars().filter(|it| it.is_ascii_digit() || *it == '.').collect();
            let Ok(number) = digits.trim_matches('.').parse::<f64>() else { continue };
            seen += 1;
            let part = number / 100.0;
            assert!(values.iter().any(|it| *it == number || *it == part), "{word} of '{sentence}'");
        }
    }
    assert!(seen > 80, "{seen}");
}

#[test]
fn the_contradictions_are_these() {
    let report = json(PAPER).expect("a sound file");
    let lines: Vec<_> = report["contradictions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["line"].as_str().expect("a line"))
        .collect();
    let says = [
        "50.0 %",
        "25.0 %",
        "8 sockets",
        "256 GiB",
        "1 instance,",
        "2434 USD",
        "2222 USD",
        "3052 USD",
        "17.0 %",
        "32 GiB",
        "2410 USD",
        "4768 USD",
        "3148 USD",
        "50.0 %",
    ];
    assert_eq!(lines.len(), says.len(), "{lines:#?}");
    for (line, says) in lines.iter().zip(says) {
        assert!(line.starts_with(&format!("says {says}")), "{line}");
    }
    assert!(lines[0].contains("but it is 43.9 %") && lines[0].contains("39.4 %"), "{}", lines[0]);
    assert!(!lines[0].contains("51.5"), "what agrees is no contradiction: {}", lines[0]);
    let places = &report["contradictions"][0]["where"];
    assert_eq!(*places, serde_json::json!(["abstract", "section 1", "section 6"]));
}

#[test]
fn figure_8_of_the_paper() {
    let report = json(PAPER).expect("a sound file");
    let best: Vec<_> =
        report["best"].as_array().expect("a list").iter().map(|it| it.as_str()).collect();
    let expected = ["base", "base", "base", "base", "cbps", "dm-cbps", "dm-cbps", "dm-cbps"];
    assert_eq!(best, expected.map(Some));
    for (name, hosts, fits, at_most) in [
        ("base", 4, 4, 4.0 / 2.434),
        ("cbps", 5, 6, 4.95 / 2.434),
        ("max", 8, 8, 8.0 / 3.618),
        ("dm", 8, 8, 7.2 / 3.052),
        ("dm-cbps", 8, 13, 7.9 / 3.052),
    ] {
        assert_eq!(of(&report, name, "hosts"), f64::from(hosts), "{name}");
        assert_eq!(of(&report, name, "fits"), f64::from(fits), "{name}");
        let all = report["configurations"].as_array().expect("configurations");
        let own = all.iter().find(|it| it["name"] == name).expect("the configuration");
        let last = own["throughput_per_kusd"][hosts as usize - 1].as_f64().expect("a number");
        assert!(close(last, at_most), "{name}: {last}");
        let beside = own["beside_max"][hosts as usize - 1].as_f64().expect("a number");
        let max = f64::from(hosts) / 3.618;
        assert!(close(beside, last / max), "{name}: {beside}");
        let parts = own["parts"]
            .as_array()
            .expect("parts")
            .iter()
            .map(|it| it["usd"].as_f64().expect("USD"));
        assert!(close(parts.sum(), of(&report, name, "hardware_usd")), "{name}");
    }
}

#[test]
fn shares_of_a_blade_and_years_scale() {
    let mut prices = spillway_cost::read("paper", PAPER).expect("a sound file");
    prices.set_blades_per_enclosure(4);
    prices.set_years(6);
    let report = serde_json::to_value(spillway_cost::report(&prices)).expect("JSON");
    // A quarter of the share is fixed. A quarter of the servers share it, so the share costs 7/4.
    assert!(close(of(&report, "dm", "hardware_usd"), 1680.0 + 542.0 * 1.75));
    assert!(close(of(&report, "dm", "operating_usd"), 2.0 * (754.0 + 76.0 * 1.75)));
    assert!(close(of(&report, "base", "total_usd"), 1680.0 + 2.0 * 754.0));
    assert!(close(derived(&report, "scale-out.share_hardware"), 730.0 * 1.75));
    assert!(close(derived(&report, "scale-out.share_operating"), 2.0 * 34.0 * 1.75));
}

#[test]
fn what_components_cost() {
    let report = json(CURRENT).expect("a sound file");
    let years_usd = |power_w: f64| power_w / 1000.0 * 8760.0 * 3.0 * 1.54 * 0.146;
    for (name, hardware, power_w) in [
        ("base", 6250.0 + 16.0 * 700.0, 500.0 + 16.0 * 5.0),
        ("max", 6250.0 + 16.0 * 2400.0, 500.0 + 16.0 * 10.0),
        // Sixteen servers fill eight blades.
        ("dm", 6250.0 + 32.0 * 700.0 + 6250.0 / 2.0, 500.0 + 32.0 * 5.0 + 300.0 / 2.0),
    ] {
        assert!(close(of(&report, name, "hardware_usd"), hardware), "{name}");
        assert!(close(of(&report, name, "operating_usd"), years_usd(power_w)), "{name}");
        assert!(close(of(&report, name, "total_usd"), hardware + years_usd(power_w)), "{name}");
    }
    // One server alone fills half of a blade and pays for the whole blade.
    let alone = report["sharing"][0]["share_usd"].as_f64().expect("USD");
    assert!(close(alone, 6250.0 + 16.0 * 700.0 + years_usd(300.0 + 80.0)), "{alone}");
    assert_eq!(derived(&report, "scale-out.server_hardware"), 17450.0);
    let base = of(&report, "base", "total_usd");
    assert!(close(derived(&report, "scale-out.server_total"), base), "power of each server");
    assert_eq!(derived(&report, "blade.filled"), 100.0);
    assert!(close(derived(&report, "base.servers_hardware"), 34900.0));
    let names = report["derived"].as_array().expect("a list").iter().map(|it| it["name"].as_str());
    assert!(
        !names.into_iter().any(|it| it == Some("server.sockets")),
        "components have no sockets"
    );
}
