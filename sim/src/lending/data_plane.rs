//! A model of the data plane: where each version of each slab lies, and which of it is reachable.
//!
//! A write goes to all copies of a slab, and is acknowledged when one copy has it. A copy that could not be written is
//! dropped, and the machine is told, as often as the driver tells it. A slab with content but without a good copy is a
//! lost page. That is a violation, unless faults have taken as many copies as it had when it was last complete.

use spillway_lending::{
    CopyLocation, DeviceId, Event, LoanId, LostPlace, PlaceFailure, PoolIdentity,
};

use super::host::{Content, SLAB_BYTES, Slab};
use super::injected_bug::InjectedBug;
use super::world::{What, World};
use super::{Backup, Violation};

impl World {
    /// Whether requests from `from` reach the pool that it knows as `loan`.
    fn reaches(&self, from: usize, device: DeviceId, loan: &LoanId) -> bool {
        let Some(grant) = self.grant(from, device, loan) else { return false };
        let lender = &self.hosts[grant.0];
        let is_live = lender.pools.get(loan).is_some_and(|pool| pool.identity == grant.1);
        is_live && lender.answers(self.now_us) && !self.hosts[from].is_cut(self.now_us)
    }

    fn grant(&self, at: usize, device: DeviceId, loan: &LoanId) -> Option<(usize, PoolIdentity)> {
        let grant = self.hosts[at].devices.get(&device)?.grants.get(loan)?;
        Some((grant.lender, grant.identity))
    }

    /// The content of a place, reachable or not.
    fn content(
        &self,
        at: usize,
        device: DeviceId,
        slab: u32,
        place: &CopyLocation,
    ) -> Option<Content> {
        match place {
            CopyLocation::File => self.hosts[at].file.get(&(device, slab)).map(|version| Content {
                device,
                slab,
                version: *version,
            }),
            CopyLocation::Lender { loan, index } => {
                let (lender, identity) = self.grant(at, device, loan)?;
                let pool = self.hosts[lender].pools.get(loan)?;
                let content = pool.data.get(index).copied();
                content.filter(|_| pool.identity == identity)
            }
        }
    }

    fn write(
        &mut self,
        at: usize,
        device: DeviceId,
        slab: u32,
        place: &CopyLocation,
        version: u64,
    ) -> bool {
        match place {
            CopyLocation::File if self.hosts[at].is_file_lost => false,
            CopyLocation::File => {
                self.hosts[at].file.insert((device, slab), version);
                true
            }
            CopyLocation::Lender { loan, index } => {
                if !self.reaches(at, device, loan) {
                    return false;
                }
                let Some((lender, _)) = self.grant(at, device, loan) else { return false };
                if let Some(pool) = self.hosts[lender].pools.get_mut(loan) {
                    pool.data.insert(*index, Content { device, slab, version });
                }
                true
            }
        }
    }

    /// Places of a slab that have the acknowledged version.
    fn good(&self, at: usize, device: DeviceId, slab: u32) -> Vec<CopyLocation> {
        let Some(its) = self.hosts[at].devices.get(&device) else { return Vec::new() };
        let Some(its) = its.slabs.get(slab as usize) else { return Vec::new() };
        let has = |place: &&CopyLocation| {
            let content = self.content(at, device, slab, place);
            content == Some(Content { device, slab, version: its.version })
        };
        its.copies.iter().flatten().filter(has).cloned().collect()
    }

    fn can_read(&self, at: usize, device: DeviceId, slab: u32) -> bool {
        self.good(at, device, slab).iter().any(|place| match place {
            CopyLocation::File => !self.hosts[at].is_file_lost,
            CopyLocation::Lender { loan, .. } => self.reaches(at, device, loan),
        })
    }

    /// Checks that each copy in use that can be read has the acknowledged version.
    pub fn check_stale(&self, at: usize) -> Result<(), Violation> {
        for (id, device) in &self.hosts[at].devices {
            for (slab, its) in (0..).zip(&device.slabs).filter(|(_, its)| its.version != 0) {
                let expected = Content { device: *id, slab, version: its.version };
                for place in its.copies.iter().flatten() {
                    let is_readable = match place {
                        CopyLocation::File => !self.hosts[at].is_file_lost,
                        CopyLocation::Lender { loan, .. } => self.reaches(at, *id, loan),
                    };
                    if is_readable && self.content(at, *id, slab, place) != Some(expected) {
                        let what =
                            format!("slab {slab} of device {id} has an old copy in {place:?}");
                        return Err(self.violation(at, what));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks whether a slab still has the acknowledged version.
    fn check_slab(&mut self, at: usize, device: DeviceId, slab: u32) -> Result<(), Violation> {
        let places = self.good(at, device, slab);
        let good = places.len() as u32;
        // A pool that a crash has destroyed looks good until its host restarts.
        let is_hit = |place: &CopyLocation| match place {
            CopyLocation::File => false,
            CopyLocation::Lender { loan, .. } => {
                let device = self.hosts[at].devices.get(&device);
                device.and_then(|it| it.grants.get(loan)).is_some_and(|grant| grant.is_hit)
            }
        };
        let left = places.iter().filter(|place| !is_hit(place)).count() as u32;
        let wanted = self.copies_wanted();
        let is_bare = self.settings.backup == Backup::None && self.settings.file_slabs == 0;
        let Some(its) = self.hosts[at].devices.get_mut(&device) else { return Ok(()) };
        let Some(its) = its.slabs.get_mut(slab as usize) else { return Ok(()) };
        if its.version == 0 {
            return Ok(());
        }
        if left >= wanted {
            (its.hits, its.full) = (0, good);
        }
        if good != 0 {
            return Ok(());
        }
        let (hits, full) = (its.hits, its.full);
        its.version = 0;
        if is_bare || hits >= full.max(1) {
            self.summary.excused += 1;
            return Ok(());
        }
        let what = format!(
            "lost page: slab {slab} of device {device} ({hits} faults, it had {full} copies)"
        );
        Err(self.violation(at, what))
    }

    /// [`spillway_lending::Action::Forget`].
    pub fn forget(&mut self, at: usize, device: DeviceId, loan: &LoanId) -> Result<(), Violation> {
        let Some(its) = self.hosts[at].devices.get_mut(&device) else { return Ok(()) };
        let mut dropped = Vec::new();
        for (index, slab) in its.slabs.iter_mut().enumerate() {
            for lost in &mut slab.lost {
                lost.take_if(|place| place.is_in(loan));
            }
            for copy in &mut slab.copies {
                if copy.take_if(|place| place.is_in(loan)).is_some() {
                    dropped.push(index as u32);
                }
            }
        }
        its.grants.remove(loan);
        // Forget a device that was never created and has no loan left.
        if its.grants.is_empty() && its.slabs.is_empty() {
            self.hosts[at].devices.remove(&device);
        }
        for slab in dropped {
            self.check_slab(at, device, slab)?;
        }
        Ok(())
    }

    /// The data plane's part of [`spillway_lending::Action::Place`].
    pub fn place(
        &mut self,
        at: usize,
        device: DeviceId,
        slab: u32,
        copy: u8,
        place: &CopyLocation,
    ) -> Result<Result<(), PlaceFailure>, Violation> {
        let failed =
            |why: &str, is_untouched| Ok(Err(PlaceFailure { why: why.into(), is_untouched }));
        let is_early = self.bug == Some(InjectedBug::EarlyMove);
        let Some(its) = self.hosts[at].devices.get(&device) else {
            return failed("no such device", true);
        };
        let version = its.slabs[slab as usize].version;
        let forgotten =
            matches!(place, CopyLocation::Lender { loan, .. } if !its.grants.contains_key(loan));
        if forgotten || (version != 0 && !self.can_read(at, device, slab)) {
            return failed("unreachable", forgotten);
        }
        if version != 0 && !is_early && !self.write(at, device, slab, place, version) {
            return failed("the new place is unreachable", false);
        }
        if let Some(its) = self.hosts[at].devices.get_mut(&device) {
            let Slab { copies, lost, is_file_hit, .. } = &mut its.slabs[slab as usize];
            if lost.contains(&Some(place.clone())) {
                let what = format!(
                    "slab {slab} of device {device} is placed where a late write may arrive"
                );
                return Err(self.violation(at, what));
            }
            let is_there = copies[usize::from(1 - copy)].as_ref() == Some(place);
            copies[usize::from(copy)] = (!is_there).then(|| place.clone());
            lost[usize::from(copy)] = None;
            *is_file_hit &= *place != CopyLocation::File;
        }
        self.check_slab(at, device, slab)?;
        Ok(Ok(()))
    }

    /// swapoff: all pages must be readable and fit into memory.
    pub fn swapoff(&mut self, at: usize, device: DeviceId) -> Result<(), String> {
        let host = &self.hosts[at];
        let Some(its) = host.devices.get(&device) else { return Err("no such device".into()) };
        let in_use: Vec<u32> = (0..its.slabs.len() as u32)
            .filter(|slab| its.slabs[*slab as usize].version != 0)
            .collect();
        let bytes = in_use.len() as u64 * SLAB_BYTES;
        if host.own_bytes() + bytes + host.lent_slabs() * SLAB_BYTES > host.total_bytes {
            return Err("no headroom".into());
        }
        if in_use.iter().any(|slab| !self.can_read(at, device, *slab)) {
            return Err("a page can't be read".into());
        }
        self.hosts[at].devices.remove(&device);
        self.hosts[at].file.retain(|(its, _), _| *its != device);
        Ok(())
    }

    /// The kernel swaps out and in: slabs come into use and become unused, and some are written.
    pub fn swap(&mut self, at: usize) -> Result<(), Violation> {
        let mut want = self.hosts[at].swapped_slabs() as usize;
        let devices: Vec<(DeviceId, usize)> = self.hosts[at]
            .devices
            .iter()
            .filter(|(_, device)| device.is_attached)
            .map(|(id, device)| (*id, device.slabs.len()))
            .collect();
        for (device, slabs) in devices {
            let in_use = want.min(slabs);
            want -= in_use;
            for slab in 0..slabs as u32 {
                let Some(its) = self.hosts[at].devices.get_mut(&device) else { break };
                let its = &mut its.slabs[slab as usize];
                if (slab as usize) >= in_use {
                    if its.version != 0 {
                        its.version = 0;
                        self.discard(at, device, slab);
                    }
                } else if its.version == 0 || self.random.one_in(4) {
                    self.write_slab(at, device, slab)?;
                }
            }
        }
        Ok(())
    }

    fn discard(&mut self, at: usize, device: DeviceId, slab: u32) {
        let copies = self.hosts[at].devices[&device].slabs[slab as usize].copies.clone();
        for place in copies.into_iter().flatten() {
            match place {
                CopyLocation::File => {
                    self.hosts[at].file.remove(&(device, slab));
                }
                CopyLocation::Lender { loan, index } if self.reaches(at, device, &loan) => {
                    let Some((lender, _)) = self.grant(at, device, &loan) else { continue };
                    if let Some(pool) = self.hosts[lender].pools.get_mut(&loan) {
                        pool.data.remove(&index);
                    }
                }
                CopyLocation::Lender { .. } => {}
            }
        }
    }

    fn write_slab(&mut self, at: usize, device: DeviceId, slab: u32) -> Result<(), Violation> {
        let its = &self.hosts[at].devices[&device].slabs[slab as usize];
        // Versions of a slab never repeat, even after it was empty.
        let version = self.now_us + 1;
        let copies = its.copies.clone();
        let mut failed = Vec::new();
        let mut written = 0;
        for (copy, place) in copies.iter().enumerate() {
            let Some(place) = place else { continue };
            if self.write(at, device, slab, place, version) {
                written += 1;
            } else {
                failed.push((copy, place.clone()));
            }
        }
        if written == 0 && self.bug != Some(InjectedBug::EarlyAck) {
            // The kernel gets an error and keeps the page; the former content stays.
            return Ok(());
        }
        self.set_version(at, device, slab, version);
        // What is acknowledged is safe already, whatever faults have taken.
        self.check_slab(at, device, slab)?;
        if self.bug == Some(InjectedBug::SilentCopy) {
            failed.clear();
        }
        for (copy, place) in failed {
            let is_hit = self.is_hit_now(at, device, slab, &place);
            if let Some(its) = self.hosts[at].devices.get_mut(&device) {
                let its = &mut its.slabs[slab as usize];
                its.copies[copy] = None;
                its.lost[copy] = Some(place.clone());
                its.hits += u32::from(is_hit);
            }
            let in_us = self.random.below(1_000_000);
            let boot = self.hosts[at].boot;
            let lost = vec![LostPlace { slab, place }];
            let event = Event::LostPlaces { device, lost };
            self.schedule(in_us, at, Some(boot), What::Tell(event));
        }
        self.check_slab(at, device, slab)
    }

    /// Tells the machine all copies that are lost, as the driver does again and again.
    pub fn tell_lost(&mut self, at: usize) -> Result<(), Violation> {
        let mut events = Vec::new();
        for (device, its) in &self.hosts[at].devices {
            let lost: Vec<LostPlace> = (0..)
                .zip(&its.slabs)
                .flat_map(|(slab, its)| its.lost.iter().flatten().map(move |place| (slab, place)))
                .map(|(slab, place)| LostPlace { slab, place: place.clone() })
                .collect();
            if !lost.is_empty() && self.bug != Some(InjectedBug::UnheardLoss) {
                events.push(Event::LostPlaces { device: *device, lost });
            }
        }
        events.into_iter().try_for_each(|event| self.step(at, event))
    }

    fn set_version(&mut self, at: usize, device: DeviceId, slab: u32, version: u64) {
        if let Some(its) = self.hosts[at].devices.get_mut(&device) {
            its.slabs[slab as usize].version = version;
        }
    }
}
