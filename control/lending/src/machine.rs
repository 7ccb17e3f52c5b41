//! The state machine of one host: events in, actions out.
//!
//! This module has the memory thresholds, the operator's orders, the role and the clock. [`crate::lender`] has the
//! loans that this host gives, [`crate::loans`] those that it holds, [`crate::devices`] and [`crate::places`] the
//! devices that consist of them.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::device::Device;
use crate::lent::Lent;
use crate::loan::{Ended, Loan};
use crate::random::Random;
use crate::{
    Action, Body, BorrowedState, DeviceId, Epoch, Event, HostId, Kept, LoanId, LostPlace, Message,
    Note, Order, Peer, Reading, Role, Roles, Settings, Shareable, View,
};

/// The state machine of one host. See the crate.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) host: HostId,
    pub(crate) epoch: Epoch,
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    /// The time of the present event.
    pub(crate) now: Duration,
    pub(crate) out: Vec<Action>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) is_draining: bool,
    /// Set by the order `Return`: nothing is borrowed for the pressure at that time.
    is_held_off: bool,
    /// Why this host's kernel could not use borrowed memory.
    obstacle: Option<&'static str>,
    reading: Option<Reading>,
    above_since: Option<Duration>,
    below_since: Option<Duration>,
    /// When borrowing may be tried again.
    pub(crate) borrow_at: Duration,
    role: Role,
    /// The loans that this host gives.
    pub(crate) lent: BTreeMap<LoanId, Lent>,
    /// The loans that it requests and holds, by number.
    pub(crate) loans: BTreeMap<u64, Loan>,
    /// The loans that it has returned, until the lender acknowledges that.
    pub(crate) ended: BTreeMap<u64, Ended>,
    pub(crate) devices: BTreeMap<DeviceId, Device>,
    pub(crate) next_loan: u64,
    next_device: u32,
}

impl Machine {
    /// The machine of `host`, whose daemon has just started at `now`. `epoch` and `seed` are random and differ from
    /// those of every start before. `kept` are earlier loans whose pages its store kept: they continue, if their
    /// borrowers renew them within a lease. Anything that it had borrowed is gone.
    ///
    /// `settings` must have passed [`Settings::check`].
    pub fn new(
        host: HostId,
        epoch: Epoch,
        seed: u64,
        settings: Settings,
        kept: Vec<Kept>,
        now: Duration,
    ) -> Self {
        let mut random = Random::new(seed);
        let next_loan = random.next() << 32;
        let lent: BTreeMap<LoanId, Lent> = kept
            .into_iter()
            .map(|kept| (kept.loan.clone(), Lent::kept(kept, &settings, now)))
            .collect();
        let role = if lent.is_empty() { Role::Neutral } else { Role::Lender };
        Self {
            host,
            epoch,
            settings,
            random,
            now,
            out: Vec::new(),
            peers: Vec::new(),
            is_draining: false,
            is_held_off: false,
            obstacle: None,
            reading: None,
            above_since: None,
            below_since: None,
            borrow_at: now,
            role,
            lent,
            loans: BTreeMap::new(),
            ended: BTreeMap::new(),
            devices: BTreeMap::new(),
            next_loan,
            next_device: 0,
        }
    }

    /// Processes an event at `now`, a monotonic time that never decreases; appends the resulting actions.
    pub fn handle(&mut self, now: Duration, event: Event, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        // For every other event: stop using loans that have run out. An answer that renews a loan may have waited
        // longer than the loan had left.
        let renews = matches!(&event, Event::Received(Message { body: Body::MemBorAck(_), .. }));
        if !renews {
            self.expire_loans();
        }
        match event {
            Event::Tick => {}
            Event::Memory(reading) => self.memory(reading),
            Event::Received(message) => self.received(message),
            Event::Peers(peers) => {
                self.peers = peers;
                self.peers.retain(|peer| peer.host != self.host);
            }
            Event::Operator(order) => self.operator(order),
            Event::Obstacle(obstacle) => self.obstacle = obstacle,
            Event::Reserved { loan, result } => self.reserved(loan, result),
            Event::Released { loan } => self.released(&loan),
            Event::Attached { device, result } => self.attached(device, result),
            Event::Detached { device, result } => self.detached(device, result),
            Event::Placed { device, slab, copy, place, result } => {
                self.placed(device, slab, copy, place, result);
            }
            Event::LostPlaces { device, lost } => {
                for LostPlace { slab, place } in lost {
                    self.lost_place(device, slab, &place);
                }
            }
        }
        if renews {
            self.expire_loans();
        }
        self.tend_lent();
        self.tend_loans();
        self.tend_devices();
        self.note_role();
        actions.append(&mut self.out);
    }

    /// When [`Event::Tick`] is due at the latest, or better [`Event::Memory`], which ends a dwell on time; none if
    /// there is no timer.
    pub fn wake_at(&self) -> Option<Duration> {
        // Memory that has been short for long enough is handled then.
        let dwelt_at = self.above_since.map(|since| since + self.settings.dwell);
        let dwelt_at = dwelt_at.filter(|at| *at > self.now);
        let lent = self.lent.values().filter_map(Lent::wake_at);
        let loans = self.loans.values().map(Loan::wake_at);
        let ended = self.ended.values().map(|ended| ended.again_at);
        let devices = self.devices.values();
        let slow_move = self.settings.slow_move;
        let devices = devices.filter_map(|device| device.wake_at(self.now, slow_move));
        lent.chain(loans).chain(ended).chain(devices).chain(dwelt_at).min()
    }

    /// Its present role.
    pub fn role(&self) -> Role {
        let borrows = self.loans.values().any(Loan::is_held)
            || self.devices.values().any(|device| !device.is_gathering());
        match (borrows, !self.lent.is_empty()) {
            (false, false) => Role::Neutral,
            (true, false) => Role::Borrower,
            (false, true) => Role::Lender,
            (true, true) => Role::Both,
        }
    }

    /// Whether it waits for answers to requests.
    pub fn is_waiting(&self) -> bool {
        self.loans.values().any(|loan| !loan.is_held())
            || self.devices.values().any(Device::is_gathering)
    }

    /// The state at `now`.
    pub fn view(&self, now: Duration) -> View {
        let passed_ms = now.saturating_sub(self.now).as_millis() as u64;
        let mut lent = self.lent_views();
        let mut borrowed = self.borrowed_views();
        for lease_ms in lent.iter_mut().map(|loan| &mut loan.lease_ms) {
            *lease_ms = lease_ms.saturating_sub(passed_ms);
        }
        for lease_ms in borrowed.iter_mut().map(|loan| &mut loan.lease_ms) {
            *lease_ms = lease_ms.saturating_sub(passed_ms);
        }
        let held = borrowed.iter().filter(|loan| loan.state != BorrowedState::Asked);
        View {
            host: self.host.clone(),
            role: self.role(),
            is_waiting: self.is_waiting(),
            is_draining: self.is_draining,
            spare_bytes: self.spare_bytes(),
            lent_bytes: self.lent_bytes(),
            borrowed_bytes: held.map(|loan| loan.bytes).sum(),
            lent,
            borrowed,
            devices: self.device_views(),
        }
    }

    fn note_role(&mut self) {
        let role = self.role();
        if role != self.role {
            self.out.push(Action::Note(Note::Role { from: self.role, to: role }));
            self.role = role;
        }
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.out.push(Action::Note(note));
    }

    pub(crate) fn send(&mut self, to: &HostId, body: Body) {
        let from = self.host.clone();
        self.out.push(Action::Send(Message { from, to: to.clone(), epoch: self.epoch, body }));
    }

    /// When to retry a failed action.
    pub(crate) fn retry_at(&mut self) -> Duration {
        let half_us = (self.settings.retry.as_micros() / 2).min(u128::from(u64::MAX)) as u64;
        self.now + self.settings.retry + Duration::from_micros(self.random.below(half_us))
    }

    fn received(&mut self, message: Message) {
        let Message { from, to, epoch, body } = message;
        if to != self.host || from == self.host {
            return;
        }
        self.borrower_lives(&from, epoch);
        self.lender_lives(&from, epoch);
        match body {
            Body::MemBorReq(request) if request.loan.borrower == from => {
                self.requested(from, epoch, request);
            }
            Body::MemBorFin(fin) if fin.loan.borrower == from => self.finished(&from, &fin.loan),
            Body::MemBorAck(ack) if ack.loan.borrower == self.host => self.acked(&from, epoch, ack),
            Body::MemBorRej(rej) if rej.loan.borrower == self.host => self.rejected(&from, &rej),
            Body::MemLenFin(fin) if fin.loan.borrower == self.host => self.recalled(&from, &fin),
            // About another host's loan: not from a valid peer.
            _ => {}
        }
    }

    fn memory(&mut self, reading: Reading) {
        let upper = Settings::share(reading.total_bytes, self.settings.upper_permille);
        let lower = Settings::share(reading.total_bytes, self.settings.lower_permille);
        let is_above = reading.used_bytes > upper;
        if reading.used_bytes < lower {
            self.is_held_off = false;
        }
        self.above_since = is_above.then(|| self.above_since.unwrap_or(self.now));
        self.reading = Some(reading);
        if self.above_since.is_some_and(|since| self.now - since >= self.settings.dwell) {
            self.recall_for_pressure();
            self.borrow_for_pressure();
        }
        let Some(device) = self.returnable() else {
            self.below_since = None;
            return;
        };
        let since = *self.below_since.get_or_insert(self.now);
        if self.now - since >= self.settings.dwell {
            self.below_since = None;
            self.detach(device);
        }
    }

    /// Slabs to borrow when memory has been short: enough to bring it to the lower threshold.
    fn borrow_for_pressure(&mut self) {
        let Some(reading) = &self.reading else { return };
        if self.is_held_off || self.now < self.borrow_at || self.peers.is_empty() {
            return;
        }
        // Borrowed memory is used up first.
        let in_use: u64 = reading.devices.iter().map(|(_, bytes)| bytes).sum();
        let held: u64 = self.devices.values().map(Device::bytes).sum();
        if in_use < held / 4 * 3 {
            return;
        }
        let lower = Settings::share(reading.total_bytes, self.settings.lower_permille);
        let slabs = reading.used_bytes.saturating_sub(lower).div_ceil(self.settings.slab_bytes);
        let most = u64::from(self.settings.device_slabs_max);
        let slabs = (slabs.min(most) as u32).max(self.settings.device_slabs_min);
        if self.why_not_borrow().is_none() {
            self.gather(slabs, false);
        }
    }

    /// Why borrowing is refused, if it is.
    fn why_not_borrow(&self) -> Option<&'static str> {
        let changing = self.devices.values().any(|device| !device.is_attached());
        let stands = [
            (self.is_draining, "this host is drained; resume it first"),
            (
                self.settings.roles == Roles::Single && !self.lent.is_empty(),
                "this host lends; it can borrow when its loans have been returned, or with roles both",
            ),
            (changing, "a device is being borrowed or returned; try again when that is done"),
            (
                self.devices.len() >= self.settings.devices_max as usize,
                "there are as many borrowed devices as the settings allow",
            ),
        ]
        .into_iter()
        .find_map(|(stands, why)| stands.then_some(why));
        stands.or(self.obstacle)
    }

    pub(crate) fn next_device(&mut self) -> DeviceId {
        let device = DeviceId(self.next_device);
        self.next_device += 1;
        device
    }

    /// The newest device whose pages fit into memory below the lower threshold.
    fn returnable(&self) -> Option<DeviceId> {
        let reading = self.reading.as_ref()?;
        let lower = Settings::share(reading.total_bytes, self.settings.lower_permille);
        if self.devices.values().any(|device| !device.is_attached()) {
            return None;
        }
        let (id, device) = self.devices.iter().rfind(|(_, device)| !device.is_kept)?;
        let (_, in_use) = reading.devices.iter().find(|(its, _)| its == id)?;
        let fits = reading.used_bytes.saturating_add(*in_use) < lower;
        (fits && self.now >= device.detach_at).then_some(*id)
    }

    /// The most that a new grant may take, bytes. With all loans fully used, this host keeps its reserve and stays
    /// below its upper threshold. An eighth of the distance between the thresholds is held back, because lending itself
    /// takes some memory, for which no new loan should be recalled.
    pub(crate) fn room_bytes(&self) -> u64 {
        let Some(reading) = &self.reading else { return 0 };
        let upper = Settings::share(reading.total_bytes, self.settings.upper_permille);
        let lower = Settings::share(reading.total_bytes, self.settings.lower_permille);
        let most = upper - upper.saturating_sub(lower) / 8;
        let own = reading.used_bytes.saturating_sub(reading.lent_used_bytes);
        let shareable = match self.settings.shareable {
            Shareable::Reserve(bytes) => reading.total_bytes.saturating_sub(bytes),
            Shareable::Dynamic => reading.total_bytes.saturating_sub(own),
        };
        shareable.min(most.saturating_sub(own)).saturating_sub(self.lent_bytes())
    }

    /// The most that this host would lend now, bytes.
    pub fn spare_bytes(&self) -> u64 {
        let is_single = self.settings.roles == Roles::Single;
        let borrows = self.is_waiting() || matches!(self.role(), Role::Borrower | Role::Both);
        if self.is_draining || (is_single && borrows) { 0 } else { self.room_bytes() }
    }

    /// By how much the loans, if fully used, exceed the available memory.
    pub(crate) fn excess_bytes(&self) -> u64 {
        let Some(reading) = &self.reading else { return 0 };
        let upper = Settings::share(reading.total_bytes, self.settings.upper_permille);
        let own = reading.used_bytes.saturating_sub(reading.lent_used_bytes);
        self.lent_bytes().saturating_sub(upper.saturating_sub(own))
    }

    fn operator(&mut self, order: Order) {
        match order {
            Order::Borrow(slabs) => {
                if let Some(why) = self.why_not_borrow() {
                    self.note(Note::CannotBorrow { why });
                    return;
                }
                self.is_held_off = false;
                self.gather(slabs.clamp(1, self.settings.device_slabs_max), true);
            }
            Order::Return => self.return_all(),
            Order::Drain => {
                self.is_draining = true;
                self.return_all();
            }
            Order::Resume => {
                self.is_draining = false;
                self.is_held_off = false;
            }
        }
    }

    fn return_all(&mut self) {
        self.is_held_off = true;
        let devices: Vec<DeviceId> = self.devices.keys().copied().collect();
        for device in devices {
            self.give_back(device);
        }
    }
}
