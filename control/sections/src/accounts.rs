//! Accounts of memory: plain numbers, without files.

use std::collections::BTreeMap;

use crate::name::GuestFile;

/// The pool's memory and its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Capacity for all guests together.
    pub capacity_bytes: u64,
    /// Memory in use.
    pub used_bytes: u64,
    /// Free memory, including ready and lent memory, which a guest gets if it needs more than the rest.
    pub free_bytes: u64,
    /// The lent part of it ([`Pool::lend`](crate::Pool::lend)).
    pub lent_bytes: u64,
    /// By name.
    pub guests: BTreeMap<String, GuestUsage>,
}

/// A guest's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestUsage {
    /// Its boot memory; 0 if that does not come from the pool.
    pub boot_bytes: u64,
    /// Its virtio-mem devices, by number.
    pub devices: BTreeMap<u8, DeviceUsage>,
}

/// A virtio-mem device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Its capacity: its file's size.
    pub bound_bytes: u64,
    /// Reserved memory, plugged or not.
    pub set_aside_bytes: u64,
    /// Memory allocated beyond that for its next growth.
    pub ready_bytes: u64,
}

impl GuestUsage {
    /// All its reserved memory.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.boot_bytes + self.devices.values().map(|device| device.set_aside_bytes).sum::<u64>()
    }

    /// All its ready memory.
    #[must_use]
    pub fn ready_bytes(&self) -> u64 {
        self.devices.values().map(|device| device.ready_bytes).sum()
    }
}

/// A file's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The file's size.
    pub bound: u64,
    /// Memory that counts as used.
    pub set_aside: u64,
    /// Below this the file is known to have no hole, unless QEMU has punched one since.
    pub full_below: u64,
    /// Ready memory, in one range outside the guest's memory: its start and length.
    pub ready_from: u64,
    pub ready: u64,
}

impl Account {
    /// The account after `bytes` more are reserved, ready memory first.
    pub fn with(self, bytes: u64) -> Self {
        let taken = bytes.min(self.ready);
        Self {
            set_aside: self.set_aside + bytes,
            ready_from: self.ready_from + taken,
            ready: self.ready - taken,
            ..self
        }
    }

    /// The account after all except the first `bytes` of ready memory are released.
    pub fn with_ready(self, bytes: u64) -> Self {
        let full_below = self.full_below.min(self.ready_from + bytes);
        Self { ready: bytes, full_below, ..self }
    }
}

/// The accounts of all files.
#[derive(Debug)]
pub struct Accounts {
    capacity: u64,
    lent: u64,
    guests: BTreeMap<String, BTreeMap<GuestFile, Account>>,
}

impl Accounts {
    pub fn new(capacity: u64) -> Self {
        Self { capacity, lent: 0, guests: BTreeMap::new() }
    }

    pub fn used(&self) -> u64 {
        self.guests.values().flat_map(BTreeMap::values).map(|account| account.set_aside).sum()
    }

    /// Free memory. Files of a reopened pool may hold more than the capacity, which may have been
    /// reduced.
    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    pub fn get(&self, guest: &str, file: GuestFile) -> Option<Account> {
        self.guests.get(guest)?.get(&file).copied()
    }

    pub fn set(&mut self, guest: &str, file: GuestFile, account: Account) {
        self.guests.entry(guest.to_owned()).or_default().insert(file, account);
    }

    fn ready(&self) -> u64 {
        self.guests.values().flat_map(BTreeMap::values).map(|account| account.ready).sum()
    }

    /// Free memory that is neither ready nor lent.
    pub fn idle(&self) -> u64 {
        self.free().saturating_sub(self.ready()).saturating_sub(self.lent)
    }

    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// How much lent memory must return for `bytes` to be idle: guests may hold some of it by now.
    pub fn missing(&self, bytes: u64) -> u64 {
        let held = self.used() + self.ready() + self.lent;
        held.saturating_add(bytes).saturating_sub(self.capacity).min(self.lent)
    }

    /// Lends `bytes` in all, or as many as are idle. Returns the lent amount.
    pub fn lend(&mut self, bytes: u64) -> u64 {
        self.lent = bytes.min(self.lent + self.idle());
        self.lent
    }

    /// Adopts an earlier loan, whether or not it is idle.
    pub fn note_lent(&mut self, bytes: u64) {
        self.lent = bytes;
    }

    /// A file of another guest with ready memory.
    pub fn ready_of_others(&self, guest: &str) -> Option<(String, GuestFile)> {
        let others = self.guests.iter().filter(|(name, _)| *name != guest);
        let files =
            others.flat_map(|(name, files)| files.iter().map(move |(file, it)| (name, file, it)));
        let mut ready = files.filter(|(_, _, account)| account.ready > 0);
        ready.next().map(|(name, file, _)| (name.clone(), *file))
    }

    /// Changes a file's account if the additional memory is idle, in one step. Otherwise returns how much is idle.
    pub fn claim(&mut self, guest: &str, file: GuestFile, to: Account) -> Result<(), u64> {
        let has = |account: Account| account.set_aside + account.ready;
        let before = self.get(guest, file).unwrap_or_default();
        let idle = self.idle();
        if has(to) > has(before).saturating_add(idle) {
            return Err(idle);
        }
        self.set(guest, file, to);
        Ok(())
    }

    /// Forgets a file, and its guest with the last one.
    pub fn remove(&mut self, guest: &str, file: GuestFile) {
        if let Some(files) = self.guests.get_mut(guest) {
            files.remove(&file);
            if files.is_empty() {
                self.guests.remove(guest);
            }
        }
    }

    /// A guest's files.
    pub fn files(&self, guest: &str) -> Vec<GuestFile> {
        self.guests.get(guest).into_iter().flat_map(BTreeMap::keys).copied().collect()
    }

    pub fn usage(&self) -> Usage {
        let guests = self.guests.iter().map(|(name, files)| (name.clone(), guest_usage(files)));
        Usage {
            capacity_bytes: self.capacity,
            used_bytes: self.used(),
            free_bytes: self.free(),
            lent_bytes: self.lent,
            guests: guests.collect(),
        }
    }
}

fn guest_usage(files: &BTreeMap<GuestFile, Account>) -> GuestUsage {
    let mut usage = GuestUsage::default();
    for (file, account) in files {
        match *file {
            GuestFile::Boot | GuestFile::Counted(0) => usage.boot_bytes += account.set_aside,
            GuestFile::Device(number) | GuestFile::Counted(number) => {
                let Account { bound, set_aside, ready, .. } = *account;
                let device = DeviceUsage {
                    bound_bytes: bound,
                    set_aside_bytes: set_aside,
                    ready_bytes: ready,
                };
                usage.devices.insert(number, device);
            }
        }
    }
    usage
}

#[cfg(test)]
mod tests;
