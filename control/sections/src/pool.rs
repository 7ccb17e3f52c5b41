//! The pool: requests against accounts and files.

mod release;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use spillway_platform::pagemap::Pagemap;

use crate::accounts::{Account, Accounts, Usage};
use crate::borrower::Borrower;
use crate::error::Error;
use crate::file::{SectionFile, name_of};
use crate::folder;
use crate::mount::{Backing, UNIT_BYTES};
use crate::name::{GuestFile, check_guest};
pub use release::Settled;

/// Default size of a section.
pub const SECTION_BYTES: u64 = 128 << 20;
/// Memory prepared at a time. An order that arrives meanwhile waits for it; the host may take tens of milliseconds.
const READY_STEP_BYTES: u64 = 16 << 20;
/// How often lent memory is recalled for one claim.
const RECALLS_MAX: usize = 4;
/// Number of locks: operations on guests that share one wait for each other.
const TURNS: usize = 32;

/// A pool's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its folder, on hugetlbfs or tmpfs. Created if its parent exists.
    pub dir: PathBuf,
    /// Capacity for all guests together.
    pub capacity_bytes: u64,
    /// The unit of devices' sizes: [`SECTION_BYTES`] unless configured.
    pub section_bytes: u64,
    /// The group that QEMU runs in, when not as this user: gets access to new guests' files.
    pub group: Option<u32>,
}

impl Settings {
    /// Checks that [`Pool::open`] can use them. Changes nothing. Not found here: whether another process uses the pool,
    /// and whether its folder can be created and given to the group.
    ///
    /// # Errors
    /// Those of [`Pool::open`].
    pub fn check(&self) -> Result<Backing, Error> {
        self.check_sizes()?;
        let backing = Backing::at(&self.dir)?;
        self.check_section(backing.unit_bytes())?;
        let Some(dir) = folder::open_existing(&self.dir)? else {
            let above = folder::open_above(&self.dir)?;
            backing.check_room(above, &self.dir, self.capacity_bytes)?;
            return Ok(backing);
        };
        let mut accounts = Accounts::new(self.capacity_bytes);
        let held = read_back(&dir, &self.dir, backing, &mut accounts)?.bytes;
        backing.check_room(&dir, &self.dir, self.capacity_bytes.saturating_sub(held))?;
        Ok(backing)
    }

    /// Checks the folder's path, and the sizes that no file system can serve.
    fn check_sizes(&self) -> Result<(), Error> {
        let Self { capacity_bytes, section_bytes, .. } = *self;
        folder::check_path(&self.dir)?;
        self.check_section(UNIT_BYTES)?;
        if capacity_bytes < section_bytes {
            return Err(Error::Capacity { capacity_bytes, section_bytes });
        }
        Ok(())
    }

    const fn check_section(&self, unit_bytes: u64) -> Result<(), Error> {
        match self.section_bytes {
            bytes if bytes > 0 && bytes.is_multiple_of(unit_bytes) => Ok(()),
            section_bytes => Err(Error::SectionSize { section_bytes, unit_bytes }),
        }
    }
}

/// The host's memory for guests. Operations on one guest wait for each other; a large reservation for one guest does
/// not delay another guest.
#[derive(Debug)]
pub struct Pool {
    settings: Settings,
    backing: Backing,
    /// Locked, to keep a second pool out.
    dir: OwnedFd,
    pagemap: Option<Pagemap>,
    /// Locked after a turn, and never during work on a file.
    accounts: Mutex<Accounts>,
    /// Locks for operations on a guest, selected by a hash of its name.
    turns: [Mutex<()>; TURNS],
    /// The borrower.
    pub(crate) borrower: OnceLock<Arc<dyn Borrower>>,
}

impl Pool {
    /// Opens the pool in a folder, and reads the allocations of its files.
    ///
    /// Each setting that can't be used has its own error; [`Error::Locked`] if another process uses the pool;
    /// [`Error::Foreign`] if the folder contains something else.
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let Settings { capacity_bytes, .. } = *settings;
        let path = &settings.dir;
        settings.check_sizes()?;
        let (dir, backing) = folder::open_pool(path, settings.group)?;
        settings.check_section(backing.unit_bytes())?;
        let mut accounts = Accounts::new(capacity_bytes);
        let found = read_back(&dir, path, backing, &mut accounts)?;
        for folder in found.empty {
            folder::remove_guest(&dir, &folder)?;
        }
        backing.check_room(&dir, path, capacity_bytes.saturating_sub(found.bytes))?;
        let (settings, accounts) = (settings.clone(), Mutex::new(accounts));
        let pagemap = Pagemap::open().ok();
        let (turns, borrower) = Default::default();
        Ok(Self { settings, backing, dir, pagemap, accounts, turns, borrower })
    }

    /// The kind of memory.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The size of a section.
    #[must_use]
    pub fn section_bytes(&self) -> u64 {
        self.settings.section_bytes
    }

    /// The capacity for all guests together.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.settings.capacity_bytes
    }

    /// The accounts.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.accounts().usage()
    }

    /// A file's path, for QEMU's `mem-path`, whether or not the file exists.
    ///
    /// # Errors
    /// [`Error::GuestName`], [`Error::DeviceNumber`].
    pub fn path(&self, guest: &str, file: GuestFile) -> Result<PathBuf, Error> {
        check_guest(guest)?;
        Ok(self.settings.dir.join(guest).join(file.name()?))
    }

    /// Creates a file, and the guest with its first one. Boot memory, a multiple of [`UNIT_BYTES`] and of a huge page,
    /// is reserved in full. A device can grow to `bytes`, a multiple of sections, and has no memory at first. An
    /// existing file of this size is used, and its boot memory completed. Returns its path.
    ///
    /// # Errors
    /// [`Error::OtherSize`], [`Error::Dry`], [`Error::Unaligned`]; then no new file exists.
    pub fn create(&self, guest: &str, file: GuestFile, bytes: u64) -> Result<PathBuf, Error> {
        let path = self.path(guest, file)?;
        let (unit_bytes, reserved) = match file {
            GuestFile::Boot => (self.backing.unit_bytes(), bytes),
            GuestFile::Device(_) | GuestFile::Counted(_) => (self.section_bytes(), 0),
        };
        if bytes == 0 || !bytes.is_multiple_of(unit_bytes) {
            return Err(Error::Unaligned { bytes, unit_bytes });
        }
        if self.account(guest, file).is_none() {
            self.make_room(guest, reserved);
        }
        let _turn = self.turn(guest);
        if let Some(account) = self.account(guest, file) {
            if account.bound != bytes {
                let (has_bytes, asked_bytes) = (account.bound, bytes);
                return Err(Error::OtherSize { path, has_bytes, asked_bytes });
            }
            let opened = self.open_file(guest, &path)?;
            let missing = reserved.saturating_sub(opened.allocated()?);
            self.fill(&opened, missing, 0, bytes)?;
            return Ok(path);
        }
        self.claim(guest, file, Account { bound: bytes, ..Account::default() }, reserved)?;
        if let Err(error) = self.make(guest, &path, bytes, reserved) {
            self.accounts().remove(guest, file);
            return Err(error);
        }
        Ok(path)
    }

    /// Reserves `bytes` more for a device: its ready memory first, then the lowest holes of its file; all or nothing.
    /// Takes other guests' ready memory if the pool would be exhausted otherwise, and releases the rest of this
    /// device's ready memory, because the guest may plug any of it from now on. Returns the reserved total.
    ///
    /// Call it before the guest is asked to grow, while its requested size equals its size: on failure the allocated
    /// part is punched, and must not have been plugged meanwhile. Settle an earlier daemon's reservations first
    /// ([`Self::settle_device`]): on tmpfs they would seem plugged once allocated again.
    ///
    /// # Errors
    /// [`Error::Dry`], [`Error::BeyondBound`], [`Error::Unaligned`], [`Error::NoFile`].
    pub fn reserve(&self, guest: &str, device: u8, bytes: u64) -> Result<u64, Error> {
        let file = GuestFile::Device(device);
        let path = self.path(guest, file)?;
        let unit_bytes = self.backing.unit_bytes();
        if bytes == 0 || !bytes.is_multiple_of(unit_bytes) {
            return Err(Error::Unaligned { bytes, unit_bytes });
        }
        let had_ready = self.account(guest, file).map_or(0, |account| account.ready);
        self.make_room(guest, bytes.saturating_sub(had_ready));
        let _turn = self.turn(guest);
        let opened = self.open_file(guest, &path)?;
        let mut before = self.account(guest, file).ok_or(Error::NoFile { path: path.clone() })?;
        if before.full_below == 0 {
            // If there may be a hole below the ready memory, the guest plugs that hole first.
            before = self.take_ready(guest, file, &opened, before, 0)?;
        }
        let (set_aside_bytes, bound_bytes) = (before.set_aside, before.bound);
        if bytes > bound_bytes.saturating_sub(set_aside_bytes) {
            return Err(Error::BeyondBound {
                path,
                asked_bytes: bytes,
                set_aside_bytes,
                bound_bytes,
            });
        }
        self.claim(guest, file, before, bytes)?;
        let claimed = self.take_ready(guest, file, &opened, before.with(bytes), 0)?;
        let missing = bytes.saturating_sub(before.ready);
        let filled = self.fill(&opened, missing, claimed.full_below, bound_bytes);
        let after = match &filled {
            Ok(full_below) => Account { full_below: *full_below, ..claimed },
            Err(_) => {
                let holds = opened.allocated().unwrap_or(bound_bytes);
                Account {
                    set_aside: set_aside_bytes.max(holds),
                    full_below: 0,
                    ..before.with_ready(0)
                }
            }
        };
        self.accounts().set(guest, file, after);
        filled.map(|_| after.set_aside)
    }

    /// Brings a device's ready memory a step nearer to `bytes`, allocated in the lowest holes of its file, so that a
    /// growing guest does not wait for it. Steps are small, so that orders need not wait long. Reserved memory that is
    /// not plugged counts as ready. Call it while the guest has its requested size, `size_bytes`, and no request is
    /// pending. Returns whether to call it again: otherwise as much is ready as possible.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::Io`].
    pub fn keep_ready(
        &self,
        guest: &str,
        device: u8,
        size_bytes: u64,
        bytes: u64,
    ) -> Result<bool, Error> {
        let file = GuestFile::Device(device);
        let path = self.path(guest, file)?;
        let _turn = self.turn(guest);
        let opened = self.open_file(guest, &path)?;
        let mut account = self.account(guest, file).ok_or(Error::NoFile { path })?;
        let allocated = opened.allocated()?;
        if account.ready > 0 && allocated < size_bytes + account.ready {
            // The guest was reset: QEMU has emptied the file.
            account = account.with_ready(0);
            account.full_below = 0;
        }
        account.set_aside = account.set_aside.max(allocated.saturating_sub(account.ready));
        let surplus = account.set_aside.saturating_sub(size_bytes);
        let room = account.bound.saturating_sub(account.set_aside);
        let wanted = bytes.saturating_sub(surplus).min(room);
        let wanted = wanted - wanted % self.section_bytes();
        // If there may be a new hole below the ready memory, the guest plugs that hole first.
        let kept = if account.full_below == 0 { 0 } else { wanted };
        self.accounts().set(guest, file, account);
        account = self.take_ready(guest, file, &opened, account, kept)?;
        let step_max = READY_STEP_BYTES.max(self.backing.unit_bytes()).min(self.section_bytes());
        let step = wanted.saturating_sub(account.ready).min(step_max);
        let more = Account { ready: account.ready + step, ..account };
        if step == 0 || self.accounts().claim(guest, file, more).is_err() {
            return Ok(false);
        }
        let from = if account.ready == 0 {
            account.full_below
        } else {
            account.ready_from + account.ready
        };
        let run = opened.fill_run(step, from, account.bound, account.ready > 0);
        let run = run.unwrap_or(from..from);
        let made = run.end - run.start;
        let ready_from = if account.ready == 0 { run.start } else { account.ready_from };
        let ready = account.ready + made;
        let full_below = if made == 0 { account.full_below } else { run.end };
        self.accounts().set(guest, file, Account { ready_from, ready, full_below, ..account });
        Ok(made == step && ready < wanted)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.settings.dir
    }

    pub(crate) fn folder(&self) -> &OwnedFd {
        &self.dir
    }

    pub(crate) fn group(&self) -> Option<u32> {
        self.settings.group
    }

    /// Memory that the host can provide now.
    fn room(&self) -> Result<u64, Error> {
        self.backing.room(&self.dir, &self.settings.dir)
    }

    /// Refuses more than the host can provide now.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), Error> {
        let free_bytes = self.room()?;
        if bytes > free_bytes {
            return Err(Error::Dry { asked_bytes: bytes, free_bytes });
        }
        Ok(())
    }

    pub(crate) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn account(&self, guest: &str, file: GuestFile) -> Option<Account> {
        self.accounts().get(guest, file)
    }

    /// Waits for other operations on the guest.
    pub(crate) fn turn(&self, guest: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        guest.hash(&mut hasher);
        let turn = &self.turns[hasher.finish() as usize % TURNS];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_file(&self, guest: &str, path: &Path) -> Result<SectionFile, Error> {
        let no_file = || Error::NoFile { path: path.to_owned() };
        if self.accounts().files(guest).is_empty() {
            return Err(no_file());
        }
        let folder = folder::open_guest(&self.dir, &self.settings.dir.join(guest))?;
        SectionFile::open(folder, path.to_owned(), self.backing)?.ok_or_else(no_file)
    }

    /// Adds `bytes` to a file's account, ready memory first, or refuses. Recalls lent memory if
    /// necessary.
    pub(crate) fn claim(
        &self,
        guest: &str,
        file: GuestFile,
        to: Account,
        bytes: u64,
    ) -> Result<(), Error> {
        // Other guests may take the returned memory first.
        for _ in 0..RECALLS_MAX {
            if self.accounts().claim(guest, file, to.with(bytes)).is_ok() {
                return Ok(());
            }
            if !self.recall(bytes.saturating_sub(to.ready)) {
                break;
            }
        }
        let claimed = self.accounts().claim(guest, file, to.with(bytes));
        claimed.map_err(|free_bytes| Error::Dry { asked_bytes: bytes, free_bytes })
    }

    /// Releases other guests' ready memory until `bytes` are idle, or none is ready any more. No turn may be held.
    pub(crate) fn make_room(&self, guest: &str, bytes: u64) {
        loop {
            let accounts = self.accounts();
            let other = accounts.ready_of_others(guest).filter(|_| accounts.idle() < bytes);
            drop(accounts);
            let Some((other, file)) = other else { return };
            let _turn = self.turn(&other);
            let Some(account) = self.account(&other, file) else { continue };
            let opened = self.path(&other, file).and_then(|path| self.open_file(&other, &path));
            let given = opened.and_then(|it| self.take_ready(&other, file, &it, account, 0));
            if given.is_err() {
                return;
            }
        }
    }

    /// Releases ready memory beyond `kept` bytes, and updates the account.
    fn take_ready(
        &self,
        guest: &str,
        file: GuestFile,
        opened: &SectionFile,
        account: Account,
        kept: u64,
    ) -> Result<Account, Error> {
        if account.ready <= kept {
            return Ok(account);
        }
        let end = account.ready_from + account.ready;
        opened.give_back(account.ready_from + kept..end)?;
        let after = account.with_ready(kept);
        self.accounts().set(guest, file, after);
        Ok(after)
    }

    /// Creates a file, and the guest's folder with the first one.
    fn make(&self, guest: &str, path: &Path, bytes: u64, reserved: u64) -> Result<(), Error> {
        let guest_path = self.settings.dir.join(guest);
        let group = self.settings.group;
        let folder = folder::make_guest(&self.dir, &guest_path, group)?;
        let made = SectionFile::create(&folder, path.to_owned(), self.backing, bytes, group)
            .and_then(|file| {
                let filled = self.fill(&file, reserved, 0, bytes);
                if filled.is_err() {
                    let _ = unlinkat(&folder, name_of(path), AtFlags::empty());
                }
                filled
            });
        if made.is_err() && self.accounts().files(guest).len() <= 1 {
            let _ = folder::remove_guest(&self.dir, &guest_path);
        }
        made.map(drop)
    }

    /// Allocates the claimed memory.
    fn fill(&self, file: &SectionFile, bytes: u64, from: u64, bound: u64) -> Result<u64, Error> {
        let dry = |room| Error::Dry { asked_bytes: bytes, free_bytes: room };
        self.check_room(bytes)?;
        file.fill(bytes, from, bound).map_err(|errno| match errno {
            Errno::NOSPC | Errno::NOMEM => dry(self.room().unwrap_or(0)),
            errno => file.failed("reserve memory in", errno),
        })
    }
}

/// What a pool's folder has.
#[derive(Default)]
struct Found {
    /// Bytes that its files hold.
    bytes: u64,
    /// Folders of guests without files.
    empty: Vec<PathBuf>,
}

/// Reads the accounts of all files.
fn read_back(
    dir: &OwnedFd,
    path: &Path,
    backing: Backing,
    accounts: &mut Accounts,
) -> Result<Found, Error> {
    let mut found = Found::default();
    for guest in folder::names(dir, path)? {
        let guest_path = path.join(&guest);
        let foreign = |path: &Path, why| Error::Foreign { path: path.to_owned(), why };
        check_guest(&guest).map_err(|_| foreign(&guest_path, "it has no guest's name"))?;
        let folder = folder::open_guest(dir, &guest_path)?;
        let names = folder::names(&folder, &guest_path)?;
        if names.is_empty() {
            found.empty.push(guest_path.clone());
        }
        for name in names {
            let path = guest_path.join(&name);
            let file = GuestFile::of(&name)
                .ok_or_else(|| foreign(&path, "it is neither boot memory nor a device"))?;
            let Some(opened) = SectionFile::open(&folder, path, backing)? else { continue };
            let (bound, allocated) = (opened.bound()?, opened.allocated()?);
            let set_aside = match file {
                GuestFile::Boot | GuestFile::Counted(_) => bound,
                GuestFile::Device(_) => allocated,
            };
            accounts.set(&guest, file, Account { bound, set_aside, ..Account::default() });
            // Counted memory is held by the guest itself.
            found.bytes += if matches!(file, GuestFile::Counted(_)) { bound } else { allocated };
        }
    }
    Ok(found)
}
