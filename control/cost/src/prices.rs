//! The input: configurations, their prices, and parameters.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::error::{Error, Fault};

/// The paper's configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigurationName {
    /// A server with memory for half of the instances.
    Base,
    /// The same with content-based page sharing.
    Cbps,
    /// A server with memory for all instances.
    Max,
    /// Disaggregated memory: Base and a share of a memory blade.
    Dm,
    /// The same with content-based page sharing.
    DmCbps,
}

impl ConfigurationName {
    /// All, in the paper's order.
    pub const ALL: [Self; 5] = [Self::Base, Self::Cbps, Self::Max, Self::Dm, Self::DmCbps];

    /// The name in the price file.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Cbps => "cbps",
            Self::Max => "max",
            Self::Dm => "dm",
            Self::DmCbps => "dm-cbps",
        }
    }

    /// The name in the paper.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Base => "Base",
            Self::Cbps => "CBPS",
            Self::Max => "Max",
            Self::Dm => "DM",
            Self::DmCbps => "DM+CBPS",
        }
    }

    /// The configuration of this key.
    pub fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.key() == key)
    }

    /// Whether some of its memory is on a blade.
    pub const fn has_blade(self) -> bool {
        matches!(self, Self::Dm | Self::DmCbps)
    }

    /// Whether equal pages are shared.
    pub const fn shares_pages(self) -> bool {
        matches!(self, Self::Cbps | Self::DmCbps)
    }
}

impl fmt::Display for ConfigurationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

impl Serialize for ConfigurationName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}

/// One configuration.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    pub local_gib: f64,
    /// Memory on the blade, GiB; 0 without one.
    pub remote_gib: f64,
    /// The part of the memory that page sharing saves, 0 to 1.
    pub shared: f64,
    /// Throughput of 1, 2, 3 ... instances, in units of one instance on Max. Its length is the number of instances that
    /// it hosts.
    pub throughput: Vec<f64>,
}

impl Configuration {
    pub fn memory_gib(&self) -> f64 {
        self.local_gib + self.remote_gib
    }

    /// The number of instances that fit into its memory.
    pub fn fits(&self, instance_gib: f64) -> u32 {
        // The 1e-9 keeps rounding errors from turning a whole number into the next lower one.
        (self.memory_gib() / (instance_gib * (1.0 - self.shared)) + 1e-9) as u32
    }

    pub fn hosts(&self) -> u32 {
        self.throughput.len() as u32
    }

    /// Throughput of this many instances, if it hosts them.
    pub fn throughput_of(&self, instances: u32) -> Option<f64> {
        self.throughput.get(instances.checked_sub(1)? as usize).copied()
    }

    pub fn check(&self, consolidation: &Consolidation) -> Result<(), Fault> {
        let Consolidation { instances, instance_gib, .. } = *consolidation;
        let (hosts, fits) = (self.hosts(), self.fits(instance_gib));
        if hosts == 0 || hosts > instances {
            return Err(Fault::new(
                "throughput",
                format!("has {hosts} values"),
                format!(
                    "give 1 to {instances} (consolidation.instances), one for each count of instances it hosts"
                ),
            ));
        }
        if hosts > fits {
            return Err(Fault::new(
                "throughput",
                format!(
                    "has {hosts} values, but the memory has room for {fits} instances of {instance_gib} GiB"
                ),
                "leave out those that do not fit, or give the configuration more memory",
            ));
        }
        Ok(())
    }
}

/// The consolidation of section 5.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Consolidation {
    /// Most instances on a server.
    pub instances: u32,
    pub instance_gib: f64,
    /// How much less than Max's throughput is acceptable, 0 to 1.
    pub loss_at_most: f64,
}

/// The form of the prices.
#[derive(Clone, Debug)]
pub(crate) enum Pricing {
    Subtotals(Subtotals),
    Components(Components),
}

/// Hardware, and hardware with power and cooling over some years, USD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subtotal {
    pub hardware_usd: f64,
    pub total_usd: f64,
}

/// Prices of whole servers.
#[derive(Clone, Debug)]
pub(crate) struct Subtotals {
    /// Years that the totals cover.
    pub years: f64,
    /// Servers that share the blades in these prices.
    pub blades: f64,
    /// The part of a blade's price that does not depend on its memory, 0 to 1.
    pub blade_fixed_part: f64,
    /// Processors of the server that is priced.
    pub sockets: f64,
    /// In the order of [`ConfigurationName::ALL`].
    pub configurations: Vec<Subtotal>,
    /// All servers of the scale-out.
    pub scale_out_servers: Subtotal,
    /// One server and its share of a blade in the scale-out.
    pub scale_out_blade: Subtotal,
    /// Memory modules of one server of the scale-out.
    pub server_modules: f64,
    pub module_gib: f64,
}

/// Prices of components.
#[derive(Clone, Debug)]
pub(crate) struct Components {
    pub usd_per_kwh: f64,
    pub pue: f64,
    /// The server without its memory.
    pub parts: Vec<Part>,
    pub blade: Blade,
    /// Local and remote modules, in the order of [`ConfigurationName::ALL`].
    pub modules: Vec<(Module, Option<Module>)>,
}

/// A part of a server.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub name: String,
    pub count: f64,
    pub price_usd: f64,
    pub power_w: f64,
}

/// A memory module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    pub gib: f64,
    pub price_usd: f64,
    pub power_w: f64,
}

/// A memory blade without its modules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blade {
    pub price_usd: f64,
    pub power_w: f64,
    pub capacity_gib: f64,
}

/// One server with a share of a blade in place of several servers (section 6).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleOut {
    pub servers: f64,
    /// Memory of the measured server, GiB.
    pub local_gib: f64,
    pub remote_gib: f64,
    /// Throughput of the server with a blade, in units of one with all memory local.
    pub throughput: f64,
    /// Throughput of all servers, in the same units.
    pub servers_throughput: f64,
}

/// The relation between a claim and its derived number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Relation {
    Equal,
    AtMost,
    AtLeast,
    Below,
    Above,
}

/// A claim of the file about a derived number.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub place: String,
    pub sentence: String,
    pub says: f64,
    pub unit: String,
    pub relation: Relation,
    /// Tolerance of the derived number, in the same unit; 0 if the relation is a bound.
    pub within: f64,
    /// Names of derivations.
    pub from: Vec<String>,
}

/// A number or a list of numbers of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A list.
    Numbers(Vec<f64>),
}

/// A number of the file, and its source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Input {
    /// Its key with its section.
    pub key: String,
    /// The number.
    pub value: Value,
    /// Its source; begins with "assumed" for an assumption.
    pub source: String,
    /// The source's date: a year, a month or a day, as in 2026-04-26.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
}

/// The input of a report.
#[derive(Clone, Debug)]
pub struct Prices {
    pub(crate) title: String,
    /// The years that the cost covers.
    pub(crate) years: f64,
    pub(crate) consolidation: Consolidation,
    /// Servers in an enclosure, which share its memory blades.
    pub(crate) blades: f64,
    /// In the order of [`ConfigurationName::ALL`].
    pub(crate) configurations: Vec<Configuration>,
    pub(crate) pricing: Pricing,
    pub(crate) scale_out: ScaleOut,
    pub(crate) statements: Vec<Statement>,
    pub(crate) inputs: Vec<Input>,
}

impl Prices {
    /// Every number of the file, with its source.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Sets the years that the cost covers, instead of the file's.
    pub fn set_years(&mut self, years: u32) {
        self.years = f64::from(years);
        self.set_input("years", Value::Number(self.years));
    }

    /// Sets the number of servers that share the memory blades of an enclosure, instead of the file's.
    pub fn set_blades_per_enclosure(&mut self, blades: u32) {
        self.blades = f64::from(blades);
        self.set_input("enclosure.blades", Value::Number(self.blades));
    }

    /// Sets the throughput of 1, 2, 3 ... instances on a configuration, in units of one instance on Max, instead of the
    /// file's.
    ///
    /// # Errors
    /// More values than instances, or than fit into its memory; a value that is not above 0.
    pub fn set_throughput(
        &mut self,
        name: ConfigurationName,
        throughput: Vec<f64>,
    ) -> Result<(), Error> {
        let parameter = format!("throughput of {}", name.key());
        let refused = |fault: Fault| Error::Parameter {
            parameter: parameter.clone(),
            problem: fault.problem,
            remedy: fault.remedy,
        };
        if let Some(bad) = throughput.iter().find(|it| !(**it > 0.0 && **it <= NUMBER_MAX)) {
            let fault = Fault::new("throughput", format!("is {bad}"), "write numbers above 0");
            return Err(refused(fault));
        }
        let consolidation = self.consolidation;
        let configuration = &mut self.configurations[name as usize];
        let changed = Configuration { throughput: throughput.clone(), ..configuration.clone() };
        changed.check(&consolidation).map_err(refused)?;
        *configuration = changed;
        let key = format!("configuration.{}.throughput", name.key());
        self.set_input(&key, Value::Numbers(throughput));
        Ok(())
    }

    fn set_input(&mut self, key: &str, value: Value) {
        if let Some(input) = self.inputs.iter_mut().find(|input| input.key == key) {
            *input = Input { key: key.into(), value, source: "a parameter".into(), date: None };
        }
    }

    pub(crate) fn configuration(&self, name: ConfigurationName) -> &Configuration {
        &self.configurations[name as usize]
    }
}

/// Largest number that a file may have, so that sums and products stay finite.
pub(crate) const NUMBER_MAX: f64 = 1e12;
