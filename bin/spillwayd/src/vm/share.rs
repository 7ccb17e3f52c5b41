//! Divides the pool among guests: computes the policy's targets from the guests' activity, and sizes
//! from the targets.

use std::time::{Duration, Instant};

use spillway_guests::{Holder, Step, View, Who, share, working_bytes};
use spillway_manager::{ManagedClient, Policy};
use spillway_sections::Pool;
use spillway_types::{ClientId, PAGE_BYTES, Statistics};

use crate::vm::handle::{Handle, Sharing};
use crate::vm::shared::{Shared, Wanted, Wish};

/// A guest that stalls for more of its time than this wants memory, per mille.
const STALLED_PERMILLE: u64 = 20;
/// Refaulted pages in an interval above which a guest wants memory: 4 MiB.
const REFAULTS: u64 = 1024;

/// Time between two computations of sizes while a guest waits.
const PAUSE: Duration = Duration::from_millis(100);

/// Processes the end of an interval of this length: new targets, and sizes from them.
pub fn interval(handle: &Handle, policy: Policy, interval: Duration) {
    let mut sharing = handle.sharing();
    if sharing.manager.policy() != policy {
        sharing.manager.set_policy(policy);
    }
    let section = handle.pool().section_bytes();
    let vms = views(handle);
    set_targets(&mut sharing, handle, &vms, section, interval);
    drop(sharing);
    share_out(handle, &vms);
}

/// Waits until a guest needs memory that others have, which is not delayed until the end of an interval. Returns
/// repeatedly while the need lasts, with a pause in which the other guests begin to return memory.
pub async fn hunger(handle: Option<&Handle>) {
    match handle {
        Some(handle) => {
            let shared_at = handle.sharing().shared_at;
            tokio::time::sleep_until((shared_at + PAUSE).into()).await;
            handle.hunger().await;
        }
        None => std::future::pending().await,
    }
}

/// Computes sizes from the guests' present need and the targets of the last interval.
pub fn at_once(handle: &Handle) {
    share_out(handle, &views(handle));
}

fn views(handle: &Handle) -> Vec<(&Shared, View)> {
    handle.vms().map(|vm| (vm, vm.guest().view())).collect()
}

fn share_out(handle: &Handle, vms: &[(&Shared, View)]) {
    handle.sharing().shared_at = Instant::now();
    let holders: Vec<_> = vms.iter().map(|(vm, view)| holder(vm, view)).collect();
    for step in steps(handle.pool(), &holders) {
        handle.wish(
            step.holder,
            Wish::Size {
                wanted: Wanted::To(step.to_bytes),
                who: Who::Manager,
                roll_back: false,
                force: false,
                told: None,
            },
        );
    }
}

/// Which sizes to change. Lent memory counts as free for guests, because it returns when a guest
/// takes it.
fn steps(pool: &Pool, holders: &[Holder]) -> Vec<Step> {
    share(pool.section_bytes(), pool.usage().free_bytes, holders)
}

/// Writes the policy's targets to each guest's record.
fn set_targets(
    sharing: &mut Sharing,
    handle: &Handle,
    vms: &[(&Shared, View)],
    section: u64,
    interval: Duration,
) {
    let total = handle.pool().capacity_bytes() / section;
    sharing.manager.set_interval_us(interval.as_micros() as u64);
    let mut clients = Vec::new();
    for (at, (vm, view)) in vms.iter().enumerate() {
        let guest = vm.guest();
        let (least, most) = (guest.settings().least_bytes, guest.settings().most_bytes);
        let is_pressed = is_pressed(view, guest.settings().interval_ms);
        drop(guest);
        let target_bytes = vm.notes().target_bytes;
        let counters = sharing.counters.entry(at).or_default();
        count(counters, view, is_pressed, section, target_bytes);
        clients.push(ManagedClient {
            cap_pages: most / section,
            floor_pages: least.div_ceil(section),
            weight: vm.notes().weight,
            ..ManagedClient::new(ClientId(at as u64 + 1), *counters)
        });
    }
    for change in sharing.manager.interval(total, &clients) {
        if let Some((vm, _)) = vms.get(change.id.0 as usize - 1) {
            vm.notes().target_bytes = change.target_pages.saturating_mul(section);
        }
    }
}

/// A guest's activity in the interval, in the policies' terms.
fn count(
    counters: &mut Statistics,
    view: &View,
    is_pressed: bool,
    section: u64,
    target_bytes: u64,
) {
    let size = view.size_bytes.unwrap_or_default();
    counters.used_pages = size.div_ceil(section);
    counters.target_pages = target_bytes / section;
    counters.puts += 1;
    counters.puts_stored += 1;
    if is_pressed || view.wanted_bytes > 0 {
        let wanted = view.wanted_bytes.div_ceil(section).max(1);
        counters.puts += wanted;
        counters.puts_refused_at_target += wanted;
    }
    let refaults = (view.refaults * PAGE_BYTES as u64).div_ceil(section);
    counters.gets += refaults;
    counters.misses += refaults;
}

pub(super) fn is_pressed(view: &View, interval_ms: u32) -> bool {
    // Microseconds in milliseconds are per mille.
    let stalled_permille = view.stalled_us / u64::from(interval_ms.max(1));
    stalled_permille > STALLED_PERMILLE || view.refaults > REFAULTS
}

pub(super) fn holder(vm: &Shared, view: &View) -> Holder {
    let guest = vm.guest();
    let settings = guest.settings();
    let size_bytes = view.size_bytes.unwrap_or_default();
    let reserve = settings.reserve_bytes;
    let status = view.status.as_ref();
    Holder {
        size_bytes,
        least_bytes: settings.least_bytes.max(view.boot_bytes),
        most_bytes: view.ceiling_bytes,
        target_bytes: vm.notes().target_bytes,
        working_bytes: status.map(|status| working_bytes(view.status_size_bytes, status, reserve)),
        is_pressed: is_pressed(view, settings.interval_ms),
        wanted_bytes: view.wanted_bytes,
        is_fixed: !settings.auto
            || view.size_bytes.is_none()
            || (view.aim_bytes.is_some() && view.wanted_bytes == 0)
            || view.kept_bytes > 0,
    }
}

#[cfg(test)]
mod tests {
    use spillway_sections::{GuestFile, Settings};

    use super::*;

    #[test]
    fn a_guest_in_need_gets_what_is_lent() {
        const S: u64 = 2 << 20;
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = folder.path().join("pool");
        let settings = Settings { dir, capacity_bytes: 8 * S, section_bytes: S, group: None };
        let pool = Pool::open(&settings).unwrap();
        pool.create("a", GuestFile::Boot, 4 * S).unwrap();
        let needy = Holder {
            size_bytes: 4 * S,
            least_bytes: S,
            most_bytes: 8 * S,
            target_bytes: 8 * S,
            working_bytes: Some(4 * S),
            is_pressed: true,
            wanted_bytes: 0,
            is_fixed: false,
        };
        let idle = Holder { is_pressed: false, working_bytes: Some(S), ..needy };
        let grows = [Step { holder: 0, to_bytes: 5 * S }];
        assert_eq!(steps(&pool, &[needy, idle]), grows);
        assert_eq!(pool.lend(8 * S), 4 * S);
        assert_eq!(steps(&pool, &[needy, idle]), grows, "nobody shrinks for it");
    }
}
