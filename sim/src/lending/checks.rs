//! The invariants that hold after every step.

use spillway_lending::{
    BorrowedState, CopyLocation, DeviceState, LoanId, Role, Roles, Settings, Shareable,
};

use super::Violation;
use super::host::SLAB_BYTES;
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

    /// Even if all lent memory is used in full, a grant leaves the host below its upper threshold. The machine may not
    /// know the last second's changes yet.
    pub fn check_grant(&self, at: usize, slabs: u32) -> Result<(), Violation> {
        let host = &self.hosts[at];
        let lent_bytes = (host.lent_slabs() + u64::from(slabs)) * SLAB_BYTES;
        let upper_bytes = Settings::share(host.total_bytes, self.settings.upper_permille);
        if lent_bytes > upper_bytes {
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
        let answer_us = settings.answer_timeout.as_micros() as u64 + 10_000;
        let gather_us = answer_us * u64::from(settings.rounds_max);
        let Some(machine) = &self.hosts[at].machine else { return Ok(()) };
        let view = machine.view(self.now());
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

    /// After faults and pressure have ended: the first host where something is left, and what.
    pub fn rest(&self) -> Option<(usize, String)> {
        for (at, host) in self.hosts.iter().enumerate() {
            let Some(machine) = &host.machine else { return Some((at, "it is down".into())) };
            if host.lent_slabs() != 0 {
                return Some((at, format!("{} slabs stay reserved", host.lent_slabs())));
            }
            if machine.role() != Role::Neutral || machine.is_waiting() || !host.devices.is_empty() {
                return Some((at, format!("it stays {:?}", machine.view(self.now()))));
            }
        }
        None
    }
}
