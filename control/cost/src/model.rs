//! The cost of each configuration.

use crate::prices::{Components, ConfigurationName, Module, Prices, Pricing, Subtotal, Subtotals};

/// Hours of a year.
const HOURS_PER_YEAR: f64 = 365.0 * 24.0;

/// The cost of one server, including its share of a memory blade.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    /// Hardware, part by part, USD.
    pub parts: Vec<(String, f64)>,
    pub hardware_usd: f64,
    /// Power and cooling over all years, USD.
    pub operating_usd: f64,
}

impl Cost {
    fn new(parts: Vec<(String, f64)>, operating_usd: f64) -> Self {
        let hardware_usd = parts.iter().map(|(_, usd)| usd).sum();
        Self { parts, hardware_usd, operating_usd }
    }

    pub fn total_usd(&self) -> f64 {
        self.hardware_usd + self.operating_usd
    }

    fn times(&self, count: f64) -> Self {
        let parts = self.parts.iter().map(|(name, usd)| (name.clone(), usd * count)).collect();
        Self::new(parts, self.operating_usd * count)
    }
}

/// Prices, and the resulting cost of each configuration.
#[derive(Clone, Debug)]
pub(crate) struct Model<'a> {
    pub prices: &'a Prices,
    /// Servers that share the memory blades.
    blades: f64,
    /// In the order of [`ConfigurationName::ALL`].
    costs: Vec<Cost>,
    /// All servers of the scale-out.
    pub servers: Cost,
    /// One server with a share of a blade instead.
    pub with_blade: Cost,
}

impl<'a> Model<'a> {
    /// The model with this many servers sharing the memory blades.
    pub fn new(prices: &'a Prices, blades: f64) -> Self {
        match &prices.pricing {
            Pricing::Subtotals(subtotals) => Self::of_subtotals(prices, subtotals, blades),
            Pricing::Components(components) => Self::of_components(prices, components, blades),
        }
    }

    pub fn cost(&self, name: ConfigurationName) -> &Cost {
        &self.costs[name as usize]
    }

    /// Throughput of this many instances for 1000 USD of total cost, if the configuration hosts them.
    pub fn per_cost(&self, name: ConfigurationName, instances: u32) -> Option<f64> {
        let throughput = self.prices.configuration(name).throughput_of(instances)?;
        Some(throughput / self.cost(name).total_usd() * 1000.0)
    }

    /// Memory that the enclosure's servers use on blades / capacity of the blades; `None` for subtotals.
    pub fn blades_filled(&self) -> Option<f64> {
        let Pricing::Components(components) = &self.prices.pricing else { return None };
        let all_gib = self.blades * self.prices.configuration(ConfigurationName::Dm).remote_gib;
        let count = blades_for(all_gib, components);
        Some(all_gib / (count * components.blade.capacity_gib))
    }

    fn of_subtotals(prices: &'a Prices, subtotals: &Subtotals, blades: f64) -> Self {
        let scale = Scale {
            years: prices.years / subtotals.years,
            share: 1.0 - subtotals.blade_fixed_part
                + subtotals.blade_fixed_part * subtotals.blades / blades,
        };
        let whole = |subtotal: &Subtotal, name: &str| scale.server(subtotal, name);
        let base = subtotals.configurations[ConfigurationName::Base as usize];
        let cost = |name: ConfigurationName| {
            let subtotal = &subtotals.configurations[name as usize];
            match name.has_blade() {
                true => scale.with_share(&base, subtotal),
                false => whole(subtotal, "server"),
            }
        };
        let servers = subtotals.scale_out_servers;
        let count = prices.scale_out.servers;
        let one = Subtotal {
            hardware_usd: servers.hardware_usd / count,
            total_usd: servers.total_usd / count,
        };
        Self {
            prices,
            blades,
            costs: ConfigurationName::ALL.map(cost).to_vec(),
            servers: whole(&servers, "servers"),
            with_blade: scale.with_share(&one, &subtotals.scale_out_blade),
        }
    }

    fn of_components(prices: &'a Prices, components: &Components, blades: f64) -> Self {
        let cost = |name: ConfigurationName| {
            let configuration = prices.configuration(name);
            let (local, remote) = components.modules[name as usize];
            let mut bill = Bill::default();
            for part in &components.parts {
                bill.add(&part.name, part.count, part.price_usd, part.power_w);
            }
            bill.add_modules("local memory", configuration.local_gib / local.gib, &local);
            if let Some(remote) = remote {
                let blade = &components.blade;
                let all_gib = blades * configuration.remote_gib;
                let count = blades_for(all_gib, components) / blades;
                bill.add("share of memory blades", count, blade.price_usd, blade.power_w);
                let modules = configuration.remote_gib / remote.gib;
                bill.add_modules("memory on blades", modules, &remote);
            }
            let kwh = bill.power_w / 1000.0 * HOURS_PER_YEAR * prices.years;
            Cost::new(bill.parts, kwh * components.pue * components.usd_per_kwh)
        };
        let costs = ConfigurationName::ALL.map(cost).to_vec();
        let servers = costs[ConfigurationName::Base as usize].times(prices.scale_out.servers);
        let with_blade = costs[ConfigurationName::Dm as usize].clone();
        Self { prices, blades, costs, servers, with_blade }
    }
}

/// The number of blades for this much memory, rounded up.
fn blades_for(all_gib: f64, components: &Components) -> f64 {
    (all_gib / components.blade.capacity_gib).ceil()
}

/// Scales the subtotals to the requested years and enclosure.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Requested years / years that the totals cover.
    years: f64,
    /// A server's share of a blade / the share in the subtotals.
    share: f64,
}

impl Scale {
    fn operating(&self, subtotal: &Subtotal) -> f64 {
        (subtotal.total_usd - subtotal.hardware_usd) * self.years
    }

    fn server(&self, subtotal: &Subtotal, name: &str) -> Cost {
        Cost::new(vec![(name.to_owned(), subtotal.hardware_usd)], self.operating(subtotal))
    }

    /// A server with a share of a blade; the difference to `server` is the share.
    fn with_share(&self, server: &Subtotal, whole: &Subtotal) -> Cost {
        let share_usd = (whole.hardware_usd - server.hardware_usd) * self.share;
        let parts = vec![
            ("server".to_owned(), server.hardware_usd),
            ("share of memory blades".to_owned(), share_usd),
        ];
        let operating = self.operating(server);
        let share = (self.operating(whole) - operating) * self.share;
        Cost::new(parts, operating + share)
    }
}

/// The hardware and its power.
#[derive(Debug, Default)]
struct Bill {
    parts: Vec<(String, f64)>,
    power_w: f64,
}

impl Bill {
    fn add(&mut self, name: &str, count: f64, price_usd: f64, power_w: f64) {
        self.parts.push((name.to_owned(), count * price_usd));
        self.power_w += count * power_w;
    }

    fn add_modules(&mut self, name: &str, count: f64, module: &Module) {
        self.add(name, count, module.price_usd, module.power_w);
    }
}
