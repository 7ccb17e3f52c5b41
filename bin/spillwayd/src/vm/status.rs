//! The guests' status for the HTTP interface.

use spillway_api::types::{VmAgent, VmList, VmOutcome, VmSections, VmStatus};
use spillway_guests::agent::Profile;
use spillway_guests::{End, Outcome};
use spillway_sections::{Backing, GuestUsage, Pool};

use crate::vm::shared::Shared;

/// The pool and all guests.
pub fn list<'a>(pool: &Pool, dir: &str, vms: impl Iterator<Item = &'a Shared>) -> VmList {
    let usage = pool.usage();
    let backing = match pool.backing() {
        Backing::Tmpfs => "tmpfs",
        Backing::Hugetlbfs { .. } => "hugetlbfs",
    };
    VmList {
        sections: VmSections {
            capacity_bytes: usage.capacity_bytes,
            used_bytes: usage.used_bytes,
            free_bytes: usage.free_bytes,
            lent_bytes: usage.lent_bytes,
            section_bytes: pool.section_bytes(),
            dir: dir.to_owned(),
            backing: backing.to_owned(),
        },
        vms: vms.map(|vm| status(vm, usage.guests.get(&vm.name))).collect(),
    }
}

fn status(vm: &Shared, usage: Option<&GuestUsage>) -> VmStatus {
    let guest = vm.guest();
    let (view, settings) = (guest.view(), guest.settings().clone());
    drop(guest);
    let notes = vm.notes().clone();
    let agent = view.status.map(|status| VmAgent {
        kernel: view.kernel.clone().unwrap_or_default(),
        total_bytes: status.total_bytes,
        available_bytes: status.available_bytes,
        kernel_free_bytes: status.kernel_free_bytes,
        cached_bytes: status.cached_bytes,
        swap_used_bytes: status.swap_used_bytes,
        stalled_us: view.stalled_us,
        refaults: view.refaults,
        kills: status.kills,
    });
    VmStatus {
        name: vm.name.clone(),
        state: match view.size_bytes {
            Some(_) => "attached",
            None if notes.is_absent => "not running",
            None => "out of reach",
        }
        .to_owned(),
        problem: notes.problem,
        size_bytes: view.size_bytes,
        boot_bytes: view.boot_bytes,
        set_aside_bytes: view.set_aside_bytes,
        ready_bytes: usage.map_or(0, GuestUsage::ready_bytes),
        least_bytes: settings.least_bytes,
        most_bytes: settings.most_bytes,
        ceiling_bytes: view.ceiling_bytes,
        aim_bytes: view.aim_bytes,
        wanted_bytes: view.wanted_bytes,
        target_bytes: notes.target_bytes,
        auto: settings.auto,
        profile: match settings.profile {
            Profile::ReturnsAll => "returns-all",
            Profile::GrowsFar => "grows-far",
        }
        .to_owned(),
        agent,
        kept_bytes: view.kept_bytes,
        ignored_messages: view.ignored_messages + notes.garbled,
        resizes_reached: notes.reached,
        resizes_failed: notes.failed,
        resizes_refused: notes.refused,
    }
}

/// How an order ended; an error means that it changed nothing.
pub fn outcome(outcome: Outcome) -> Result<VmOutcome, String> {
    let (end, why) = match outcome.end {
        End::Refused(why) => return Err(why),
        End::Reached => ("reached", None),
        End::Partial => ("partial", Some("the guest did not reach the size in time".to_owned())),
        End::RolledBack => {
            ("rolled back", Some("the guest did not reach the size in time".to_owned()))
        }
        End::Superseded => ("superseded", Some("a newer order took its place".to_owned())),
        End::Lost(why) => ("lost", Some(why)),
    };
    Ok(VmOutcome {
        end: end.to_owned(),
        why,
        from_bytes: outcome.from_bytes,
        aim_bytes: outcome.aim_bytes,
        size_bytes: outcome.size_bytes,
        reserve_us: outcome.times.reserve_us,
        offline_us: outcome.times.offline_us,
        guest_us: outcome.times.guest_us,
        release_us: outcome.times.release_us,
        total_us: outcome.times.total_us,
    })
}
