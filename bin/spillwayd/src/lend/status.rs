//! How lending stands, as the HTTP interface shows it.

use std::sync::PoisonError;

use spillway_api::types::{BorrowedLoan, LendDevice, LendMemory, LendPeer, LendStatus, LentLoan};
use spillway_lending::{
    Backup, BorrowedState, BorrowedView, DeviceState, DeviceView, LentState, LentView, Mode, Role,
};
use spillway_types::PAGE_BYTES;

use crate::lend::driver::Shared;

/// All of it, now.
pub fn status(shared: &Shared) -> LendStatus {
    let view = shared.machine().view(shared.now());
    let settings = &shared.settings;
    let spare = if settings.lends() { view.spare_bytes } else { 0 };
    LendStatus {
        host: view.host.to_string(),
        role: role(view.role).to_owned(),
        waiting: view.is_waiting,
        draining: view.is_draining,
        dry_run: settings.dry_run,
        mode: match settings.mode {
            Mode::FanOut => "fan-out",
            Mode::Direct => "direct",
        }
        .to_owned(),
        backup: match settings.backup {
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
        borrowed: view.borrowed.iter().map(borrowed).collect(),
        devices: devices(shared, &view.devices),
        peers: shared.peers.hosts().into_iter().map(peer).collect(),
    }
}

/// The word for a role.
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
        pressure_percent: shared.monitor.pressure().map(|pressure| pressure.some_percent),
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
            lease_ms: view.lease_ms,
        }
    };
    views.iter().map(loan).collect()
}

fn borrowed(view: &BorrowedView) -> BorrowedLoan {
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
        lease_ms: view.lease_ms,
    }
}

fn devices(shared: &Shared, views: &[DeviceView]) -> Vec<LendDevice> {
    let swaps = shared.monitor.swaps().unwrap_or_default();
    let made = shared.borrower.devices();
    let device = |view: &DeviceView| {
        let its = made.iter().find(|(id, _)| *id == view.device).map(|(_, device)| device);
        let counters = its.map(|device| device.counters()).unwrap_or_default();
        let copies = |count: usize| {
            let has = |slab: &&[Option<_>; 2]| slab.iter().flatten().count() == count;
            view.slabs.iter().filter(has).count() as u32
        };
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
            slabs_mirrored: copies(2),
            slabs_single: copies(1),
            slabs_lost: copies(0),
            fail_overs: counters.fail_overs,
            longest_stall_us: counters.longest_stall_us,
            errors: counters.errors,
            waiting_pages: counters.waiting_pages,
            waits: counters.waits,
        }
    };
    views.iter().map(device).collect()
}

fn peer(host: spillway_registry::Host) -> LendPeer {
    LendPeer {
        name: host.name,
        address: host.address.to_string(),
        rack: host.rack,
        spare_bytes: host.spare_bytes,
    }
}
