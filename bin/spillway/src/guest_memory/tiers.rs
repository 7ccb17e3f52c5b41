//! The tiers of a guest: created before it connects, opened by each manager.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context;
use spillway_guest_memory::{Blade, Far};
use spillway_pager::tree::{BladeAddress, BladeSettings};
use spillway_store::{Backing, ClientConfig, Config, Dedup, DiskConfig, Kept, PoolSpec, Store};
use spillway_tiers::blade::{Carrier, Seal};

use super::plan::{BladePlan, TierPlan, Way, adopt, inherited, numbers};
use super::{Checked, GuestMemory};
use crate::blade::Blades;
use crate::refusal::Refusal;

/// Only the directory's file system limits the disk tier.
const DISK_BYTES: u64 = 1 << 46;

/// Holds the tiers for all managers.
pub struct Tiers {
    plan: TierPlan,
    _memory: Vec<OwnedFd>,
    _blades: Option<Blades>,
}

impl Tiers {
    /// Creates an empty store, and a pool on the blade.
    ///
    /// # Errors
    /// What is wrong with an option.
    pub fn open(options: &GuestMemory, checked: &Checked) -> Result<Self, Refusal> {
        let mut settings = BladeSettings::NONE;
        let blades = Blades::claim(&options.remote, &mut settings)?;
        let refuse = |error: anyhow::Error| Refusal::usage(format!("no store: {error:#}"));
        let mut plan = TierPlan {
            capacity_bytes: checked.store,
            memory: [0; 3],
            disk: None,
            disk_dir: checked.disk.clone(),
            blade: blades.is_some().then(|| blade_plan(&settings)),
        };
        let memory = make_store(&mut plan).map_err(refuse)?;
        Ok(Self { plan, _memory: memory, _blades: blades })
    }

    pub fn plan(&self) -> TierPlan {
        self.plan.clone()
    }
}

fn config(plan: &TierPlan) -> Config {
    Config {
        capacity_bytes: plan.capacity_bytes,
        backing: Backing::Memfd,
        compress: true,
        makes_room: true,
        dedup: Dedup::Off,
        disk: plan.disk_dir.clone().map(|dir| DiskConfig::new(dir, DISK_BYTES)),
    }
}

/// Creates the store and closes it. Its memory stays with the descriptors that are written to the
/// plan.
fn make_store(plan: &mut TierPlan) -> anyhow::Result<Vec<OwnedFd>> {
    let store = Store::open(config(plan))?;
    let client = store.add_client(ClientConfig::default())?;
    store.create_pool(client, PoolSpec::PERSISTENT)?;
    let kept = store.kept_descriptors().context("it can't be kept")?;
    let [one, two, three] = kept.map(|(_, file)| inherited(file));
    let memory = [one?, two?, three?];
    plan.memory = numbers(&memory);
    let mut held = Vec::from(memory);
    if let Some(disk) = store.kept_disk_descriptors() {
        let [one, two] = disk.map(|(_, file)| inherited(file));
        let disk = [one?, two?];
        plan.disk = Some(numbers(&disk));
        held.extend(disk);
    }
    Ok(held)
}

fn blade_plan(settings: &BladeSettings) -> BladePlan {
    let way = |to: &BladeAddress| {
        Some(Way {
            address: to.address.get()?.to_owned(),
            secret: to.secret.get().map(str::to_owned),
            identity: to.pool_identity,
        })
    };
    BladePlan {
        ways: [&settings.blade, &settings.mirror].into_iter().filter_map(way).collect(),
        timeout_ns: settings.timeout_ns,
        loss_timeout_ns: settings.loss_timeout_ns,
        encrypt: settings.encrypt != 0,
        share: settings.share != 0,
        key: settings.key,
    }
}

/// Opens the tiers of a plan. The previous manager must have ended.
///
/// # Errors
/// Which of them can't be opened.
pub fn reopen(plan: Option<&TierPlan>) -> anyhow::Result<Far> {
    let Some(plan) = plan else { return Ok(Far::default()) };
    let [one, two, three] = plan.memory.map(adopt);
    let disk = match plan.disk.map(|numbers| numbers.map(adopt)) {
        Some([file, sums]) => Some([file?, sums?]),
        None => None,
    };
    let kept = Kept { memory: [one?, two?, three?], disk };
    let store = Store::reopen(config(plan), kept).context("can't reopen the store")?;
    let client = store.clients().first().context("the store has no client")?.id;
    let pool = store.pools(client)?.first().context("the store has no pool")?.id;
    let blade = plan.blade.as_ref().map(open_blade).transpose()?;
    Ok(Far::new(Some((store, pool)), blade))
}

fn open_blade(plan: &BladePlan) -> anyhow::Result<Blade> {
    let loss_timeout = Duration::from_nanos(plan.loss_timeout_ns);
    let seal = Seal::of(plan.encrypt, plan.share, &plan.key);
    Ok(Blade::new(seal, carriers(plan)?).with_loss_timeout(loss_timeout))
}

/// Transports to the blade and its mirror.
pub fn carriers(plan: &BladePlan) -> anyhow::Result<Vec<Box<dyn Carrier>>> {
    let timeout = Duration::from_nanos(plan.timeout_ns);
    let carrier = |way: &Way| {
        let identity = u128::from_ne_bytes(way.identity);
        Ok(spillway_blade::carrier(&way.address, way.secret.as_deref(), identity, timeout)?)
    };
    plan.ways.iter().map(carrier).collect()
}
