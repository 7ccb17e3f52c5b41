//! Which loans faults have struck. Only a copy in such a loan counts as taken by a fault.

use spillway_lending::{CopyLocation, DeviceId, LoanId};

use super::world::World;

impl World {
    /// A fault stops or delays what belongs to a loan, until `until_us`.
    pub fn strike(&mut self, loan: &LoanId, until_us: u64) {
        let until = self.struck_until_us.entry(loan.clone()).or_default();
        *until = until_us.max(*until);
    }

    /// A fault stops a host until `until_us`, and with it all loans that it holds and gives.
    pub fn strike_all_of(&mut self, at: usize, until_us: u64) {
        let host = &self.hosts[at];
        let held = host.devices.values().flat_map(|device| device.grants.keys());
        let loans: Vec<LoanId> = held.chain(host.pools.keys()).cloned().collect();
        for loan in loans {
            self.strike(&loan, until_us);
        }
    }

    /// Whether a fault can have ended the loan: its effects appear until leases have run out.
    fn is_struck(&self, loan: &LoanId) -> bool {
        let shows_us = (self.settings.lease + self.settings.lease_margin).as_micros() as u64;
        let until = self.struck_until_us.get(loan);
        until.is_some_and(|until_us| until_us + shows_us >= self.now_us)
    }

    /// A borrower loses a loan: by a fault if one struck it, or to a lender that has it back while the borrower's file has
    /// no room. Whether other lenders had room in time is not looked at.
    pub fn hit(&mut self, at: usize, loan: &LoanId) {
        let is_recalled = self.hosts.iter().any(|host| host.recalls.contains_key(loan));
        let has_file = self.hosts[at].has_file_room(self.settings.file_slabs);
        if self.is_struck(loan) || is_recalled && !has_file {
            self.hit_copies(at, loan);
        }
    }

    /// Counts each copy in a loan as taken by a fault, once.
    fn hit_copies(&mut self, at: usize, loan: &LoanId) {
        for device in self.hosts[at].devices.values_mut() {
            let Some(grant) = device.grants.get_mut(loan).filter(|grant| !grant.is_hit) else {
                continue;
            };
            grant.is_hit = true;
            for slab in &mut device.slabs {
                let copies = slab.copies.iter().flatten();
                slab.hits += copies.filter(|place| place.is_in(loan)).count() as u32;
            }
        }
    }

    /// A lender has lost its store: all copies in it are lost.
    pub fn hit_all_in(&mut self, lender: usize) {
        let lost: Vec<LoanId> = self.hosts[lender].pools.keys().cloned().collect();
        for loan in lost {
            let Some(at) = self.names.get(&loan.borrower).copied() else { continue };
            self.hit_copies(at, &loan);
        }
    }

    /// A host's local file fails: all copies in it are lost.
    pub fn lose_file(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.is_file_lost {
            return;
        }
        host.is_file_lost = true;
        host.file.clear();
        for slab in host.devices.values_mut().flat_map(|device| &mut device.slabs) {
            slab.is_file_hit = slab.copies.contains(&Some(CopyLocation::File));
            slab.hits += u32::from(slab.is_file_hit);
        }
    }

    /// Whether a fault is why a place can't be reached now, and that was not counted yet.
    pub fn is_hit_now(&self, at: usize, device: DeviceId, slab: u32, place: &CopyLocation) -> bool {
        let CopyLocation::Lender { loan, .. } = place else {
            let its = self.hosts[at].devices.get(&device);
            let slab = its.and_then(|its| its.slabs.get(slab as usize));
            return slab.is_some_and(|slab| self.hosts[at].is_file_lost && !slab.is_file_hit);
        };
        let grants = self.hosts[at].devices.get(&device).map(|device| &device.grants);
        let Some(grant) = grants.and_then(|grants| grants.get(loan)) else { return false };
        let is_cut = self.hosts[at].is_cut(self.now_us);
        !grant.is_hit && (is_cut || !self.hosts[grant.lender].answers(self.now_us))
    }
}
