//! The status of lending for the HTTP interface.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use spillway_api::types::{BorrowedLoan, LendDevice, LendMemory, LendPeer, LendStatus, LentLoan};
use spillway_lending::{
    Backup, BorrowedState, BorrowedView, CopyLocation, DeviceState, DeviceView, Health, HostId,
    LentState, LentView, LoanId, Mode, Role, View,
};
use spillway_registry::Host;
use spillway_types::PAGE_BYTES;

use crate::asks::hosts_with_loans;
use crate::shared::Shared;

/// The present status.
pub fn status(shared: &Shared) -> LendStatus {
    let view = shared.machine().view(shared.now());
    let settings = &shared.settings;
    let spare = if settings.lends { view.spare_bytes } else { 0 };
    LendStatus {
        host: view.host.to_string(),
        role: role(view.role).to_owned(),
        waiting: view.is_waiting,
        draining: view.is_draining,
        dry_run: settings.dry_run,
        helper: shared.kernel.helper().name().to_owned(),
        mode: match settings.machine.mode {
            Mode::FanOut => "fan-out",
            Mode::Direct => "direct",
        }
        .to_owned(),
        backup: match settings.machine.backup {
            Backup::None => "none",
            Backup::Mirror => "mirror",
            Backup::File => "file",
        }
        .to_owned(),
        spare_bytes: shared.lender.bounded(spare, view.lent_bytes),
        lent_bytes: view.lent_bytes,
        borrowed_bytes: view.borrowed_bytes,
        memory: memory(shared),
        lent: lent(shared, &view.lent),
        borrowed: view.borrowed.iter().map(|loan| borrowed(shared, loan)).collect(),
        devices: devices(shared, &view),
        peers: peers(shared),
    }
}

/// The name of a role.
pub const fn role(role: Role) -> &'static str {
    match role {
        Role::Neutral => "neutral",
        Role::Borrower => "borrower",
        Role::Lender => "lender",
        Role::Both => "both",
    }
}

fn memory(shared: &Shared) -> LendMemory {
    let memory = *shared.memory.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = &shared.settings;
    LendMemory {
        total_bytes: memory.total,
        used_bytes: shared.used_bytes(&memory),
        swap_used_bytes: memory.swap_total.saturating_sub(memory.swap_free),
        upper_bytes: settings.upper.of(memory.total),
        lower_bytes: settings.lower.of(memory.total),
        pressure_percent: shared.kernel.pressure().map(|pressure| pressure.some_percent),
    }
}

fn lent(shared: &Shared, views: &[LentView]) -> Vec<LentLoan> {
    let loans = shared.lender.loans();
    let loan = |view: &LentView| {
        let is_it = |it: &&spillway_directory::LoanView| {
            it.loan.number == view.loan.number && it.loan.borrower == view.loan.borrower.as_str()
        };
        LentLoan {
            loan: format!("{:016x}", view.loan.number),
            borrower: view.loan.borrower.to_string(),
            bytes: view.bytes,
            used_bytes: loans.iter().find(is_it).map_or(0, |it| it.pages * PAGE_BYTES as u64),
            state: match view.state {
                LentState::Reserving => "reserving",
                LentState::Lent => "lent",
                LentState::Recalled => "recalled",
                LentState::Releasing => "releasing",
            }
            .to_owned(),
            health: shared.health.standing(&view.loan.borrower).health.name().to_owned(),
            lease_ms: view.lease_ms,
        }
    };
    views.iter().map(loan).collect()
}

fn borrowed(shared: &Shared, view: &BorrowedView) -> BorrowedLoan {
    BorrowedLoan {
        loan: format!("{:016x}", view.loan.number),
        lender: view.lender.to_string(),
        device: view.device.0,
        bytes: view.bytes,
        state: match view.state {
            BorrowedState::Asked => "asked",
            BorrowedState::Held => "held",
            BorrowedState::Recalled => "recalled",
        }
        .to_owned(),
        health: shared.health.standing(&view.lender).health.name().to_owned(),
        lease_ms: view.lease_ms,
    }
}

/// The health of the lender of each loan that this host holds.
type Lenders = BTreeMap<LoanId, Health>;

/// The health of a copy's holder.
fn health_of(lenders: &Lenders, place: &CopyLocation) -> Health {
    match place {
        CopyLocation::Lender { loan, .. } => lenders.get(loan).copied().unwrap_or_default(),
        CopyLocation::File => Health::Ok,
    }
}

/// A device's slabs, by their copies that are in reach and have every page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Slabs {
    mirrored: u32,
    single: u32,
    unreachable: u32,
    lost: u32,
}

impl Slabs {
    /// Counts them. `is_behind` tells of a slab which of its copies have missed writes.
    fn count(
        slabs: &[[Option<CopyLocation>; 2]],
        lenders: &Lenders,
        is_behind: impl Fn(u32) -> [bool; 2],
    ) -> Self {
        let mut count = Self::default();
        for (number, copies) in (0..).zip(slabs) {
            let is_reached = |place: &CopyLocation| !health_of(lenders, place).is_out_of_reach();
            let reached = copies.each_ref().map(|place| place.as_ref().is_some_and(is_reached));
            let behind = is_behind(number);
            let whole = (0..2).filter(|copy| reached[*copy] && !behind[*copy]).count();
            let its = match (whole, copies) {
                (_, [None, None]) => &mut count.lost,
                (2, _) => &mut count.mirrored,
                (1, _) => &mut count.single,
                // Each has what the other one has missed.
                _ if reached == [true, true] => &mut count.single,
                _ => &mut count.unreachable,
            };
            *its += 1;
        }
        count
    }
}

fn devices(shared: &Shared, view: &View) -> Vec<LendDevice> {
    let health = |loan: &BorrowedView| shared.health.standing(&loan.lender).health;
    let lenders = view.borrowed.iter().map(|loan| (loan.loan.clone(), health(loan))).collect();
    let swaps = shared.kernel.swaps().unwrap_or_default();
    let made = shared.borrower.devices();
    let device = |view: &DeviceView| {
        let its = made.iter().find(|(id, _)| *id == view.device).map(|(_, device)| device);
        let counters = its.map(|device| device.counters()).unwrap_or_default();
        let is_behind = |slab| its.map(|device| device.is_behind(slab)).unwrap_or_default();
        let slabs = Slabs::count(&view.slabs, &lenders, is_behind);
        let places = view.slabs.iter().flatten().flatten();
        let worst = places.map(|place| health_of(&lenders, place)).max();
        LendDevice {
            device: view.device.0,
            state: match view.state {
                DeviceState::Gathering => "gathering",
                DeviceState::Attaching => "attaching",
                DeviceState::Attached => "attached",
                DeviceState::Detaching => "detaching",
            }
            .to_owned(),
            path: its.map(|device| device.path()).unwrap_or_default(),
            bytes: view.slab_bytes * view.slabs.len() as u64,
            used_bytes: its.map_or(0, |device| device.used_bytes(&swaps)),
            kept: view.is_kept,
            health: worst.unwrap_or(Health::Ok).name().to_owned(),
            slabs_mirrored: slabs.mirrored,
            slabs_single: slabs.single,
            slabs_unreachable: slabs.unreachable,
            slabs_lost: slabs.lost,
            fail_overs: counters.fail_overs,
            longest_stall_us: counters.longest_stall_us,
            errors: counters.errors,
            waiting_pages: counters.waiting_pages,
            waits: counters.waits,
            hedged_pages: counters.hedged_pages,
            behind_pages: counters.behind_pages,
            mended_pages: counters.mended_pages,
        }
    };
    view.devices.iter().map(device).collect()
}

/// The hosts of the registry, and hosts with loans that it has forgotten.
fn peers(shared: &Shared) -> Vec<LendPeer> {
    let mut hosts = shared.peers.hosts();
    for host in hosts_with_loans(shared) {
        let is_listed = hosts.iter().any(|listed| listed.name == host.as_str());
        if let Some(address) = shared.peers.address(&host).filter(|_| !is_listed) {
            let (name, rack) = (host.as_str().to_owned(), String::new());
            hosts.push(Host { name, address, rack, spare_bytes: 0 });
        }
    }
    hosts.into_iter().map(|host| peer(shared, host)).collect()
}

fn peer(shared: &Shared, host: Host) -> LendPeer {
    let standing = HostId::new(&host.name).map(|name| shared.health.standing(&name));
    let standing = standing.unwrap_or_default();
    LendPeer {
        name: host.name,
        address: host.address.to_string(),
        rack: host.rack,
        spare_bytes: host.spare_bytes,
        health: standing.health.name().to_owned(),
        reason: standing.reason,
        health_s: standing.lasted.as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_out_of_reach_does_not_count_and_is_not_lost() {
        let loan = |number| LoanId { borrower: HostId::new("a.test").unwrap(), number };
        let place = |number| Some(CopyLocation::Lender { loan: loan(number), index: 0 });
        let lenders: Lenders = [
            (1, Health::Ok),
            (2, Health::Unreachable),
            (3, Health::Refused),
            (4, Health::Slow),
            (5, Health::Unknown),
        ]
        .map(|(number, health)| (loan(number), health))
        .into();
        let slabs = [
            [place(1), place(4)],
            [place(5), Some(CopyLocation::File)],
            [place(1), place(2)],
            [place(3), Some(CopyLocation::File)],
            [place(4), None],
            [place(2), place(3)],
            [None, place(2)],
            [None, None],
        ];
        let counted = Slabs::count(&slabs, &lenders, |_| [false, false]);
        assert_eq!(counted, Slabs { mirrored: 2, single: 3, unreachable: 2, lost: 1 });
    }

    #[test]
    fn a_copy_that_has_missed_writes_does_not_count() {
        let loan = |number| LoanId { borrower: HostId::new("a.test").unwrap(), number };
        let place = |number| Some(CopyLocation::Lender { loan: loan(number), index: 0 });
        let lenders: Lenders = [(1, Health::Ok), (2, Health::Slow), (3, Health::Unreachable)]
            .map(|(number, health)| (loan(number), health))
            .into();
        let counted = |copies, is_behind| Slabs::count(&[copies], &lenders, |_| is_behind);
        let single = Slabs { single: 1, ..Slabs::default() };
        let unreachable = Slabs { unreachable: 1, ..Slabs::default() };
        assert_eq!(counted([place(1), place(2)], [true, false]), single);
        assert_eq!(counted([place(1), place(2)], [false, true]), single);
        assert_eq!(counted([place(1), place(2)], [true, true]), single, "together they have all");
        assert_eq!(counted([place(1), place(3)], [false, true]), single);
        assert_eq!(counted([place(1), place(3)], [true, false]), unreachable);
        let one_slab = |slab| [false, slab == 1];
        let slabs = [[place(1), place(2)], [place(1), place(2)]];
        let counted = Slabs::count(&slabs, &lenders, one_slab);
        assert_eq!(counted, Slabs { mirrored: 1, single: 1, ..Slabs::default() });
    }
}
