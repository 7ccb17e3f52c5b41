//! Invalid price files: the error is one line with the place, the problem and the remedy.

use proptest::prelude::*;
use spillway_cost::{CURRENT, ConfigurationName, Error, PAPER, read};

/// Applies a change to a file. Returns the error and the line number of `to`.
fn refused(text: &str, from: &str, to: &str) -> (String, usize) {
    let at = text.find(from).unwrap_or_else(|| panic!("no {from:?}"));
    let changed = text.replacen(from, to, 1);
    let error = read("mine.toml", &changed).err().unwrap_or_else(|| panic!("{to:?} is taken"));
    (error.to_string(), 1 + text[..at].matches('\n').count())
}

#[test]
fn values_that_can_not_be() {
    for (text, from, to, says) in [
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = -2646",
            "configuration.max.hardware_usd is negative (-2646): write a number above 0: the price of one such server, in USD",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = 0",
            "configuration.max.hardware_usd is 0: write a number above 0",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = \"2646\"",
            "configuration.max.hardware_usd is not a number",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = nan",
            "configuration.max.hardware_usd is NaN",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = inf",
            "configuration.max.hardware_usd is inf",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = 1e300",
            "configuration.max.hardware_usd is 1",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardware_usd = 0x10",
            "configuration.max.hardware_usd is not a number",
        ),
        (
            PAPER,
            "total_usd = 3618",
            "total_usd = 2000",
            "configuration.max.total_usd is 2000, below hardware_usd (2646): a total includes the hardware",
        ),
        (
            PAPER,
            "servers_total_usd = 4768",
            "servers_total_usd = 3000",
            "scale-out.servers_total_usd is 3000, below servers_hardware_usd (3360)",
        ),
        (
            PAPER,
            "shared = 0.4",
            "shared = 1",
            "configuration.cbps.shared is 1: write a part of 1, 0 to 0.99",
        ),
        (PAPER, "shared = 0.4", "shared = 40", "configuration.cbps.shared is 40"),
        (
            PAPER,
            "throughput = [1, 2, 3, 4]",
            "throughput = [1, 2, -3, 4]",
            "configuration.base.throughput is negative (-3)",
        ),
        (
            PAPER,
            "throughput = [1, 2, 3, 4]",
            "throughput = []",
            "configuration.base.throughput has 0 values: give 1 to 8",
        ),
        (
            PAPER,
            "throughput = [1, 2, 3, 4]",
            "throughput = 4",
            "configuration.base.throughput is not a list",
        ),
        (
            PAPER,
            "throughput = [1, 2, 3, 4]",
            "throughput = [1, 2, 3, 4, 5]",
            "configuration.base.throughput has 5 values, but the memory has room for 4 instances of 8 GiB: leave out",
        ),
        (
            PAPER,
            "instances = 8",
            "instances = 8.5",
            "consolidation.instances is 8.5: write a whole number",
        ),
        (PAPER, "years = 3", "years = 0", "years is 0"),
        (
            PAPER,
            "blades = 16",
            "blades = 0",
            "enclosure.blades is 0: write a whole number, 1 to 1024",
        ),
        (
            PAPER,
            "is = \"at most\"",
            "is = \"roughly\"",
            "claim[3].is is 'roughly': write one of equal, at most, at least, below, above",
        ),
        (
            PAPER,
            "from = [\"dm-cbps.loss\"]",
            "from = [\"dm-cbps.lost\"]",
            "claim[3].from names 'dm-cbps.lost', which nothing derives: there are configurations, base.fits",
        ),
        (PAPER, "from = [\"dm-cbps.loss\"]", "from = []", "claim[3].from is not a list of texts"),
        (
            PAPER,
            "unit = \"sockets\"",
            "unit = \"%\"",
            "claim[5].unit is '%', but server.sockets is in 'sockets'",
        ),
        (
            PAPER,
            "hardware_usd = 2646",
            "hardwre_usd = 2646\nhardware_usd = 2646",
            "configuration.max.hardwre_usd is not known: there are date, hardware_usd, local_gib",
        ),
        (PAPER, "[enclosure]", "[enclosures]\nblades = 16\n[enclosure]", "enclosures is not known"),
        (
            PAPER,
            "local_gib = \"Base is",
            "remote_gib = \"Base is",
            "configuration.base.sources.remote_gib is the source of nothing",
        ),
        (
            CURRENT,
            "price_usd = 700",
            "price_usd = -700",
            "module.standard.price_usd is negative (-700): write a number above 0: the price of one, in USD",
        ),
        (
            CURRENT,
            "power_w = 10",
            "power_w = -10",
            "module.dense.power_w is negative (-10): write a number, 0 or more: the power that one takes on average, in W",
        ),
        (CURRENT, "pue = 1.54", "pue = 0.9", "energy.pue is 0.9: write a number, 1 or more"),
        (
            CURRENT,
            "date = \"2025-11\"",
            "date = \"2025-13\"",
            "module.standard.date is not a date: write it in quotes",
        ),
        (CURRENT, "date = \"2025-11\"", "date = 2025-11-01", "module.standard.date is not a date"),
        (
            CURRENT,
            "local_gib = 2048",
            "local_gib = 2100",
            "configuration.max.local_gib is 2100, not a multiple of module.dense.gib (128): use whole modules",
        ),
        (CURRENT, "count = 1", "count = 0", "part[1].count is 0"),
    ] {
        let (line, number) = refused(text, from, to);
        let start = format!("mine.toml line {number}: {says}");
        assert!(line.starts_with(&start), "{line}\n{start}");
        assert!(!line.contains('\n') && line.len() < 2500, "{line}");
    }
}

#[test]
fn what_is_missing_is_named_with_its_section_and_what_it_is() {
    for (text, section, key, says) in [
        (
            PAPER,
            "[configuration.max]",
            "hardware_usd = 2646\n",
            "configuration.max.hardware_usd is missing: add it below [configuration.max]: the price of one such server, in USD",
        ),
        (
            PAPER,
            "[configuration.dm-cbps]",
            "shared = 0.4\nthroughput = [0.99, 1.98, 2.97, 3.96, 4.95, 5.93",
            "configuration.dm-cbps.shared is missing",
        ),
        (PAPER, "[subtotals]", "sockets = 1\n", "subtotals.sockets is missing"),
        (
            CURRENT,
            "[module.dense]",
            "price_usd = 2400\n",
            "module.dense.price_usd is missing: add it below [module.dense]: the price of one, in USD",
        ),
        (
            CURRENT,
            "[[part]]",
            "power_w = 500\n",
            "part[1].power_w is missing: add it below that [[part]]: the power",
        ),
        (
            CURRENT,
            "[configuration.max]",
            "local_module = \"dense\"\n",
            "configuration.max.local_module is missing",
        ),
    ] {
        let keep = key.split_once('\n').map_or("", |(_, rest)| rest);
        let (line, _) = refused(text, key, keep);
        let number = 1 + text[..text.find(section).expect("the section")].matches('\n').count();
        assert!(line.starts_with(&format!("mine.toml line {number}: {says}")), "{line}");
    }
    for (text, section, says) in [
        (PAPER, "enclosure", "enclosure is missing: add [enclosure]: how many servers share"),
        (PAPER, "configuration.max", "configuration.max is missing: add [configuration.max]"),
        (CURRENT, "blade", "blade is missing: add [blade]: a memory blade without its modules"),
        (CURRENT, "module.dense", "module.dense is missing: add [module.dense]: a memory module"),
        (
            CURRENT,
            "energy",
            "energy is missing: add [energy]: what electricity costs; or [subtotals]",
        ),
    ] {
        let without = without_section(text, section);
        let error = read("mine.toml", &without).expect_err(section).to_string();
        assert!(error.contains(says), "{error}");
    }
    let error =
        read("mine.toml", &without_section(CURRENT, "part")).expect_err("no part").to_string();
    assert!(error.contains("part is missing: add [[part]]"), "{error}");
    let error = read("mine.toml", "").expect_err("nothing").to_string();
    assert_eq!(error, "mine.toml line 1: title is missing: add it: whose prices these are");
}

fn without_section(text: &str, section: &str) -> String {
    let mut gone = false;
    let kept = text.split_inclusive('\n').filter(|line| {
        if line.starts_with('[') {
            let name = line.trim().trim_matches(['[', ']']);
            gone =
                name == section || name.strip_prefix(section).is_some_and(|it| it.starts_with('.'));
        }
        !gone
    });
    kept.collect()
}

#[test]
fn a_number_without_a_source_is_refused() {
    let (line, number) = refused(PAPER, "instance_gib = \"A single", "#");
    assert!(number > 10, "{number}");
    assert!(
        line.contains("consolidation.instance_gib has no source: add source = \"...\""),
        "{line}"
    );
}

#[test]
fn what_is_no_toml_is_named_with_its_line() {
    let (line, number) = refused(PAPER, "hardware_usd = 2646", "hardware_usd = = 2646");
    assert!(line.starts_with(&format!("mine.toml line {number}: ")), "{line}");
    assert!(line.contains("--print-prices"), "{line}");
    let (line, number) = refused(PAPER, "hardware_usd = 2646", "local_gib = 64");
    assert!(
        line.starts_with(&format!("mine.toml line {number}: ")) && line.contains("duplicate"),
        "{line}"
    );
}

#[test]
fn parameters_that_do_not_fit() {
    let mut prices = read("paper", PAPER).expect("a sound file");
    for (name, list, says) in [
        (
            ConfigurationName::Base,
            vec![1.0; 5],
            "throughput of base has 5 values, but the memory has room for 4",
        ),
        (ConfigurationName::Max, vec![], "throughput of max has 0 values"),
        (ConfigurationName::Dm, vec![1.0, -2.0], "throughput of dm is -2: write numbers above 0"),
        (ConfigurationName::Dm, vec![f64::NAN], "throughput of dm is NaN"),
    ] {
        let error = prices.set_throughput(name, list).expect_err(says);
        assert!(error.to_string().starts_with(says), "{error}");
    }
    prices.set_throughput(ConfigurationName::Dm, vec![1.0, 1.5]).expect("it fits");
    assert_eq!(spillway_cost::report(&prices).configurations[3].throughput, [1.0, 1.5]);
}

#[test]
fn errors_have_their_parts_for_programs() {
    let changed = PAPER.replacen("hardware_usd = 2646", "hardware_usd = -1", 1);
    let error: Error = read("mine.toml", &changed).expect_err("a negative price");
    let json = serde_json::to_value(&error).expect("JSON");
    assert_eq!(json["kind"], "value");
    assert_eq!(json["file"], "mine.toml");
    assert_eq!(json["key"], "configuration.max.hardware_usd");
    assert!(json["line"].as_u64().is_some_and(|line| line > 50));
    assert!(json["remedy"].as_str().is_some_and(|it| it.contains("above 0")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // A mangled file is read, or refused in one line; a file that is read gives a report.
    #[test]
    fn mangled_files_are_read_or_refused_in_one_line(
        paper in any::<bool>(), cut in any::<prop::sample::Index>(), length in 0..40usize, put in "[ -~\n]{0,12}",
    ) {
        let text = if paper { PAPER } else { CURRENT };
        let start = cut.index(text.len());
        let end = (start + length).min(text.len());
        prop_assume!(text.is_char_boundary(start) && text.is_char_boundary(end));
        let mangled = format!("{}{put}{}", &text[..start], &text[end..]);
        match read("mine.toml", &mangled) {
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
            Ok(prices) => {
                let report = spillway_cost::report(&prices);
                prop_assert!(spillway_cost::page(&report).contains("</html>"));
                let json = serde_json::to_string(&report).expect("JSON");
                prop_assert!(!spillway_cost::text(&report).contains("NaN"), "{json}");
            }
        }
    }
}
