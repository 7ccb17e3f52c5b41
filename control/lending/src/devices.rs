//! Swap devices that consist of this host's loans. Each slab has one or two copies.
//!
//! A device's life: it *gathers* slabs from lenders in rounds of requests, it is *attached*, its copies move or are
//! recreated as loans are recalled or lost, it is *detached*, and its loans end. [`crate::places`] decides where its
//! copies lie.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::{Device, Seek, Slab};
use crate::machine::Machine;
use crate::select::{self, Wants};
use crate::{
    Action, Backup, CopyLocation, DeviceId, DeviceState, DeviceView, HostId, LoanId, Mode, Note,
    Reason,
};

impl Machine {
    /// Starts borrowing a device of this many slabs.
    pub(crate) fn gather(&mut self, slabs: u32, is_kept: bool) {
        let room = self.file_room();
        let id = self.next_device();
        // With the file as backup, a slab that does not fit in it has no backup.
        let wanted = match self.settings.backup {
            Backup::File => slabs.min(u32::try_from(room).unwrap_or(u32::MAX)),
            Backup::None | Backup::Mirror => slabs,
        };
        let device = Device {
            state: DeviceState::Gathering,
            is_kept,
            is_leaving: false,
            detach_at: self.now,
            slab_bytes: self.settings.slab_bytes,
            slabs: vec![Slab::default(); wanted as usize],
            seek: Some(Seek::default()),
            seek_at: self.now,
            has_lost_file: false,
        };
        self.devices.insert(id, device);
    }

    /// Cancels borrowing of devices that are not in use yet.
    pub(crate) fn stop_asking(&mut self) {
        let gathering: Vec<DeviceId> = self
            .devices
            .iter()
            .filter(|(_, device)| device.is_gathering())
            .map(|(id, _)| *id)
            .collect();
        for id in gathering {
            self.drop_device(id);
            self.borrow_at = self.retry_at();
        }
    }

    /// Ends all loans of a device, and the device.
    fn drop_device(&mut self, id: DeviceId) {
        self.devices.remove(&id);
        for number in self.loans_of(id) {
            self.end_loan(number);
        }
    }

    pub(crate) fn loans_of(&self, id: DeviceId) -> Vec<u64> {
        let its = self.loans.iter().filter(|(_, loan)| loan.device == id);
        its.map(|(number, _)| *number).collect()
    }

    /// Slabs that still fit in the local file.
    pub(crate) fn file_room(&self) -> u64 {
        let slabs = self.devices.values().flat_map(|device| &device.slabs);
        let used = slabs.filter(|slab| slab.needs_file()).count() as u64;
        self.settings.file_slabs.saturating_sub(used)
    }

    /// Returns a device now, or as soon as possible.
    pub(crate) fn give_back(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.is_gathering() {
            return self.drop_device(id);
        }
        device.is_leaving = true;
        device.detach_at = self.now;
    }

    pub(crate) fn detach(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.is_attached()) else {
            return;
        };
        device.state = DeviceState::Detaching;
        self.out.push(Action::Detach { device: id });
    }

    /// A lender refused and reported its spare memory, or did not answer.
    pub(crate) fn refused(&mut self, id: DeviceId, host: &HostId, why: Option<(Reason, u64)>) {
        let mut may_ask_for_less = false;
        if let Some((Reason::NoRoom, bytes)) = why
            && let Some(peer) = self.peers.iter_mut().find(|peer| peer.host == *host)
        {
            peer.spare_bytes = bytes;
            may_ask_for_less = bytes >= self.settings.slab_bytes;
        }
        if let Some(seek) = self.devices.get_mut(&id).and_then(|device| device.seek.as_mut())
            && !may_ask_for_less
        {
            seek.refused.insert(host.clone());
        }
    }

    /// A lender wants a loan back.
    pub(crate) fn loan_recalled(&mut self, id: DeviceId, host: &HostId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        // The host counts as having no spare memory for this device and its later searches.
        if let Some(seek) = &mut device.seek {
            seek.refused.insert(host.clone());
        }
        if device.is_gathering() {
            let its = |number: &u64| self.loans[number].is_recalled();
            for number in self.loans_of(id).into_iter().filter(its).collect::<Vec<_>>() {
                self.end_loan(number);
            }
        } else if self.settings.mode == Mode::Direct {
            self.give_back(id);
        }
    }

    /// A loan is gone with its pages.
    pub(crate) fn loan_lost(&mut self, id: DeviceId, loan: &LoanId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let mut lost = Vec::new();
        for (index, slab) in device.slabs.iter_mut().enumerate() {
            let mut had = false;
            for copy in &mut slab.copies {
                if copy.as_ref().is_some_and(|place| place.is_in(loan)) {
                    *copy = None;
                    had = true;
                }
            }
            if had && slab.is_lost() {
                lost.push(index as u32);
            }
        }
        if self.settings.mode == Mode::Direct && !device.is_gathering() {
            self.give_back(id);
        }
        for slab in lost {
            self.note(Note::SlabLost { device: id, slab });
        }
    }

    /// [`crate::Event::Attached`].
    pub(crate) fn attached(&mut self, id: DeviceId, result: Result<(), String>) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.state != DeviceState::Attaching {
            return;
        }
        match result {
            Ok(()) => {
                device.state = DeviceState::Attached;
                let slabs = device.slabs.len() as u32;
                self.note(Note::Attached { device: id, slabs });
            }
            Err(error) => {
                self.drop_device(id);
                self.borrow_at = self.retry_at();
                self.note(Note::AttachFailed { device: id, error });
            }
        }
    }

    /// [`crate::Event::Detached`].
    pub(crate) fn detached(&mut self, id: DeviceId, result: Result<(), String>) {
        let at = self.retry_at();
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.state != DeviceState::Detaching {
            return;
        }
        match result {
            Ok(()) => {
                self.drop_device(id);
                self.note(Note::Detached { device: id });
            }
            Err(error) => {
                device.state = DeviceState::Attached;
                device.detach_at = at;
                self.note(Note::DetachFailed { device: id, error });
            }
        }
    }

    /// Performs work that is due.
    pub(crate) fn tend_devices(&mut self) {
        let ids: Vec<DeviceId> = self.devices.keys().copied().collect();
        for id in ids {
            match self.devices[&id].state {
                DeviceState::Gathering => self.tend_gathering(id),
                DeviceState::Attaching => {}
                DeviceState::Attached | DeviceState::Detaching => self.tend_device(id),
            }
        }
    }

    pub(crate) fn is_asking(&self, id: DeviceId) -> bool {
        self.loans.values().any(|loan| loan.device == id && !loan.is_held())
    }

    fn tend_gathering(&mut self, id: DeviceId) {
        if self.is_asking(id) {
            return;
        }
        let wanted = self.devices[&id].slabs.len();
        let copies = if self.settings.backup == Backup::Mirror { 2 } else { 1 };
        let held: usize = self.held_by(id).values().map(|slabs| *slabs as usize).sum();
        let is_enough =
            held >= wanted * copies || (self.settings.mode == Mode::Direct && held != 0);
        if !is_enough && self.ask_round(id, vec![None; wanted * copies - held], Some(wanted as u32))
        {
            return;
        }
        self.attach(id);
    }

    /// Number of slabs from each host in a device.
    fn held_by(&self, id: DeviceId) -> BTreeMap<HostId, u32> {
        let mut held = BTreeMap::new();
        for loan in self.loans.values().filter(|loan| loan.device == id && loan.is_held()) {
            *held.entry(loan.lender.clone()).or_default() += loan.used.len() as u32;
        }
        held
    }

    /// Asks lenders once more, for a slab for each of `apart_from`; false if there is no lender left to ask, or the
    /// limit of rounds is reached.
    pub(crate) fn ask_round(
        &mut self,
        id: DeviceId,
        apart_from: Vec<Option<HostId>>,
        host_slabs_max: Option<u32>,
    ) -> bool {
        let rounds_max = self.settings.rounds_max;
        let held = self.held_by(id);
        let Some(seek) = self.devices.get_mut(&id).and_then(|device| device.seek.as_mut()) else {
            return false;
        };
        if seek.round == rounds_max {
            return false;
        }
        let slab_bytes = self.settings.slab_bytes;
        let leaving: BTreeSet<&HostId> = self
            .loans
            .values()
            .filter(|loan| loan.is_held() && !loan.is_sound())
            .map(|loan| &loan.lender)
            .collect();
        let spare = |peer: &crate::Peer| {
            let is_out = seek.refused.contains(&peer.host) || leaving.contains(&peer.host);
            let slabs = if is_out { 0 } else { peer.spare_bytes / slab_bytes };
            u32::try_from(slabs).unwrap_or(u32::MAX)
        };
        let mut spare: Vec<u32> = self.peers.iter().map(spare).collect();
        let is_whole = self.settings.mode == Mode::Direct;
        let wants = Wants { apart_from, host_slabs_max, is_whole, held };
        let asks = select::plan(&self.peers, &mut spare, wants, &mut self.random);
        seek.round += 1;
        let is_asking = !asks.is_empty();
        for (host, slabs) in asks {
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.host == host) {
                let bytes = u64::from(slabs) * slab_bytes;
                peer.spare_bytes = peer.spare_bytes.saturating_sub(bytes);
            }
            self.ask(host, id, slabs);
        }
        is_asking
    }

    /// Creates a device of the gathered slabs; complete slabs only.
    fn attach(&mut self, id: DeviceId) {
        let wanted = self.devices[&id].slabs.len();
        let mut file_room = self.file_room();
        let mut slabs = Vec::new();
        while slabs.len() < wanted {
            let Some((first, host)) = self.emptiest_loan(id, None) else { break };
            let second = match self.settings.backup {
                Backup::None => None,
                Backup::File => Some(CopyLocation::File),
                Backup::Mirror => match self.emptiest_loan(id, Some(&host)) {
                    Some((number, _)) => self.take_place(number),
                    None if file_room != 0 => Some(CopyLocation::File),
                    None => break,
                },
            };
            if second == Some(CopyLocation::File) {
                file_room = file_room.saturating_sub(1);
            }
            let first = self.take_place(first);
            slabs.push(Slab { copies: [first, second], ..Slab::default() });
        }
        let got = slabs.len() as u32;
        if got < wanted as u32 || wanted == 0 {
            self.note(Note::Short { device: id, wanted: wanted as u32, got });
        }
        if got == 0 {
            self.drop_device(id);
            self.borrow_at = self.retry_at();
            return;
        }
        let places = slabs.iter().map(|slab| slab.copies.clone()).collect();
        if let Some(device) = self.devices.get_mut(&id) {
            device.slabs = slabs;
            device.state = DeviceState::Attaching;
            device.seek = None;
        }
        self.end_unused(id);
        self.out.push(Action::Attach { device: id, slabs: places });
    }

    /// The device's loan with the most free places, on another host than `apart_from`, in another rack if
    /// possible.
    fn emptiest_loan(&self, id: DeviceId, apart_from: Option<&HostId>) -> Option<(u64, HostId)> {
        let rack = |host: &HostId| {
            self.peers.iter().find(|peer| peer.host == *host).map(|peer| peer.rack.as_str())
        };
        let apart_rack = apart_from.and_then(rack);
        self.loans
            .iter()
            .filter(|(_, loan)| loan.device == id && loan.is_sound())
            .filter(|(_, loan)| apart_from != Some(&loan.lender))
            .map(|(number, loan)| {
                let left = loan.used.iter().filter(|used| !**used).count();
                let is_apart = apart_rack.is_none() || rack(&loan.lender) != apart_rack;
                ((is_apart, left), number, loan)
            })
            .filter(|((_, left), ..)| *left != 0)
            .max_by_key(|(rank, number, _)| (*rank, **number))
            .map(|(_, number, loan)| (*number, loan.lender.clone()))
    }

    pub(crate) fn take_place(&mut self, number: u64) -> Option<CopyLocation> {
        let index = self.loans.get_mut(&number)?.take_slot()?;
        Some(self.place_in(number, index))
    }

    /// Ends a device's loans that hold no copies.
    pub(crate) fn end_unused(&mut self, id: DeviceId) {
        for number in self.loans_of(id) {
            let loan = self.place_in(number, 0);
            let CopyLocation::Lender { loan, .. } = loan else { continue };
            if self.loans[&number].is_held() && !self.devices[&id].uses(&loan) {
                self.end_loan(number);
            }
        }
    }

    /// The operators' view of the devices.
    pub(crate) fn device_views(&self) -> Vec<DeviceView> {
        let view = |(id, device): (&DeviceId, &Device)| DeviceView {
            device: *id,
            state: device.state,
            is_kept: device.is_kept,
            slab_bytes: device.slab_bytes,
            slabs: device.slabs.iter().map(|slab| slab.copies.clone()).collect(),
        };
        self.devices.iter().map(view).collect()
    }
}
