//! How a pool's memory is released: what a guest does not use, and the files of one that has ended.

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::Pool;
use crate::accounts::Account;
use crate::error::Error;
use crate::file::{SectionFile, name_of};
use crate::folder;
use crate::name::{GuestFile, check_guest};
use crate::unplugged::Rest;

/// The result of [`Pool::settle_device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Memory that no longer counts as used.
    pub released_bytes: u64,
    /// Memory that still counts as used.
    pub set_aside_bytes: u64,
}

impl Pool {
    /// Releases memory that was reserved for a device but not plugged, except ready memory, and reduces the account to
    /// what its file still holds, but at least to `size_bytes`, the guest's size by QEMU. Call it while the guest can't
    /// plug: its requested size must also be `size_bytes`.
    ///
    /// So the next reservation lies in the lowest holes, where the guest plugs next, and not at the place of an
    /// interrupted one. Memory that can't be distinguished from the guest's stays reserved.
    ///
    /// # Errors
    /// [`Error::NoFile`].
    pub fn settle_device(
        &self,
        guest: &str,
        device: u8,
        size_bytes: u64,
    ) -> Result<Settled, Error> {
        let file = GuestFile::Device(device);
        let path = self.path(guest, file)?;
        let _turn = self.turn(guest);
        let opened = self.open_file(guest, &path)?;
        let before = self.account(guest, file).ok_or(Error::NoFile { path })?;
        let ready = before.ready_from..before.ready_from + before.ready;
        let has_given = if size_bytes == 0 {
            opened.empty_but(ready)?;
            true
        } else {
            let (section, pagemap) = (self.section_bytes(), self.pagemap.as_ref());
            opened.give_back_unplugged(&Rest { section, size: size_bytes, ready, pagemap })?
        };
        let allocated = opened.allocated()?;
        // The guest was reset: QEMU has emptied the file.
        let size_bytes = size_bytes.min(before.bound);
        let ready = if allocated < size_bytes + before.ready { 0 } else { before.ready };
        let set_aside = (allocated - ready).max(size_bytes);
        // Ready memory that is gone is also a hole.
        let has_holes = has_given || set_aside < before.set_aside || ready < before.ready;
        let full_below = if has_holes { 0 } else { before.full_below };
        self.accounts().set(guest, file, Account { set_aside, full_below, ready, ..before });
        let released_bytes = before.set_aside.saturating_sub(set_aside);
        Ok(Settled { released_bytes, set_aside_bytes: set_aside })
    }

    /// Empties a guest's device files if no other process has any of them open: its VM has ended. Boot memory stays, so
    /// that the guest can be started again. Returns how much no longer counts as used.
    ///
    /// # Errors
    /// [`Error::InUse`], with nothing changed.
    pub fn empty_devices(&self, guest: &str) -> Result<u64, Error> {
        check_guest(guest)?;
        let _turn = self.turn(guest);
        let mut files = self.accounts().files(guest);
        files.retain(|file| matches!(file, GuestFile::Device(_)));
        let mut opened = Vec::new();
        for file in &files {
            opened.push(self.open_file(guest, &self.path(guest, *file)?)?);
        }
        let _leases: Vec<_> = opened.iter().map(SectionFile::lease).collect::<Result<_, _>>()?;
        let mut released = 0;
        for (file, opened) in files.into_iter().zip(&opened) {
            let Some(before) = self.account(guest, file) else { continue };
            opened.give_back(0..before.bound)?;
            released += before.set_aside;
            let after = Account { bound: before.bound, ..Account::default() };
            self.accounts().set(guest, file, after);
        }
        Ok(released)
    }

    /// Removes the file of a device that no VM uses.
    ///
    /// # Errors
    /// [`Error::InUse`], with nothing changed; [`Error::NoFile`].
    pub fn remove_device(&self, guest: &str, device: u8) -> Result<(), Error> {
        let file = GuestFile::Device(device);
        let path = self.path(guest, file)?;
        let _turn = self.turn(guest);
        let opened = self.open_file(guest, &path)?;
        let lease = opened.lease()?;
        let folder = folder::open_guest(&self.dir, &self.settings.dir.join(guest))?;
        unlinkat(&folder, name_of(&path), AtFlags::empty()).map_err(Error::io("remove", &path))?;
        drop(lease);
        self.accounts().remove(guest, file);
        Ok(())
    }

    /// Removes a guest's files if no other process has any of them open. Do not call it while its VM is being
    /// started. Returns how much no longer counts as used: 0 for a guest without memory.
    ///
    /// # Errors
    /// [`Error::InUse`], with all files still there.
    pub fn clear(&self, guest: &str) -> Result<u64, Error> {
        self.clear_those(guest, |_| true)
    }

    /// The same for the memory that the pool holds for a guest, without its counted memory.
    ///
    /// # Errors
    /// Like [`Self::clear`].
    pub fn clear_held(&self, guest: &str) -> Result<u64, Error> {
        self.clear_those(guest, |file| !matches!(file, GuestFile::Counted(_)))
    }

    fn clear_those(&self, guest: &str, which: impl Fn(&GuestFile) -> bool) -> Result<u64, Error> {
        check_guest(guest)?;
        let _turn = self.turn(guest);
        let mut files = self.accounts().files(guest);
        files.retain(which);
        if files.is_empty() {
            return Ok(0);
        }
        let path = self.settings.dir.join(guest);
        let folder = folder::open_guest(&self.dir, &path)?;
        let mut opened = Vec::new();
        for file in &files {
            let path = self.path(guest, *file)?;
            opened.extend(SectionFile::open(&folder, path, self.backing)?);
        }
        let leases: Vec<_> = opened.iter().map(SectionFile::lease).collect::<Result<_, _>>()?;
        for file in &files {
            let path = self.path(guest, *file)?;
            match unlinkat(&folder, name_of(&path), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::io("remove", &path)(errno)),
            }
        }
        // The memory is free once the last descriptor is closed, so count it as free only afterwards.
        drop(leases);
        drop(opened);
        let mut released = 0;
        for file in files {
            released += self.account(guest, file).map_or(0, |account| account.set_aside);
            self.accounts().remove(guest, file);
        }
        if self.accounts().files(guest).is_empty() {
            folder::remove_guest(&self.dir, &path)?;
        }
        Ok(released)
    }
}
