//! Reads a price file.

use toml::Spanned;
use toml::de::DeTable;

use crate::derivations;
use crate::document::{Bounds, Document, Section};
use crate::error::{Error, Fault};
use crate::prices::{
    Blade, Components, Configuration, ConfigurationName, Consolidation, Module, Part, Prices,
    Pricing, Relation, ScaleOut, Statement, Subtotal, Subtotals,
};

const RELATIONS: [(&str, Relation); 5] = [
    ("equal", Relation::Equal),
    ("at most", Relation::AtMost),
    ("at least", Relation::AtLeast),
    ("below", Relation::Below),
    ("above", Relation::Above),
];

/// Reads the text of a price file; errors call it `file`.
///
/// # Errors
/// The first error, with its line and key.
pub fn read(file: &str, text: &str) -> Result<Prices, Error> {
    let document = Document::new(file, text);
    let table = document.parse()?;
    let mut prices = read_table(&document, &table)?;
    drop(table);
    prices.inputs = document.into_inputs();
    Ok(prices)
}

fn read_table<'a>(document: &Document<'a>, table: &Spanned<DeTable<'a>>) -> Result<Prices, Error> {
    let root = document.root(table)?;
    let title = root.text("title", "whose prices these are")?;
    let years = root.number("years", Bounds::YEARS, "over how many years costs are counted")?;
    let consolidation = consolidation(&root)?;
    let enclosure = root.section("enclosure", "how many servers share the memory blades")?;
    let blades =
        enclosure.number("blades", Bounds::COUNT, "servers that share the memory blades")?;
    enclosure.finish()?;

    let all = root.section("configuration", "the five configurations")?;
    let sections = ConfigurationName::ALL.map(|name| {
        let what = format!("the configuration {name}");
        Ok((name, all.section(name.key(), &what)?))
    });
    let sections = sections.into_iter().collect::<Result<Vec<_>, Error>>()?;
    all.finish()?;
    let read = |(name, section): &(_, _)| configuration(*name, section, &consolidation);
    let configurations = sections.iter().map(read).collect::<Result<Vec<_>, _>>()?;

    let scale = root.section("scale-out", "one server with a blade in place of several servers")?;
    let scale_out = scale_out(&scale)?;
    let pricing = if root.has("subtotals") {
        Pricing::Subtotals(subtotals(&root, &sections, &scale)?)
    } else {
        Pricing::Components(components(&root, &sections)?)
    };
    for (_, section) in &sections {
        section.finish()?;
    }
    scale.finish()?;
    let statements = root.sections("claim")?;
    let statements = statements.iter().map(statement).collect::<Result<_, _>>()?;
    root.finish()?;
    let inputs = Vec::new();
    Ok(Prices {
        title,
        years,
        consolidation,
        blades,
        configurations,
        pricing,
        scale_out,
        statements,
        inputs,
    })
}

fn consolidation(root: &Section<'_>) -> Result<Consolidation, Error> {
    let section = root.section("consolidation", "how many instances of what size are there")?;
    let instances =
        section.count("instances", Bounds::INSTANCES, "the most instances on a server")?;
    let instance_gib =
        section.number("instance_gib", Bounds::POSITIVE, "an instance's memory, in GiB")?;
    let what = "how much less than Max's throughput is acceptable";
    let loss_at_most = section.number("loss_at_most", Bounds::SAVED, what)?;
    section.finish()?;
    Ok(Consolidation { instances, instance_gib, loss_at_most })
}

fn configuration(
    name: ConfigurationName,
    section: &Section<'_>,
    consolidation: &Consolidation,
) -> Result<Configuration, Error> {
    let local_gib =
        section.number("local_gib", Bounds::POSITIVE, "the server's own memory, in GiB")?;
    let what = "its memory on the blade, in GiB";
    let remote_gib = match name.has_blade() {
        true => section.number("remote_gib", Bounds::POSITIVE, what)?,
        false => 0.0,
    };
    let what = "the part of the memory that page sharing saves";
    let shared = match name.shares_pages() {
        true => section.number("shared", Bounds::SAVED, what)?,
        false => 0.0,
    };
    let what = "the throughput of 1, 2, 3 ... instances, in units of one instance on Max";
    let throughput = section.numbers("throughput", Bounds::POSITIVE, what)?;
    let configuration = Configuration { local_gib, remote_gib, shared, throughput };
    configuration.check(consolidation).map_err(|fault| section.fault(fault))?;
    Ok(configuration)
}

fn scale_out(section: &Section<'_>) -> Result<ScaleOut, Error> {
    let what = "throughput of the server with a blade, in units of one with all memory local";
    let throughput = section.number("throughput", Bounds::POSITIVE, what)?;
    let what = "throughput of all servers, in units of one with all memory local";
    let servers_throughput = section.number("servers_throughput", Bounds::POSITIVE, what)?;
    let what = "how many servers the one with a blade replaces";
    let servers = section.number("servers", Bounds::COUNT, what)?;
    let what = "local memory of the measured server, in GiB";
    let local_gib = section.number("local_gib", Bounds::POSITIVE, what)?;
    let what = "remote memory of the measured server, in GiB";
    let remote_gib = section.number("remote_gib", Bounds::POSITIVE, what)?;
    Ok(ScaleOut { servers, local_gib, remote_gib, throughput, servers_throughput })
}

fn subtotals(
    root: &Section<'_>,
    sections: &[(ConfigurationName, Section<'_>)],
    scale: &Section<'_>,
) -> Result<Subtotals, Error> {
    let section = root.section("subtotals", "what the subtotals stand for")?;
    let years = section.number("years", Bounds::YEARS, "how many years the totals cover")?;
    let what = "servers that share a memory blade in these prices";
    let blades = section.number("blades", Bounds::COUNT, what)?;
    let what = "the part of a blade's price that does not depend on its memory";
    let blade_fixed_part = section.number("blade_fixed_part", Bounds::PART, what)?;
    let sockets =
        section.number("sockets", Bounds::COUNT, "processors of the server that is priced")?;
    section.finish()?;
    let read = |(_, section): &(_, Section<'_>)| {
        subtotal(section, "hardware_usd", "total_usd", "one such server")
    };
    let configurations = sections.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let whose = "all servers";
    let scale_out_servers = subtotal(scale, "servers_hardware_usd", "servers_total_usd", whose)?;
    let whose = "one server and its share of a blade";
    let scale_out_blade = subtotal(scale, "blade_hardware_usd", "blade_total_usd", whose)?;
    let what = "memory modules of one server";
    let server_modules = scale.number("server_modules", Bounds::COUNT, what)?;
    let module_gib =
        scale.number("module_gib", Bounds::POSITIVE, "a memory module's size, in GiB")?;
    Ok(Subtotals {
        years,
        blades,
        blade_fixed_part,
        sockets,
        configurations,
        scale_out_servers,
        scale_out_blade,
        server_modules,
        module_gib,
    })
}

fn subtotal(
    section: &Section<'_>,
    hardware: &'static str,
    total: &'static str,
    whose: &str,
) -> Result<Subtotal, Error> {
    let what = format!("the price of {whose}, in USD");
    let hardware_usd = section.number(hardware, Bounds::POSITIVE, &what)?;
    let what = format!("the price of {whose} with power and cooling over all years, in USD");
    let total_usd = section.number(total, Bounds::POSITIVE, &what)?;
    if total_usd < hardware_usd {
        let problem = format!("is {total_usd}, below {hardware} ({hardware_usd})");
        let remedy = "a total includes the hardware: correct the number that is wrong";
        return Err(section.fault(Fault::new(total, problem, remedy)));
    }
    Ok(Subtotal { hardware_usd, total_usd })
}

fn components(
    root: &Section<'_>,
    sections: &[(ConfigurationName, Section<'_>)],
) -> Result<Components, Error> {
    let energy = root
        .section("energy", "what electricity costs; or [subtotals] for prices of whole servers")?;
    let usd_per_kwh =
        energy.number("usd_per_kwh", Bounds::NOT_NEGATIVE, "the price of electricity, in USD")?;
    let what = "power of the whole room in units of the machines' (power usage effectiveness)";
    let pue = energy.number("pue", Bounds::PUE, what)?;
    energy.finish()?;

    let parts = root.sections("part")?;
    let parts = parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    if parts.is_empty() {
        let remedy = "add [[part]] for each part of the server other than its memory";
        return Err(root.fault(Fault::new("part", "is missing", remedy)));
    }
    let section = root.section("blade", "a memory blade without its modules")?;
    let (price_usd, power_w) = price(&section, Bounds::NOT_NEGATIVE)?;
    let what = "the most memory that a blade takes, in GiB";
    let capacity_gib = section.number("capacity_gib", Bounds::POSITIVE, what)?;
    section.finish()?;
    let blade = Blade { price_usd, power_w, capacity_gib };

    let all = root.section("module", "the memory modules")?;
    let modules = sections.iter().map(|(name, section)| {
        let local = module(&all, section, "local_gib", "local_module")?;
        let remote = match name.has_blade() {
            true => Some(module(&all, section, "remote_gib", "remote_module")?),
            false => None,
        };
        Ok((local, remote))
    });
    let modules = modules.collect::<Result<Vec<_>, Error>>()?;
    all.finish()?;
    Ok(Components { usd_per_kwh, pue, parts, blade, modules })
}

fn price(section: &Section<'_>, bounds: Bounds) -> Result<(f64, f64), Error> {
    let price_usd = section.number("price_usd", bounds, "the price of one, in USD")?;
    let what = "the power that one takes on average, in W";
    Ok((price_usd, section.number("power_w", Bounds::NOT_NEGATIVE, what)?))
}

fn part(section: &Section<'_>) -> Result<Part, Error> {
    let name = section.text("name", "what it is")?;
    let count = section.number("count", Bounds::COUNT, "how many a server has")?;
    let (price_usd, power_w) = price(section, Bounds::NOT_NEGATIVE)?;
    section.finish()?;
    Ok(Part { name, count, price_usd, power_w })
}

/// The module that a configuration names. Its memory must be a multiple of the module's size.
fn module(
    all: &Section<'_>,
    section: &Section<'_>,
    memory: &'static str,
    key: &'static str,
) -> Result<Module, Error> {
    let name = section.text(key, "the module that this memory is made of, a [module.NAME]")?;
    let module = all.section(&name, "a memory module")?;
    let gib = module.number("gib", Bounds::POSITIVE, "a module's size, in GiB")?;
    let (price_usd, power_w) = price(&module, Bounds::POSITIVE)?;
    module.finish()?;
    let memory_gib = section.plain_number(memory, Bounds::POSITIVE, "memory, in GiB")?;
    if (memory_gib / gib).fract() != 0.0 {
        let problem = format!("is {memory_gib}, not a multiple of module.{name}.gib ({gib})");
        let remedy = "use whole modules, or name another module";
        return Err(section.fault(Fault::new(memory, problem, remedy)));
    }
    Ok(Module { gib, price_usd, power_w })
}

fn statement(section: &Section<'_>) -> Result<Statement, Error> {
    let place = section.text("where", "the section of the paper")?;
    let sentence = section.text("sentence", "what it says, word for word")?;
    let says = section.plain_number("says", Bounds::ANY, "the number in the sentence")?;
    let unit = section.text("unit", "the number's unit")?;
    let relation = match section.has("is") {
        false => Relation::Equal,
        true => {
            let text = section.text("is", "how the derived number relates to it")?;
            let found = RELATIONS.iter().find(|(name, _)| *name == text);
            let names = RELATIONS.map(|(name, _)| name).join(", ");
            let fault = Fault::new("is", format!("is '{text}'"), format!("write one of {names}"));
            found.ok_or_else(|| section.fault(fault))?.1
        }
    };
    let what = "how far off the derived number may be, in the same unit";
    let within = match relation {
        Relation::Equal => section.plain_number("within", Bounds::NOT_NEGATIVE, what)?,
        _ => 0.0,
    };
    let from = section.texts("from", "names of what the report derives")?;
    for name in &from {
        let Some(derivation) = derivations::find(name) else {
            let names: Vec<_> = derivations::ALL.iter().map(|it| it.name).collect();
            let problem = format!("names '{name}', which nothing derives");
            let remedy = format!("there are {}", names.join(", "));
            return Err(section.fault(Fault::new("from", problem, remedy)));
        };
        if derivation.unit != unit {
            let problem = format!("is '{unit}', but {name} is in '{}'", derivation.unit);
            let remedy = "write both in the same unit";
            return Err(section.fault(Fault::new("unit", problem, remedy)));
        }
    }
    section.finish()?;
    Ok(Statement { place, sentence, says, unit, relation, within, from })
}
