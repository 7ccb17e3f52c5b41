//! Every input matters: a change of any number in a price file changes the report, in the right direction.

mod common;

use common::{FILES, Number, derived, numbers, of, outcome, with};
use proptest::prelude::*;
use serde_json::Value;
use spillway_cost::CURRENT;

const NAMES: [&str; 5] = ["base", "cbps", "max", "dm", "dm-cbps"];

/// Other values for a number; for a zero, non-zero values.
fn others(number: &Number) -> Vec<f64> {
    match number.value {
        0.0 => vec![0.5, 1.0],
        value => [2.0, 1.5, 0.5].map(|factor| value * factor).to_vec(),
    }
}

#[test]
fn each_number_of_a_file_changes_what_follows() {
    for (file, text) in FILES {
        let before = outcome(text).expect("a sound file");
        let all = numbers(text);
        assert!(all.len() > 60, "{file} has {} numbers", all.len());
        for number in all {
            let changed = others(&number).into_iter().map(|it| outcome(&with(text, &number, it)));
            let changed: Vec<_> = changed.flatten().collect();
            assert!(!changed.is_empty(), "{file}: no other value for {number:?}");
            for after in changed {
                assert_ne!(before, after, "{file}: {number:?} counts for nothing");
            }
        }
    }
}

#[test]
fn each_number_of_a_file_is_an_input_with_a_source_or_part_of_a_claim() {
    for (file, text) in FILES {
        let prices = spillway_cost::read(file, text).expect("a sound file");
        for number in numbers(text).iter().filter(|it| it.section != "claim") {
            let section = number.section.replace("part", "part[1]");
            let key = format!("{section}.{}", number.key);
            let key = key.trim_start_matches('.');
            let input = prices.inputs().iter().find(|it| it.key == key);
            let input = input.unwrap_or_else(|| panic!("{file}: {key} is no input"));
            assert!(input.source.len() > 10, "{file}: {key} has the source {}", input.source);
        }
    }
}

/// The components' prices with one number changed by a factor.
fn scaled(section: &str, key: &str, factor: f64) -> Value {
    let all = numbers(CURRENT);
    let number = all.iter().find(|it| it.section == section && it.key == key).expect("a number");
    outcome(&with(CURRENT, number, number.value * factor)).expect("a sound file")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_other_value_changes_what_follows(
        file in 0..2usize, which in any::<prop::sample::Index>(), factor in 0.2f64..4.0,
    ) {
        let (_, text) = FILES[file];
        let all = numbers(text);
        let number = which.get(&all);
        prop_assume!(number.value != 0.0);
        prop_assume!((factor - 1.0).abs() > 1e-3);
        if let Ok(after) = outcome(&with(text, number, number.value * factor)) {
            prop_assert_ne!(outcome(text).expect("a sound file"), after, "{:?}", number);
        }
    }

    #[test]
    fn what_costs_more_makes_dearer_who_has_it_and_nobody_cheaper(factor in 1.01f64..5.0) {
        let before = outcome(CURRENT).expect("a sound file");
        let all = &NAMES[..];
        let with_blade = &NAMES[3..];
        for (section, key, dearer) in [
            ("part", "price_usd", all),
            ("part", "power_w" , all),
            ("energy", "usd_per_kwh", all),
            ("energy", "pue", all),
            ("", "years", all),
            ("blade", "price_usd", with_blade),
            ("blade", "power_w", with_blade),
            ("module.dense", "price_usd", &["max"]),
            ("module.dense", "power_w", &["max"]),
            ("module.standard", "price_usd", &["base", "cbps", "dm", "dm-cbps"]),
            ("module.standard", "power_w", &["base", "cbps", "dm", "dm-cbps"]),
        ] {
            let after = scaled(section, key, factor);
            for name in NAMES {
                let (was, is) = (of(&before, name, "total_usd"), of(&after, name, "total_usd"));
                match dearer.contains(&name) {
                    true => prop_assert!(is > was, "{section}.{key} {name}: {was} {is}"),
                    false => prop_assert!(is == was, "{section}.{key} {name}: {was} {is}"),
                }
                // The cost of power is not hardware.
                let hardware = of(&after, name, "hardware_usd") != of(&before, name, "hardware_usd");
                prop_assert_eq!(hardware, key == "price_usd" && dearer.contains(&name));
            }
        }
    }

    #[test]
    fn more_throughput_is_more_per_cost_and_only_there(at in 0..8usize, factor in 1.01f64..3.0) {
        for (_, text) in FILES {
            let before = outcome(text).expect("a sound file");
            let dm = numbers(text);
            let mut dm = dm.iter().filter(|it| it.section == "configuration.dm" && it.key == "throughput");
            let number = dm.nth(at).expect("eight values");
            let after = outcome(&with(text, number, number.value * factor)).expect("a sound file");
            for (was, is) in before["configurations"].as_array().into_iter().flatten()
                .zip(after["configurations"].as_array().into_iter().flatten())
            {
                let values = was["throughput_per_kusd"].as_array().into_iter().flatten()
                    .zip(is["throughput_per_kusd"].as_array().into_iter().flatten());
                for (position, (was_value, is_value)) in values.enumerate() {
                    let (a, b) = (was_value.as_f64().expect("a number"), is_value.as_f64().expect("a number"));
                    let here = was["name"] == "dm" && position == at;
                    let as_it_must = if here { common::close(b, a * factor) } else { a == b };
                    prop_assert!(as_it_must, "{} {} {}", position, a, b);
                }
            }
        }
    }
}

#[test]
fn a_share_of_blades_costs_less_the_more_servers_share_them() {
    for (file, text) in FILES {
        let report = outcome(text).expect("a sound file");
        let rows = report["sharing"].as_array().expect("rows");
        assert_eq!(rows.len(), 6);
        let (first, last) = (&rows[0], &rows[5]);
        assert!(last["share_usd"].as_f64() < first["share_usd"].as_f64(), "{file}");
        for pair in rows.windows(2) {
            assert!(pair[1]["share_usd"].as_f64() <= pair[0]["share_usd"].as_f64(), "{file}");
            assert!(pair[1]["gain_over_max"].as_f64() >= pair[0]["gain_over_max"].as_f64());
        }
    }
}

#[test]
fn at_the_break_even_share_a_blade_gains_nothing() {
    let report = outcome(spillway_cost::PAPER).expect("a sound file");
    let total = 2434.0 + derived(&report, "share.break_even");
    let all = numbers(spillway_cost::PAPER);
    let dm = all.iter().find(|it| it.section == "configuration.dm-cbps" && it.key == "total_usd");
    let changed = with(spillway_cost::PAPER, dm.expect("a total"), total);
    let gain = derived(&outcome(&changed).expect("a sound file"), "dm-cbps.gain_over_max");
    assert!(gain.abs() < 1e-9, "{gain}");
}
