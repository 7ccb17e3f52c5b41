//! The invariants that hold after every step.

use core::time::Duration;
use std::collections::BTreeMap;

use spillway_lending::{
    BorrowedState, CopyLocation, DeviceState, DeviceView, LoanId, Role, Roles, Settings, Shareable,
};

use super::Violation;
use super::clock::Clock;
use super::host::{Difference, SLAB_BYTES, Slab};
use super::world::World;

impl World {
    /// Checks a host after a step.
    pub fn check(&self, at: usize) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let Some(machine) = &host.machine else { return Ok(()) };
        if self.settings.roles == Roles::Single && machine.role() == Role::Both {
            return Err(self.violation(at, "two roles at once".into()));
        }
        self.check_reserve(at)?;
        self.check_claims(at)
    }

    /// Lending never leaves a lender less for itself than its reserve.
    fn check_reserve(&self, at: usize) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let lent_bytes = host.lent_slabs() * SLAB_BYTES;
        let reserve_bytes = match self.settings.shareable {
            Shareable::Reserve(bytes) => bytes,
            Shareable::Dynamic => {
                host.total_bytes - Settings::share(host.total_bytes, self.settings.upper_permille)
            }
        };
        if lent_bytes + reserve_bytes > host.total_bytes {
            let what = format!(
                "below its reserve: {lent_bytes} bytes lent of {}, reserve {reserve_bytes}",
                host.total_bytes
            );
            return Err(self.violation(at, what));
        }
        Ok(())
    }

    /// Even if all lent memory is used in full, a grant leaves the host below its upper threshold, with what its own
    /// programs had at the last reading. The machine does not know the changes since then yet.
    pub fn check_grant(&self, at: usize, slabs: u32) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let lent_bytes = (host.lent_slabs() + u64::from(slabs)) * SLAB_BYTES;
        let own_bytes = host.reading.used_bytes - host.reading.lent_used_bytes;
        let upper_bytes = Settings::share(host.total_bytes, self.settings.upper_permille);
        if own_bytes + lent_bytes > upper_bytes {
            let what = format!("a grant of {slabs} slabs takes it above its upper threshold");
            return Err(self.violation(at, what));
        }
        Ok(())
    }

    /// A borrower owns the memory that it uses: its lender has not taken it back, unless it has lost it.
    pub fn check_claims(&self, at: usize) -> Result<(), Violation> {
        let host = &self.hosts[at];
        if !host.is_up() || host.paused_until_us > self.now_us {
            return Ok(());
        }
        for (id, device) in &host.devices {
            for (slab, its) in device.slabs.iter().enumerate() {
                let mut lenders = [None; 2];
                for (copy, place) in its.copies.iter().enumerate() {
                    let Some(CopyLocation::Lender { loan, index }) = place else { continue };
                    let Some(grant) = device.grants.get(loan) else {
                        let what =
                            format!("slab {slab} of device {id} lies in a loan that is over");
                        return Err(self.violation(at, what));
                    };
                    lenders[copy] = Some(grant.lender);
                    let lender = &self.hosts[grant.lender];
                    let is_live =
                        lender.pools.get(loan).is_some_and(|pool| pool.identity == grant.identity);
                    if is_live || lender.gone.contains(&grant.identity) {
                        continue;
                    }
                    let block = grant.blocks.get(*index as usize).copied();
                    let owner = block.and_then(|block| lender.blocks[block]);
                    let what = match owner {
                        Some(other) => format!("a block with two owners: {loan} and pool {other}"),
                        None => format!("a block of {loan} was freed while its borrower uses it"),
                    };
                    return Err(self.violation(at, what));
                }
                if lenders[0].is_some() && lenders[0] == lenders[1] {
                    let what = format!("both copies of slab {slab} of device {id} on one host");
                    return Err(self.violation(at, what));
                }
            }
        }
        Ok(())
    }

    /// Checks that no borrower uses a loan that is being released.
    pub fn check_claims_on(&self, loan: &LoanId) -> Result<(), Violation> {
        match self.names.get(&loan.borrower) {
            Some(borrower) => self.check_claims(*borrower),
            None => Ok(()),
        }
    }

    /// Every request ends in time: it is granted, refused or given up.
    pub fn check_waits(&mut self, at: usize) -> Result<(), Violation> {
        let now_us = self.now_us;
        let settings = &self.settings;
        let answer_us = Clock::longest_us(settings.answer_timeout.as_micros() as u64) + 10_000;
        let gather_us = answer_us * u64::from(settings.rounds_max);
        let Some(machine) = &self.hosts[at].machine else { return Ok(()) };
        let view = machine.view(self.now(at));
        let asked = view.borrowed.iter().filter(|loan| loan.state == BorrowedState::Asked);
        let asked: Vec<u64> = asked.map(|loan| loan.loan.number).collect();
        let gathering = view.devices.iter().filter(|device| device.state == DeviceState::Gathering);
        let gathering: Vec<_> = gathering.map(|device| device.device).collect();
        let host = &mut self.hosts[at];
        let host_paused_us = host.paused_until_us;
        host.asked.retain(|number, _| asked.contains(number));
        host.gathering.retain(|device, _| gathering.contains(device));
        let asked = asked.iter().map(|number| *host.asked.entry(*number).or_insert(now_us));
        // The time while the host was stopped does not count.
        let waited_us = |since: u64| now_us.saturating_sub(since.max(host_paused_us));
        let late_asked = asked.filter(|since| waited_us(*since) > answer_us).count();
        let gathering = gathering.iter().map(|id| *host.gathering.entry(*id).or_insert(now_us));
        let late_gathering = gathering.filter(|since| waited_us(*since) > gather_us).count();
        if late_asked + late_gathering != 0 {
            return Err(self.violation(at, "a request does not end".into()));
        }
        self.check_recalls(at)
    }

    /// A recalled loan is back by its deadline.
    fn check_recalls(&mut self, at: usize) -> Result<(), Violation> {
        let now_us = self.now_us;
        let host = &mut self.hosts[at];
        host.recalls.retain(|loan, _| host.pools.contains_key(loan));
        let paused_us = host.paused_until_us;
        let is_late = |at_us: u64| now_us > at_us.max(paused_us) + 10_000;
        match host.recalls.iter().find(|(_, at_us)| is_late(**at_us)) {
            Some((loan, _)) => {
                let what = format!("{loan} was not back by the deadline of its recall");
                Err(self.violation(at, what))
            }
            None => Ok(()),
        }
    }

    /// What the machine has as the place of a copy is what the data plane has. A report takes up to a second.
    pub fn check_view(&mut self, at: usize) -> Result<(), Violation> {
        let now_us = self.now_us;
        let Some(machine) = &self.hosts[at].machine else { return Ok(()) };
        let views = machine.view(self.now(at)).devices;
        let mut differences = BTreeMap::new();
        for view in views.iter().filter(|view| view.state == DeviceState::Attached) {
            let Some(device) = self.hosts[at].devices.get(&view.device) else { continue };
            for (slab, (known, its)) in (0..).zip(view.slabs.iter().zip(&device.slabs)) {
                for copy in (0..2).filter(|copy| known[*copy] != its.copies[*copy]) {
                    let (machine, plane) = (known[copy].clone(), its.copies[copy].clone());
                    let new = Difference { machine, plane, since_us: now_us };
                    differences.insert((view.device, slab, copy), new);
                }
            }
        }
        let host = &mut self.hosts[at];
        for (place, difference) in &mut differences {
            if let Some(earlier) = host.differences.get(place)
                && (&earlier.machine, &earlier.plane) == (&difference.machine, &difference.plane)
            {
                difference.since_us = earlier.since_us.max(host.paused_until_us);
            }
        }
        host.differences = differences;
        let is_old = |it: &&Difference| now_us - it.since_us >= 2_000_000;
        match host.differences.values().find(is_old) {
            Some(it) => {
                let what = format!("machine and data plane differ about a copy for long: {it:?}");
                Err(self.violation(at, what))
            }
            None => Ok(()),
        }
    }

    /// Each slab that lacks a copy has it back within a bound of calm time.
    pub fn check_copies(&mut self, at: usize) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let is_disturbed = host.is_cut(self.now_us) || host.is_slow;
        let is_lossy = self.loss_permille != 0 || self.late_permille != 0;
        // Without room in the file, lenders may have none.
        let has_file = host.has_file_room(self.settings.file_slabs);
        let is_calm = !is_disturbed && !is_lossy && has_file;
        let (wanted, spare_slabs) = (self.copies_wanted() as usize, self.spare_slabs(at));
        let limit_s = self.repair_limit().as_secs();
        let Some(machine) = &host.machine else { return Ok(()) };
        let is_attached = |view: &DeviceView| view.state == DeviceState::Attached;
        let views = machine.view(self.now(at)).devices;
        let attached: Vec<_> =
            views.into_iter().filter(is_attached).map(|view| view.device).collect();
        let mut late = None;
        for (id, device) in &mut self.hosts[at].devices {
            let repairs = is_calm && attached.contains(id) && !device.is_leaving;
            let is_short = |its: &Slab| its.copies.iter().flatten().count() < wanted;
            let others_lend =
                spare_slabs >= device.slabs.iter().filter(|its| is_short(its)).count();
            for (slab, its) in device.slabs.iter_mut().enumerate() {
                // Two copies in one file are one.
                let has_room = others_lend || !its.copies.contains(&Some(CopyLocation::File));
                its.short_s =
                    if is_short(its) && repairs && has_room { its.short_s + 1 } else { 0 };
                if its.short_s > limit_s {
                    late = Some(format!(
                        "slab {slab} of device {id} lacks a copy for {} s",
                        its.short_s
                    ));
                }
            }
        }
        late.map_or(Ok(()), |what| Err(self.violation(at, what)))
    }

    /// Slabs that the other hosts that can be reached would lend.
    fn spare_slabs(&self, at: usize) -> usize {
        let others = self.hosts.iter().enumerate().filter(|(other, _)| *other != at);
        let reachable = others.filter(|(_, host)| host.answers(self.now_us));
        let machines = reachable.filter_map(|(_, host)| host.machine.as_ref());
        machines.map(|machine| machine.spare_bytes() / SLAB_BYTES).sum::<u64>() as usize
    }

    /// The time of a repair: all lenders are asked, and none answers; the pause after that; news of the lenders' spare
    /// memory; and the moves.
    fn repair_limit(&self) -> Duration {
        let Settings { answer_timeout, rounds_max, retry, .. } = &self.settings;
        *answer_timeout * (rounds_max + 2) + *retry * 3 / 2 + Duration::from_secs(20)
    }

    /// After faults and pressure have ended: the first host where something is left, and what.
    pub fn rest(&self) -> Option<(usize, String)> {
        for (at, host) in self.hosts.iter().enumerate() {
            let Some(machine) = &host.machine else { return Some((at, "it is down".into())) };
            if host.lent_slabs() != 0 {
                return Some((at, format!("{} slabs stay reserved", host.lent_slabs())));
            }
            if machine.role() != Role::Neutral || machine.is_waiting() || !host.devices.is_empty() {
                return Some((at, format!("it stays {:?}", machine.view(self.now(at)))));
            }
        }
        None
    }
}
