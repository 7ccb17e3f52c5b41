//! Guest memory from elsewhere, such as that of libvirt domains: only counted, not held.
//!
//! An account is an empty sparse file whose length is the counted size, so that a reopened pool knows it.

use rustix::fs::{AtFlags, unlinkat};

use crate::accounts::Account;
use crate::error::Error;
use crate::file::{SectionFile, name_of};
use crate::folder;
use crate::name::GuestFile;
use crate::pool::Pool;

impl Pool {
    /// Counts a guest's existing memory from elsewhere, even beyond the pool's free memory. `part` is 0 for boot
    /// memory, else the number of its device. 0 bytes remove the account.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn count(&self, guest: &str, part: u8, bytes: u64) -> Result<(), Error> {
        let _turn = self.turn(guest);
        self.set_counted(guest, part, bytes.next_multiple_of(self.backing().unit_bytes()))
    }

    /// Adds `bytes` to a guest's counted memory, if pool and host have that much. Returns the counted total. Nothing is
    /// held: the host may give the memory to another process before the guest takes it.
    ///
    /// # Errors
    /// [`Error::Dry`]; nothing has changed then.
    pub fn count_more(&self, guest: &str, part: u8, bytes: u64) -> Result<u64, Error> {
        let file = GuestFile::Counted(part);
        let bytes = bytes.next_multiple_of(self.backing().unit_bytes());
        self.make_room(guest, bytes);
        let _turn = self.turn(guest);
        let before = self.account(guest, file);
        let has = before.unwrap_or_default();
        self.claim(guest, file, has, bytes)?;
        let counted = has.set_aside + bytes;
        // After the claim: lent memory has returned to the host by now.
        let set = self.check_room(bytes).and_then(|()| self.set_counted(guest, part, counted));
        if set.is_err() {
            match before {
                Some(before) => self.accounts().set(guest, file, before),
                None => self.accounts().remove(guest, file),
            }
        }
        set.map(|()| counted)
    }

    /// Removes a guest's counted memory: its VM has ended.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn forget_counted(&self, guest: &str) -> Result<(), Error> {
        let _turn = self.turn(guest);
        let files = self.accounts().files(guest);
        for file in files {
            if let GuestFile::Counted(part) = file {
                self.set_counted(guest, part, 0)?;
            }
        }
        Ok(())
    }

    fn set_counted(&self, guest: &str, part: u8, bytes: u64) -> Result<(), Error> {
        let file = GuestFile::Counted(part);
        let path = self.path(guest, file)?;
        let guest_path = self.dir().join(guest);
        let (dir, group) = (self.folder(), self.group());
        if bytes > 0 {
            let folder = folder::make_guest(dir, &guest_path, group)?;
            match SectionFile::open(&folder, path.clone(), self.backing())? {
                Some(opened) => opened.set_bound(bytes)?,
                None => {
                    SectionFile::create(&folder, path, self.backing(), bytes, None)?;
                }
            }
            let account = Account { bound: bytes, set_aside: bytes, ..Account::default() };
            self.accounts().set(guest, file, account);
        } else if self.account(guest, file).is_some() {
            let folder = folder::open_guest(dir, &guest_path)?;
            unlinkat(&folder, name_of(&path), AtFlags::empty())
                .map_err(Error::io("remove", &path))?;
            self.accounts().remove(guest, file);
            if self.accounts().files(guest).is_empty() {
                folder::remove_guest(dir, &guest_path)?;
            }
        }
        Ok(())
    }
}
