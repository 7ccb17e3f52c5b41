//! Numbers that follow from the prices, by name, each with its unit and formula.

use crate::model::{Cost, Model};
use crate::prices::ConfigurationName::{self, Base, Cbps, Dm, DmCbps, Max};
use crate::prices::{Pricing, Subtotals};

/// A number that follows from prices.
#[derive(Debug)]
pub(crate) struct Derivation {
    pub name: &'static str,
    pub unit: &'static str,
    /// How it is derived, in words.
    pub formula: &'static str,
    /// None if the file lacks the inputs.
    pub derive: fn(&Model<'_>) -> Option<f64>,
}

/// The derivation of this name.
pub(crate) fn find(name: &str) -> Option<&'static Derivation> {
    ALL.iter().find(|it| it.name == name)
}

/// All derivations, in the order of the report.
pub(crate) static ALL: &[Derivation] = &[
    // Section 5: memory and what it hosts.
    row("configurations", "configurations", "configurations that the report has", |_| {
        Some(ConfigurationName::ALL.len() as f64)
    }),
    row("base.fits", "instances", "Base's memory / instance, whole ones", |it| fits(it, Base)),
    row(
        "cbps.extra_fits",
        "instances",
        "CBPS's memory / (instance × (1 - shared)), whole ones, beyond Base's",
        |it| Some(fits(it, Cbps)? - fits(it, Base)?),
    ),
    row("cbps.holds_gib", "GiB", "CBPS's memory / (1 - shared)", |it| holds_gib(it, Cbps)),
    row("dm-cbps.holds_gib", "GiB", "DM+CBPS's memory / (1 - shared)", |it| holds_gib(it, DmCbps)),
    row("max.fits", "instances", "Max's memory / instance, whole ones", |it| fits(it, Max)),
    row("max.gib", "GiB", "Max's memory", |it| Some(it.prices.configuration(Max).memory_gib())),
    row("dm.fits", "instances", "DM's memory / instance, whole ones", |it| fits(it, Dm)),
    row("dm.local_part", "%", "DM's local memory / its memory", |it| {
        let dm = it.prices.configuration(Dm);
        Some(percent(dm.local_gib / dm.memory_gib()))
    }),
    row("dm.remote_gib", "GiB", "DM's memory on the blade", |it| {
        Some(it.prices.configuration(Dm).remote_gib)
    }),
    row("blade.filled", "%", "memory of DM's enclosure on blades / what the blades take", |it| {
        Some(percent(it.blades_filled()?))
    }),
    row("base.hosted_gib", "GiB", "instances that Base hosts × instance", |it| {
        let hosts = f64::from(it.prices.configuration(Base).hosts());
        Some(hosts * it.prices.consolidation.instance_gib)
    }),
    row("server.sockets", "sockets", "processors of the server that is priced", |it| {
        Some(subtotals(it)?.sockets)
    }),
    // Section 5: throughput.
    row("dm.loss", "%", "the most by which DM's throughput is below Max's, at any count", |it| {
        loss(it, Dm)
    }),
    row(
        "dm-cbps.loss",
        "%",
        "the most by which DM+CBPS's throughput is below Max's, at any count",
        |it| loss(it, DmCbps),
    ),
    row(
        "dm-cbps.ahead_of_dm_at_half",
        "%",
        "throughput of half of the instances on DM+CBPS / on DM - 1",
        |it| ahead_of_dm(it, it.prices.consolidation.instances / 2),
    ),
    row("dm-cbps.ahead_of_dm", "%", "throughput of all instances on DM+CBPS / on DM - 1", |it| {
        ahead_of_dm(it, it.prices.consolidation.instances)
    }),
    // Section 5: cost.
    row("base.total", "USD", "Base's total cost", |it| Some(it.cost(Base).total_usd())),
    row("dm.hardware", "USD", "DM's hardware", |it| Some(it.cost(Dm).hardware_usd)),
    row("dm.total", "USD", "DM's total cost", |it| Some(it.cost(Dm).total_usd())),
    row("dm-cbps.saving_hardware", "%", "1 - DM+CBPS's hardware / Max's", |it| {
        Some(percent(1.0 - it.cost(DmCbps).hardware_usd / it.cost(Max).hardware_usd))
    }),
    row("dm-cbps.saving_total", "%", "1 - DM+CBPS's total cost / Max's", |it| {
        Some(percent(1.0 - it.cost(DmCbps).total_usd() / it.cost(Max).total_usd()))
    }),
    row(
        "max.usd_per_gib",
        "USD",
        "(Max's hardware - Base's) / (its memory - Base's), a GiB",
        |it| {
            let more_gib =
                it.prices.configuration(Max).local_gib - it.prices.configuration(Base).local_gib;
            let more_usd = it.cost(Max).hardware_usd - it.cost(Base).hardware_usd;
            (more_gib > 0.0).then_some(more_usd / more_gib)
        },
    ),
    row(
        "share.usd_per_gib",
        "USD",
        "hardware of DM's share of the blade / its memory there, a GiB",
        |it| {
            let share = difference(it, Dm, |cost| cost.hardware_usd);
            Some(share / it.prices.configuration(Dm).remote_gib)
        },
    ),
    row("share.hardware", "USD", "DM's hardware - Base's: its share of the blade", |it| {
        Some(difference(it, Dm, |cost| cost.hardware_usd))
    }),
    row("share.operating", "USD", "DM's power and cooling - Base's", |it| {
        Some(difference(it, Dm, |cost| cost.operating_usd))
    }),
    row("share.total", "USD", "DM's total cost - Base's", |it| {
        Some(difference(it, Dm, Cost::total_usd))
    }),
    row(
        "share.break_even",
        "USD",
        "the share's total cost at which DM+CBPS has Max's throughput per cost, all instances",
        |it| {
            let ratio = throughput_beside_max(it, DmCbps)?;
            Some(ratio * it.cost(Max).total_usd() - it.cost(Base).total_usd())
        },
    ),
    // Section 5: throughput per cost.
    row(
        "base.best_up_to",
        "instances",
        "up to this count no configuration has more throughput per cost than Base",
        |it| Some(f64::from(best_up_to(it))),
    ),
    row(
        "base.peak_behind",
        "configurations",
        "configurations whose best throughput per cost is above Base's best",
        |it| {
            let peak = |name| peak(it, name);
            let ahead = ConfigurationName::ALL.into_iter().filter(|name| peak(*name) > peak(Base));
            Some(ahead.count() as f64)
        },
    ),
    row(
        "cbps.gain_over_base",
        "%",
        "throughput per cost of CBPS / of Base - 1, the most at any count that both host",
        |it| {
            let hosts = it.prices.configuration(Base).hosts();
            let gains =
                (1..=hosts).filter_map(|n| gain(it.per_cost(Cbps, n)?, it.per_cost(Base, n)?));
            gains.reduce(f64::max)
        },
    ),
    row(
        "dm.gain_over_max",
        "%",
        "throughput per total cost of DM / of Max - 1, all instances",
        |it| gain_over_max(it, Dm),
    ),
    row(
        "dm-cbps.gain_over_max",
        "%",
        "throughput per total cost of DM+CBPS / of Max - 1, all instances",
        |it| gain_over_max(it, DmCbps),
    ),
    row("dm-cbps.gain_over_max_by_hardware", "%", "the same per hardware", |it| {
        let cheaper = it.cost(Max).hardware_usd / it.cost(DmCbps).hardware_usd;
        Some(percent(throughput_beside_max(it, DmCbps)? * cheaper - 1.0))
    }),
    row(
        "dm-cbps.gain_over_max_at_equal_throughput",
        "%",
        "the same per total cost, with throughput equal to Max's",
        |it| Some(percent(cheaper_than_max(it) - 1.0)),
    ),
    row(
        "dm-cbps.gain_over_max_at_loss",
        "%",
        "the same with throughput below Max's by consolidation.loss_at_most",
        |it| {
            let throughput = 1.0 - it.prices.consolidation.loss_at_most;
            Some(percent(throughput * cheaper_than_max(it) - 1.0))
        },
    ),
    row(
        "dm-cbps.gain_over_max_at_scale_out_price",
        "%",
        "the same at the total cost that the scale-out has for a server with a blade",
        |it| {
            subtotals(it)?;
            let cheaper = it.cost(Max).total_usd() / it.with_blade.total_usd();
            Some(percent(throughput_beside_max(it, DmCbps)? * cheaper - 1.0))
        },
    ),
    // Section 6.
    row("scale-out.server_gib", "GiB", "modules of a server × module", |it| {
        let subtotals = subtotals(it)?;
        Some(subtotals.server_modules * subtotals.module_gib)
    }),
    row("scale-out.measured_gib", "GiB", "local + remote memory of the measured server", |it| {
        Some(it.prices.scale_out.local_gib + it.prices.scale_out.remote_gib)
    }),
    row(
        "scale-out.remote_gib_as_measured",
        "GiB",
        "DM's local memory × remote / local of the measured server",
        |it| {
            let measured = it.prices.scale_out.remote_gib / it.prices.scale_out.local_gib;
            Some(it.prices.configuration(Dm).local_gib * measured)
        },
    ),
    row("base.servers_hardware", "USD", "servers of the scale-out × Base's hardware", |it| {
        Some(it.prices.scale_out.servers * it.cost(Base).hardware_usd)
    }),
    row("base.servers_total", "USD", "servers of the scale-out × Base's total cost", |it| {
        Some(it.prices.scale_out.servers * it.cost(Base).total_usd())
    }),
    row(
        "scale-out.server_hardware",
        "USD",
        "hardware of the scale-out's servers / their number",
        |it| Some(it.servers.hardware_usd / it.prices.scale_out.servers),
    ),
    row(
        "scale-out.server_total",
        "USD",
        "total cost of the scale-out's servers / their number",
        |it| Some(it.servers.total_usd() / it.prices.scale_out.servers),
    ),
    row(
        "scale-out.blade_hardware",
        "USD",
        "hardware of the scale-out's server with a blade",
        |it| Some(it.with_blade.hardware_usd),
    ),
    row(
        "scale-out.blade_total",
        "USD",
        "total cost of the scale-out's server with a blade",
        |it| Some(it.with_blade.total_usd()),
    ),
    row(
        "scale-out.share_hardware",
        "USD",
        "the scale-out's share of the blade: hardware with a blade - one server's",
        |it| Some(scale_out_share(it, |cost| cost.hardware_usd)),
    ),
    row("scale-out.share_operating", "USD", "the same for power and cooling", |it| {
        Some(scale_out_share(it, |cost| cost.operating_usd))
    }),
    row(
        "scale-out.share_operating_beside_base",
        "USD",
        "power and cooling with a blade - Base's",
        |it| Some(it.with_blade.operating_usd - it.cost(Base).operating_usd),
    ),
    row(
        "scale-out.gain",
        "%",
        "total cost of the servers / of the one with a blade - 1, at equal throughput",
        |it| Some(percent(it.servers.total_usd() / it.with_blade.total_usd() - 1.0)),
    ),
    row(
        "scale-out.gain_at_measured_throughput",
        "%",
        "the same at the measured throughputs",
        |it| {
            let throughput =
                it.prices.scale_out.throughput / it.prices.scale_out.servers_throughput;
            Some(percent(throughput * it.servers.total_usd() / it.with_blade.total_usd() - 1.0))
        },
    ),
    row(
        "scale-out.gain_by_hardware",
        "%",
        "hardware of the servers / of the one with a blade - 1, at equal throughput",
        |it| Some(percent(it.servers.hardware_usd / it.with_blade.hardware_usd - 1.0)),
    ),
    row(
        "scale-out.gain_if_servers_add_throughput",
        "%",
        "the same per total cost, when each server adds the throughput of one",
        |it| {
            let throughput = it.prices.scale_out.throughput / it.prices.scale_out.servers;
            Some(percent(throughput * it.servers.total_usd() / it.with_blade.total_usd() - 1.0))
        },
    ),
    row(
        "scale-out.gain_at_consolidation_price",
        "%",
        "total cost of as many Base servers / of DM - 1, at equal throughput",
        |it| {
            let servers = it.prices.scale_out.servers * it.cost(Base).total_usd();
            Some(percent(servers / it.cost(Dm).total_usd() - 1.0))
        },
    ),
];

const fn row(
    name: &'static str,
    unit: &'static str,
    formula: &'static str,
    derive: fn(&Model<'_>) -> Option<f64>,
) -> Derivation {
    Derivation { name, unit, formula, derive }
}

fn percent(part: f64) -> f64 {
    part * 100.0
}

fn subtotals<'a>(model: &Model<'a>) -> Option<&'a Subtotals> {
    match &model.prices.pricing {
        Pricing::Subtotals(subtotals) => Some(subtotals),
        Pricing::Components(_) => None,
    }
}

fn fits(model: &Model<'_>, name: ConfigurationName) -> Option<f64> {
    let instance_gib = model.prices.consolidation.instance_gib;
    Some(f64::from(model.prices.configuration(name).fits(instance_gib)))
}

fn holds_gib(model: &Model<'_>, name: ConfigurationName) -> Option<f64> {
    let configuration = model.prices.configuration(name);
    Some(configuration.memory_gib() / (1.0 - configuration.shared))
}

/// By how much a ratio is above 1, in percent.
fn gain(one: f64, other: f64) -> Option<f64> {
    (other > 0.0).then_some(percent(one / other - 1.0))
}

fn loss(model: &Model<'_>, name: ConfigurationName) -> Option<f64> {
    let (own, max) = (model.prices.configuration(name), model.prices.configuration(Max));
    let both = own.throughput.iter().zip(&max.throughput);
    both.map(|(own, max)| percent(1.0 - own / max)).reduce(f64::max)
}

fn ahead_of_dm(model: &Model<'_>, instances: u32) -> Option<f64> {
    let throughput = |name| model.prices.configuration(name).throughput_of(instances);
    gain(throughput(DmCbps)?, throughput(Dm)?)
}

/// Throughput of all instances in units of Max's.
fn throughput_beside_max(model: &Model<'_>, name: ConfigurationName) -> Option<f64> {
    let instances = model.prices.consolidation.instances;
    let throughput = |name| model.prices.configuration(name).throughput_of(instances);
    Some(throughput(name)? / throughput(Max)?)
}

pub(crate) fn gain_over_max(model: &Model<'_>, name: ConfigurationName) -> Option<f64> {
    let instances = model.prices.consolidation.instances;
    gain(model.per_cost(name, instances)?, model.per_cost(Max, instances)?)
}

fn cheaper_than_max(model: &Model<'_>) -> f64 {
    model.cost(Max).total_usd() / model.cost(DmCbps).total_usd()
}

fn difference(model: &Model<'_>, name: ConfigurationName, usd: fn(&Cost) -> f64) -> f64 {
    usd(model.cost(name)) - usd(model.cost(Base))
}

fn scale_out_share(model: &Model<'_>, usd: fn(&Cost) -> f64) -> f64 {
    usd(&model.with_blade) - usd(&model.servers) / model.prices.scale_out.servers
}

fn best_up_to(model: &Model<'_>) -> u32 {
    let is_best = |n: &u32| {
        let own = model.per_cost(Base, *n);
        let others = ConfigurationName::ALL.into_iter().filter_map(|name| model.per_cost(name, *n));
        own.is_some_and(|own| others.into_iter().all(|other| other <= own))
    };
    (1..=model.prices.configuration(Base).hosts()).take_while(is_best).count() as u32
}

fn peak(model: &Model<'_>, name: ConfigurationName) -> f64 {
    let hosts = model.prices.configuration(name).hosts();
    (1..=hosts).filter_map(|n| model.per_cost(name, n)).fold(0.0, f64::max)
}
