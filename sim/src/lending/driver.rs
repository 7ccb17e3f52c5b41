//! The drivers and the network: they execute the machines' actions, take time for it, and sometimes fail.

use spillway_lending::{Action, Body, DeviceId, Event, Message, Note, PlaceFailure, PoolIdentity};

use super::Violation;
use super::clock::Clock;
use super::host::{Grant, SLAB_BYTES, Slab};
use super::injected_bug::InjectedBug;
use super::world::{What, Work, World, access};

impl World {
    pub fn carry_out(&mut self, at: usize, action: Action) -> Result<(), Violation> {
        let boot = self.hosts[at].boot;
        match action {
            Action::Send(message) => self.send(at, message),
            Action::Reserve { loan, slabs, slab_bytes, .. } => {
                assert_eq!(slab_bytes, SLAB_BYTES);
                self.check_grant(at, slabs)?;
                self.hosts[at].changing_slabs += u64::from(slabs);
                let in_us = self.driver_us(at, 20_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Reserve { loan, slabs }));
            }
            Action::Release { loan } => {
                let slabs = self.hosts[at].end_pool(&loan);
                self.hosts[at].changing_slabs += slabs;
                self.check_claims_on(&loan)?;
                let in_us = self.driver_us(at, 200_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Released { loan, slabs }));
            }
            Action::Open { device, loan, lender, access, .. } => {
                let lender = self.names[&lender];
                let pool = self.hosts[lender].pools.get(&loan);
                let pool = pool.filter(|pool| pool.identity == access.pool);
                let blocks = pool.map(|pool| pool.blocks.clone()).unwrap_or_default();
                let grant = Grant { lender, identity: access.pool, blocks, is_hit: false };
                self.hosts[at].devices.entry(device).or_default().grants.insert(loan, grant);
            }
            Action::Attach { device, slabs } => {
                let its = self.hosts[at].devices.entry(device).or_default();
                its.slabs = slabs
                    .into_iter()
                    .map(|copies| Slab {
                        full: copies.iter().flatten().count() as u32,
                        copies,
                        ..Slab::default()
                    })
                    .collect();
                let in_us = self.driver_us(at, 300_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Attach { device }));
            }
            Action::Detach { device } => {
                let in_us = self.driver_us(at, 500_000);
                self.schedule(in_us, at, Some(boot), What::Work(Work::Detach { device }));
            }
            Action::Place { device, slab, copy, place } => {
                let in_us = self.driver_us(at, 100_000);
                let work = Work::Place { device, slab, copy, place };
                self.schedule(in_us, at, Some(boot), What::Work(work));
            }
            Action::Forget { device, loan } if self.bug == Some(InjectedBug::NoFencing) => {
                self.schedule(2_000_000, at, Some(boot), What::Work(Work::Forget { device, loan }));
            }
            Action::Forget { device, loan } => self.forget(at, device, &loan)?,
            Action::Note(note) => self.count(at, &note),
        }
        Ok(())
    }

    fn driver_us(&mut self, at: usize, usual_us: u64) -> u64 {
        let us = 1_000 + self.random.below(usual_us);
        if self.hosts[at].is_slow { us * 10 } else { us }
    }

    fn send(&mut self, at: usize, message: Message) {
        self.summary.messages += 1;
        match (&message.body, self.bug) {
            (Body::MemBorReq(request), Some(InjectedBug::StaleAck)) => {
                self.sequences.insert(request.loan.clone(), request.sequence);
            }
            (Body::MemLenFin(fin), Some(InjectedBug::EarlyRelease)) => {
                self.hosts[at].end_pool(&fin.loan);
            }
            _ => {}
        }
        let loan = message.body.loan().clone();
        if self.hosts[at].mute_until_us > self.now_us {
            self.strike(&loan, self.now_us);
            return;
        }
        let to = self.names[&message.to];
        let copies = match self.random.below(1_000) {
            dice if dice < self.loss_permille => {
                self.strike(&loan, self.now_us);
                0
            }
            dice if dice < 2 * self.loss_permille => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let mut in_us = self.delay_us + self.random.below(self.delay_us);
            if self.random.below(1_000) < self.late_permille {
                in_us += self.random.below(30_000_000);
                self.strike(&loan, self.now_us + in_us);
            }
            self.schedule(in_us, to, None, What::Deliver(message.clone()));
        }
    }

    pub fn work(&mut self, at: usize, work: Work) -> Result<(), Violation> {
        let fails = !self.is_calm && self.random.one_in(30);
        let event = match work {
            Work::Reserve { loan, slabs } => {
                self.hosts[at].changing_slabs -= u64::from(slabs);
                let identity = PoolIdentity(u128::from(self.random.next()));
                let result = if fails {
                    Err("no memory".to_owned())
                } else {
                    self.hosts[at].make_pool(loan.clone(), identity, slabs);
                    Ok(access(identity))
                };
                Event::Reserved { loan, result }
            }
            Work::Released { loan, slabs } => {
                self.hosts[at].changing_slabs -= slabs;
                if self.bug == Some(InjectedBug::EndlessLease)
                    && self.summary.expired.contains(&loan)
                {
                    self.hosts[at].changing_slabs += slabs;
                    return Ok(());
                }
                Event::Released { loan }
            }
            Work::Attach { device } => {
                let host = &mut self.hosts[at];
                if fails {
                    host.devices.remove(&device);
                    Event::Attached { device, result: Err("swapon failed".into()) }
                } else {
                    host.devices.entry(device).or_default().is_attached = true;
                    Event::Attached { device, result: Ok(()) }
                }
            }
            Work::Detach { device } => {
                let result = if fails { Err("busy".into()) } else { self.swapoff(at, device) };
                Event::Detached { device, result }
            }
            Work::Forget { device, loan } => return self.forget(at, device, &loan),
            Work::Place { device, slab, copy, place } => {
                let fails = fails
                    || self.bug == Some(InjectedBug::NoRepair)
                        && self.lacks(at, device, slab, copy);
                let result = if fails {
                    let is_untouched = self.random.one_in(2);
                    Err(PlaceFailure { why: "timed out".into(), is_untouched })
                } else {
                    self.place(at, device, slab, copy, &place)?
                };
                // The data plane changes before the machine is told.
                let in_us = self.random.below(50_000);
                let boot = self.hosts[at].boot;
                let event = Event::Placed { device, slab, copy, place, result };
                self.schedule(in_us, at, Some(boot), What::Tell(event));
                return Ok(());
            }
        };
        self.step(at, event)
    }

    /// Whether the data plane lacks a copy of a slab.
    fn lacks(&self, at: usize, device: DeviceId, slab: u32, copy: u8) -> bool {
        let slabs = self.hosts[at].devices.get(&device).map(|device| &device.slabs);
        let slab = slabs.and_then(|slabs| slabs.get(slab as usize));
        slab.is_some_and(|slab| slab.copies[usize::from(copy)].is_none())
    }

    fn count(&mut self, at: usize, note: &Note) {
        let summary = &mut self.summary;
        match note {
            Note::Asked { .. } => summary.asked += 1,
            Note::Granted { .. } => summary.granted += 1,
            Note::Refused { reason: Some(_), .. } => summary.refused += 1,
            Note::Refused { reason: None, .. } => summary.unanswered += 1,
            Note::Attached { slabs, .. } => {
                summary.devices += 1;
                summary.borrowed_slabs += u64::from(*slabs);
            }
            Note::Short { got: 0, .. } => summary.given_up += 1,
            Note::Recalling { .. } => summary.recalls += 1,
            Note::Moved { .. } => summary.moved += 1,
            Note::LoanLost { .. } => summary.loans_lost += 1,
            Note::SlabLost { .. } => summary.slabs_lost += 1,
            Note::Expired { loan } => {
                summary.expired.insert(loan.clone());
            }
            _ => {}
        }
        match note {
            Note::LoanLost { loan, .. } => self.hit(at, loan),
            Note::Recalling { loan, deadline } => {
                let at_us = self.now_us + Clock::longest_us(deadline.as_micros() as u64);
                self.hosts[at].recalls.insert(loan.clone(), at_us);
            }
            Note::Expired { loan } => self.hit(self.names[&loan.borrower], loan),
            _ => {}
        }
    }
}
