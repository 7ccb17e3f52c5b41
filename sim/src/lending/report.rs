//! The placement of slabs among a thousand hosts.

use spillway_lending::{Backup, Role, Settings};

use super::host::SLAB_BYTES;
use super::world::{What, World};
use super::{Options, Summary, Violation};
use crate::random::Random;

/// The result of a large world without faults.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Hosts.
    pub hosts: usize,
    /// Virtual seconds.
    pub seconds: u64,
    /// Counts of what happened.
    pub summary: Summary,
    /// Hosts that borrow at the end.
    pub borrowers: usize,
    /// Hosts that lend at the end.
    pub lenders: usize,
    /// For each host that lends or could: the lent percentage of its lendable memory; sorted.
    pub lent_percent: Vec<u64>,
    /// For each borrower, the number of its lenders; sorted.
    pub lenders_each: Vec<u64>,
    /// Mirrored slabs.
    pub mirrored: u64,
    /// Mirrored slabs whose copies are in two racks.
    pub apart: u64,
}

/// Runs `hosts` hosts in racks of 20 for ten virtual minutes, mirrored, without faults. At any time about a fifth of
/// them want more memory than they have.
///
/// # Errors
/// The first violation.
pub fn placement(seed: u64, hosts: usize) -> Result<Placement, Violation> {
    const SECONDS: u64 = 600;
    let settings =
        Settings { slab_bytes: SLAB_BYTES, backup: Backup::Mirror, ..Settings::default() };
    let mut world = World::new(Random::new(seed), settings, &Options::default());
    for at in 0..hosts {
        let slabs = world.random.between(256, 1_024);
        let percent = if world.random.one_in(5) { 95 } else { 30 };
        world.add_host(slabs, at as u64 / 20, slabs * SLAB_BYTES / 100 * percent);
    }
    world.schedule(20_000_000, 0, None, What::Demand);
    while world.advance(SECONDS * 1_000_000)? {}
    let mut placement = Placement {
        hosts,
        seconds: SECONDS,
        summary: world.summary.clone(),
        borrowers: 0,
        lenders: 0,
        lent_percent: Vec::new(),
        lenders_each: Vec::new(),
        mirrored: 0,
        apart: 0,
    };
    for host in &world.hosts {
        let Some(machine) = &host.machine else { continue };
        match machine.role() {
            Role::Borrower => placement.borrowers += 1,
            Role::Lender => placement.lenders += 1,
            Role::Neutral | Role::Both => {}
        }
        let lent = host.lent_slabs();
        let could = lent + machine.spare_bytes() / SLAB_BYTES;
        if let Some(percent) = (lent * 100).checked_div(could) {
            placement.lent_percent.push(percent);
        }
        let mut drawn: Vec<usize> = Vec::new();
        for device in host.devices.values() {
            drawn.extend(device.grants.values().map(|grant| grant.lender));
            for slab in &device.slabs {
                let racks: Vec<&str> = slab
                    .copies
                    .iter()
                    .flatten()
                    .filter_map(|place| match place {
                        spillway_lending::CopyLocation::Lender { loan, .. } => {
                            device.grants.get(loan)
                        }
                        spillway_lending::CopyLocation::File => None,
                    })
                    .map(|grant| world.hosts[grant.lender].rack.as_str())
                    .collect();
                if let [one, other] = racks[..] {
                    placement.mirrored += 1;
                    placement.apart += u64::from(one != other);
                }
            }
        }
        drawn.sort_unstable();
        drawn.dedup();
        if !drawn.is_empty() {
            placement.lenders_each.push(drawn.len() as u64);
        }
    }
    placement.lent_percent.sort_unstable();
    placement.lenders_each.sort_unstable();
    Ok(placement)
}
