//! Which guest uses a disk. A disk has one guest at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a disk's guest does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestState {
    /// No QEMU is connected.
    Absent,
    /// A QEMU is connected, but its guest uses no queue, for example because its driver is not loaded.
    Connected,
    /// A guest uses the disk.
    Attached,
    /// The last connection was ended for this reason, and no guest has used the disk since.
    Refused(String),
}

/// The reason why a disk can't be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Occupied {
    /// A connection is served.
    #[error("a guest is connected to it")]
    Guest,
    /// A connection has ended lately, so its guest may come back.
    #[error(
        "its guest was connected {} s ago and may come back: end the guest and try again {} s after that",
        .ago.as_secs(), .wanted.as_secs()
    )]
    Lately {
        /// How long ago.
        ago: Duration,
        /// How long ago it must be.
        wanted: Duration,
    },
    /// The disk is being emptied.
    #[error("it is being emptied")]
    Emptying,
}

/// A disk's guest.
#[derive(Debug)]
pub struct Attachment(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    state: GuestState,
    since: Instant,
    /// When a connection last ended, or the disk was opened.
    left: Instant,
    user: Option<Occupied>,
}

impl Attachment {
    pub fn new() -> Self {
        let now = Instant::now();
        Self(Mutex::new(Inner { state: GuestState::Absent, since: now, left: now, user: None }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, and how long it has been this.
    pub fn state(&self) -> (GuestState, Duration) {
        let inner = self.inner();
        (inner.state.clone(), inner.since.elapsed())
    }

    /// Takes the disk for a connection.
    pub fn connect(&self) -> Result<(), Occupied> {
        let mut inner = self.inner();
        inner.take(Occupied::Guest)?;
        if inner.state == GuestState::Absent {
            inner.set(GuestState::Connected);
        }
        Ok(())
    }

    /// Notes whether the connection's guest uses a queue. A reason for an earlier refusal stays until then.
    pub fn uses(&self, has_queues: bool) {
        let mut inner = self.inner();
        if has_queues {
            inner.set(GuestState::Attached);
        } else if inner.state == GuestState::Attached {
            inner.set(GuestState::Connected);
        }
    }

    /// Frees the disk after a connection; `refused` is the reason if the connection was ended for one.
    pub fn disconnect(&self, refused: Option<String>) {
        let mut inner = self.inner();
        (inner.user, inner.left) = (None, Instant::now());
        match refused {
            Some(reason) => inner.set(GuestState::Refused(reason)),
            // A QEMU that was refused comes and goes; the reason is still what matters.
            None if matches!(inner.state, GuestState::Refused(_)) => {}
            None => inner.set(GuestState::Absent),
        }
    }

    /// Takes the disk to empty it, if no guest was connected in the last `quiet`.
    pub fn begin_to_empty(&self, quiet: Duration) -> Result<(), Occupied> {
        let mut inner = self.inner();
        let ago = inner.left.elapsed();
        if inner.user.is_none() && ago < quiet {
            return Err(Occupied::Lately { ago, wanted: quiet });
        }
        inner.take(Occupied::Emptying)
    }

    /// Frees the disk after it was emptied.
    pub fn end_emptying(&self) {
        self.inner().user = None;
    }
}

impl Inner {
    fn take(&mut self, user: Occupied) -> Result<(), Occupied> {
        self.user.map_or(Ok(()), Err)?;
        self.user = Some(user);
        Ok(())
    }

    fn set(&mut self, state: GuestState) {
        if self.state != state {
            (self.state, self.since) = (state, Instant::now());
        }
    }
}
