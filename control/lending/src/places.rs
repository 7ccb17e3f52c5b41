//! Places the copies of a device's slabs. Copies in recalled loans move, and lost copies are recreated: in a place that
//! the device has, else with another lender, else in the local file, else the device is swapped off.
//!
//! [`Action::Place`] moves a copy, which stays at its former place until that has completed; a slab has one move at a
//! time. A slow move no longer counts against the limit, so that a lender that hardly answers does not delay the
//! recalls of all others.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::{Device, Move, Seek};
use crate::loan::Loan;
use crate::machine::Machine;
use crate::{Action, Backup, CopyLocation, DeviceId, HostId, Mode, Note, PlaceFailure};

/// Limit of all moves, slow ones included, as a multiple of [`Settings::moves_max`](crate::Settings::moves_max).
const SLOW_MOVES: usize = 4;

/// A copy that has to be placed.
#[derive(Clone, Debug)]
struct Need {
    slab: u32,
    copy: u8,
    /// Whether it lies in a recalled loan; otherwise it is missing.
    is_recalled: bool,
    /// The holder of the other copy.
    apart_from: Option<HostId>,
}

impl Machine {
    /// One of [`crate::Event::LostPlaces`].
    pub(crate) fn lost_place(&mut self, id: DeviceId, slab: u32, place: &CopyLocation) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(its) = device.slabs.get_mut(slab as usize) else { return };
        let Some(copy) = its.copies.iter_mut().find(|copy| copy.as_ref() == Some(place)) else {
            return;
        };
        *copy = None;
        let is_lost = its.is_lost();
        match place {
            CopyLocation::Lender { loan, .. } => {
                if let Some(loan) = self.loans.get_mut(&loan.number) {
                    loan.suspect(self.now);
                }
            }
            // Writes in flight to it could arrive after later writes.
            CopyLocation::File => device.has_lost_file = true,
        }
        if is_lost {
            self.note(Note::SlabLost { device: id, slab });
        }
    }

    /// [`crate::Event::Placed`].
    pub(crate) fn placed(
        &mut self,
        id: DeviceId,
        slab: u32,
        copy: u8,
        place: CopyLocation,
        result: Result<(), PlaceFailure>,
    ) {
        let is_there = match &place {
            CopyLocation::Lender { loan, .. } => self.loans.contains_key(&loan.number),
            CopyLocation::File => true,
        };
        let move_at = self.now + self.settings.answer_timeout;
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(its) = device.slabs.get_mut(slab as usize) else { return };
        if !its.moving.as_ref().is_some_and(|its| its.copy == copy && its.place == place) {
            return;
        }
        its.moving = None;
        let at = usize::from(copy);
        match result {
            Ok(()) => {
                // Two copies in the same file count as one. A copy in a loan that was lost meanwhile has been dropped
                // with it.
                let is_own = !(place == CopyLocation::File
                    && its.copies[1 - at] == Some(CopyLocation::File));
                its.copies[at] = (is_there && is_own).then(|| place.clone());
                let is_lost = its.is_lost();
                self.note(if is_lost {
                    Note::SlabLost { device: id, slab }
                } else {
                    Note::Moved { device: id, slab, copy, place }
                });
            }
            Err(PlaceFailure { why: error, is_untouched }) => {
                let is_lost = its.is_lost();
                its.move_at = move_at;
                if let CopyLocation::Lender { loan, index } = &place
                    && let Some(loan) = self.loans.get_mut(&loan.number)
                {
                    loan.suspect(self.now);
                    if is_untouched {
                        loan.give_slot_back(*index);
                    }
                }
                self.note(Note::MoveFailed { device: id, slab, error });
                if is_lost {
                    self.note(Note::SlabLost { device: id, slab });
                }
            }
        }
    }

    /// Copies that have to be placed, urgent ones first; one of each slab at a time.
    fn needs(&self, id: DeviceId) -> Vec<Need> {
        let device = &self.devices[&id];
        let copies_wanted = if self.settings.backup == Backup::None { 1 } else { 2 };
        let repairs = device.is_attached() && !device.is_leaving;
        let loan_at = |place: &Option<CopyLocation>| match place {
            Some(CopyLocation::Lender { loan, .. }) => self.loans.get(&loan.number),
            _ => None,
        };
        let mut needs = Vec::new();
        for (slab, its) in device.slabs.iter().enumerate().filter(|(_, its)| its.moving.is_none()) {
            let need = |copy: usize, is_recalled| Need {
                slab: slab as u32,
                copy: copy as u8,
                is_recalled,
                apart_from: loan_at(&its.copies[1 - copy]).map(|loan| loan.lender.clone()),
            };
            let is_recalled =
                |copy: &usize| loan_at(&its.copies[*copy]).is_some_and(Loan::is_recalled);
            let is_missing = |copy: &usize| its.copies[*copy].is_none();
            // If one copy is wanted, either one suffices.
            let is_short = its.copies.iter().flatten().count() < copies_wanted;
            if let Some(copy) = [0, 1].iter().copied().find(is_recalled) {
                needs.push(need(copy, true));
            } else if let Some(copy) = [0, 1].iter().copied().find(is_missing)
                && repairs
                && is_short
            {
                needs.push(need(copy, false));
            }
        }
        needs.sort_by_key(|need| !need.is_recalled);
        needs
    }

    /// Detaches devices, places copies, and asks lenders for missing places.
    pub(crate) fn tend_device(&mut self, id: DeviceId) {
        let device = &self.devices[&id];
        if device.is_leaving && self.now >= device.detach_at {
            self.detach(id);
        }
        if self.settings.mode == Mode::Direct {
            return;
        }
        self.note_slow_moves(id);
        let needs = self.needs(id);
        let is_quiet = needs.is_empty();
        let lacking = self.place_needs(id, needs);
        if !lacking.is_empty() {
            self.seek(id, lacking);
        } else if let Some(device) = self.devices.get_mut(&id) {
            device.seek = None;
        }
        if is_quiet {
            self.end_unused(id);
        } else {
            self.end_recalled(id);
        }
    }

    /// Ends recalled loans that hold no more copies.
    fn end_recalled(&mut self, id: DeviceId) {
        for number in self.loans_of(id) {
            let CopyLocation::Lender { loan, .. } = self.place_in(number, 0) else { continue };
            if self.loans[&number].is_recalled() && !self.devices[&id].uses(&loan) {
                self.end_loan(number);
            }
        }
    }

    /// How many moves may start.
    fn moves_left(&self) -> usize {
        let moves = || self.devices.values().flat_map(Device::moves);
        let most = self.settings.moves_max as usize;
        let quick = moves().filter(|its| !self.is_slow(its)).count();
        most.saturating_sub(quick).min((SLOW_MOVES * most).saturating_sub(moves().count()))
    }

    fn is_slow(&self, its: &Move) -> bool {
        self.now >= its.since + self.settings.slow_move
    }

    /// Loans with a slow move into them: others are tried first.
    fn slow_loans(&self) -> BTreeSet<u64> {
        let moves = self.devices.values().flat_map(Device::moves).filter(|its| self.is_slow(its));
        let number = |its: &Move| match &its.place {
            CopyLocation::Lender { loan, .. } => Some(loan.number),
            CopyLocation::File => None,
        };
        moves.filter_map(number).collect()
    }

    /// Notes each move that takes long, once.
    fn note_slow_moves(&mut self, id: DeviceId) {
        let (now, slow_move) = (self.now, self.settings.slow_move);
        let Some(device) = self.devices.get_mut(&id) else { return };
        for (slab, its) in (0..).zip(&mut device.slabs) {
            let slow = its.moving.as_mut();
            let slow = slow.filter(|its| !its.is_noted && now >= its.since + slow_move);
            if let Some(its) = slow {
                its.is_noted = true;
                let (place, took) = (its.place.clone(), now - its.since);
                self.out.push(Action::Note(Note::MoveSlow { device: id, slab, place, took }));
            }
        }
    }

    /// Starts moves into places that the device has, up to the limit; returns the needs without a place.
    fn place_needs(&mut self, id: DeviceId, needs: Vec<Need>) -> Vec<Need> {
        let mut left_moves = self.moves_left();
        let mut file_room = self.file_room_of(id);
        let mut left: BTreeMap<u64, usize> = self
            .loans
            .iter()
            .filter(|(_, loan)| loan.device == id && loan.is_sound())
            .map(|(number, loan)| (*number, loan.used.iter().filter(|used| !**used).count()))
            .collect();
        let slow = self.slow_loans();
        let mut lacking = Vec::new();
        for need in needs {
            let is_file = self.settings.backup == Backup::File
                && need.copy == 1
                && !need.is_recalled
                && file_room != 0;
            let fits = |number: &u64| {
                left[number] != 0 && need.apart_from.as_ref() != Some(&self.loans[number].lender)
            };
            let others = || left.keys().copied().filter(|number| !slow.contains(number));
            let number = others().find(fits).or_else(|| left.keys().copied().find(fits));
            let is_placeable = is_file || number.is_some();
            if !is_placeable {
                lacking.push(need);
                continue;
            }
            let move_at = self.devices[&id].slabs[need.slab as usize].move_at;
            let may_begin = self.now >= move_at && left_moves > 0;
            if is_file {
                file_room -= 1;
                if may_begin {
                    left_moves -= 1;
                    self.begin_move(id, &need, CopyLocation::File);
                }
            } else if let Some(number) = number {
                *left.entry(number).or_default() -= 1;
                if may_begin && let Some(place) = self.take_place(number) {
                    left_moves -= 1;
                    self.begin_move(id, &need, place);
                }
            }
        }
        lacking
    }

    fn begin_move(&mut self, id: DeviceId, need: &Need, place: CopyLocation) {
        let Need { slab, copy, .. } = *need;
        if let Some(device) = self.devices.get_mut(&id) {
            let its = Move { copy, place: place.clone(), since: self.now, is_noted: false };
            device.slabs[slab as usize].moving = Some(its);
            self.out.push(Action::Place { device: id, slab, copy, place });
        }
    }

    /// Finds places for the other needs: with lenders, else in the file, else in this host's own memory.
    fn seek(&mut self, id: DeviceId, lacking: Vec<Need>) {
        if self.is_asking(id) {
            return;
        }
        let wanted = lacking.len() as u32;
        let now = self.now;
        let Some(device) = self.devices.get_mut(&id) else { return };
        let may_ask = device.is_attached() && !device.is_leaving;
        if device.seek.is_none() && may_ask && now >= device.seek_at {
            device.seek = Some(Seek::default());
        }
        if device.seek.is_some() {
            let apart_from = lacking.iter().map(|need| need.apart_from.clone()).collect();
            if may_ask && self.ask_round(id, apart_from, None) {
                return;
            }
            let seek_at = self.retry_at();
            if let Some(device) = self.devices.get_mut(&id) {
                device.seek = None;
                device.seek_at = seek_at;
            }
            self.note(Note::Short { device: id, wanted, got: 0 });
        }
        self.fall_back(id, lacking);
    }

    fn fall_back(&mut self, id: DeviceId, lacking: Vec<Need>) {
        let mut left_moves = self.moves_left();
        let mut file_room = self.file_room_of(id);
        let mut is_stuck = false;
        for need in lacking {
            let device = &self.devices[&id];
            let slab = &device.slabs[need.slab as usize];
            let may_begin = self.now >= slab.move_at && left_moves > 0;
            let is_in_file = slab.copies[usize::from(1 - need.copy)] == Some(CopyLocation::File);
            if is_in_file && !need.is_recalled {
                continue;
            }
            if is_in_file || file_room != 0 {
                file_room = file_room.saturating_sub(u64::from(!is_in_file));
                if may_begin {
                    left_moves -= 1;
                    self.begin_move(id, &need, CopyLocation::File);
                }
            } else if need.is_recalled && !self.is_safe(&slab.copies[usize::from(1 - need.copy)]) {
                is_stuck = true;
            }
        }
        let device = &self.devices[&id];
        if is_stuck && self.now >= device.detach_at {
            self.detach(id);
        }
    }

    /// Slabs of a device that still fit in the local file.
    fn file_room_of(&self, id: DeviceId) -> u64 {
        if self.devices[&id].has_lost_file { 0 } else { self.file_room() }
    }

    /// Whether a copy is permanent.
    fn is_safe(&self, copy: &Option<CopyLocation>) -> bool {
        match copy {
            None => false,
            Some(CopyLocation::File) => true,
            Some(CopyLocation::Lender { loan, .. }) => {
                self.loans.get(&loan.number).is_some_and(|loan| !loan.is_recalled())
            }
        }
    }
}
