//! What the threads of a VM share with each other and with the rest of the daemon.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_guests::{End, Guest, Outcome, Settings, Who};
use spillway_sections::Pool;
use tokio::sync::{Notify, oneshot};

use crate::config::Way;
use crate::vm::layout::Layout;

/// What others want of a VM.
pub enum Wish {
    /// Another size, by whoever waits to hear of it.
    Size {
        wanted: Wanted,
        who: Who,
        roll_back: bool,
        force: bool,
        told: Option<oneshot::Sender<Outcome>>,
    },
    /// Its size is to change by itself, or not.
    Auto(bool),
    /// The configuration was read again.
    Settings(Settings),
}

/// A size, or a difference from that of now; bytes.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    To(u64),
    Grow(u64),
    Shrink(u64),
}

impl Wanted {
    /// The size that is wanted of a VM of this size, bytes.
    pub(super) fn from(self, size_bytes: u64) -> u64 {
        match self {
            Self::To(bytes) => bytes,
            Self::Grow(bytes) => size_bytes.saturating_add(bytes),
            Self::Shrink(bytes) => size_bytes.saturating_sub(bytes),
        }
    }
}

/// What a VM's threads and those who ask for its status look at together.
pub struct Shared {
    pub name: String,
    pub way: Way,
    pub agent: PathBuf,
    pub pool: Arc<Pool>,
    pub guest: Mutex<Guest>,
    pub notes: Mutex<Notes>,
    pub stop: AtomicBool,
    /// Rings while a guest waits for memory that others have: it is shared out at once.
    pub hunger: Arc<Notify>,
    /// Where its programs' windows are served, if it has a client.
    pub windows: Option<Arc<WindowsShared>>,
}

/// What is counted and remembered of a VM.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Why it is out of reach, or what last went wrong.
    pub problem: Option<String>,
    /// No QEMU listens where its monitor is to be.
    pub is_absent: bool,
    pub reached: u64,
    pub failed: u64,
    pub refused: u64,
    /// Lines of its agent that were no messages.
    pub garbled: u64,
    /// It was said that its agent is not heard in all that it says.
    pub has_said_ignored: bool,
    /// What the policy would let it have, bytes.
    pub target_bytes: u64,
    /// Its weight for the policy.
    pub weight: u32,
    /// What is to lie ready for it, bytes.
    pub ready_bytes: u64,
}

impl Notes {
    /// Counts how an order ended.
    pub(super) fn count(&mut self, end: &End) {
        let counter = match end {
            End::Reached => &mut self.reached,
            End::Refused(_) => &mut self.refused,
            End::Superseded | End::Partial | End::RolledBack | End::Lost(_) => &mut self.failed,
        };
        *counter += 1;
    }
}

impl Shared {
    pub fn guest(&self) -> MutexGuard<'_, Guest> {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that a VM's thread for windows shares with its driver.
#[derive(Debug)]
pub struct WindowsShared {
    /// The client of the guest's programs.
    pub client: String,
    /// The Unix socket of the channel.
    pub channel: PathBuf,
    /// The file of the guest's ivshmem device.
    pub device: Option<PathBuf>,
    seen: Mutex<Seen>,
    bell: UnixStream,
}

/// Memory of a VM in which windows may lie, besides its device's: nothing takes it away from under the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Its boot memory, if it was found.
    pub boot: Option<Layout>,
}

/// What the monitor reported about the VM.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// `None` while the VM is out of reach, or can have no windows at all.
    pub(super) memory: Option<Memory>,
    pub(super) is_migrating: bool,
    /// Counts resets, and losses of the monitor: all windows end then.
    pub(super) changes: u64,
}

impl WindowsShared {
    /// State of a VM whose programs are `client`, and the descriptor that wakes the thread.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(
        client: String,
        channel: PathBuf,
        device: Option<PathBuf>,
    ) -> io::Result<(Arc<Self>, UnixStream)> {
        let (bell, hears) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        hears.set_nonblocking(true)?;
        let seen = Mutex::default();
        Ok((Arc::new(Self { client, channel, device, seen, bell }), hears))
    }

    /// What the monitor tells of the VM.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The VM was reset or replaced, or is out of reach: its windows end.
    pub fn renew(&self, memory: Option<Memory>) {
        let mut seen = self.seen();
        (seen.memory, seen.changes) = (memory, seen.changes + 1);
        // Another VM, or none.
        seen.is_migrating &= memory.is_some();
        drop(seen);
        self.ring();
    }

    /// Handles events of the VM: a reset, or the begin or end of a migration.
    pub fn look(&self, is_reset: bool, is_migrating: Option<bool>) {
        let mut seen = self.seen();
        let is_new = is_migrating.is_some_and(|it| it != seen.is_migrating);
        seen.is_migrating = is_migrating.unwrap_or(seen.is_migrating);
        if is_reset || is_new {
            let memory = seen.memory;
            drop(seen);
            self.renew(memory);
        }
    }

    /// Wakes the thread.
    pub fn ring(&self) {
        // When it is full, the thread will wake anyway.
        let _ = (&self.bell).write(&[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_from_the_size_of_now_and_go_neither_below_nothing_nor_beyond_all() {
        for (wanted, size, to) in [
            (Wanted::To(7), 100, 7),
            (Wanted::Grow(7), 100, 107),
            (Wanted::Shrink(7), 100, 93),
            (Wanted::Shrink(101), 100, 0),
            (Wanted::Grow(u64::MAX), 100, u64::MAX),
        ] {
            assert_eq!(wanted.from(size), to, "{wanted:?}");
        }
    }

    #[test]
    fn each_end_of_an_order_counts_once_as_what_it_is() {
        let ends = [
            (End::Reached, (1, 0, 0)),
            (End::Refused("why".into()), (0, 1, 0)),
            (End::Superseded, (0, 0, 1)),
            (End::Partial, (0, 0, 1)),
            (End::RolledBack, (0, 0, 1)),
            (End::Lost("why".into()), (0, 0, 1)),
        ];
        for (end, counts) in ends {
            let mut notes = Notes::default();
            notes.count(&end);
            assert_eq!((notes.reached, notes.refused, notes.failed), counts, "{end:?}");
            notes.count(&end);
            assert_eq!(notes.reached + notes.refused + notes.failed, 2);
        }
    }
}
