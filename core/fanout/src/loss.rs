//! Reports of lost holders, and the queue to the notifier.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::holder::Holder;

/// The most losses that are reported. A device has far fewer holders.
const LOSSES_MAX: usize = 2048;

/// Why a holder is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It did not answer within the time of a request, or its disk failed.
    NoAnswer,
    /// It refused a page in spite of its reservation.
    Refused,
    /// It does not have a page that it took.
    Missing,
    /// It gave other bytes than it took: they fail authentication.
    Forged,
}

impl core::fmt::Display for Cause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "did not answer in time",
            Self::Refused => "refused a page",
            Self::Missing => "has lost a page",
            Self::Forged => "gave bytes that fail authentication",
        })
    }
}

/// A holder that failed. It is reported once for each holder, or twice if it first had a last copy
/// and is lost later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The holder, by the number that it was made with.
    pub holder: u64,
    /// The slab in which it was found.
    pub slab: u32,
    /// Why.
    pub cause: Cause,
    /// No other copy of the page is left. The request failed with an I/O error, and the holder
    /// stays in use, because it may come back. Otherwise the holder is given up.
    pub last_copy: bool,
}

impl Loss {
    /// What follows from it, in words.
    pub const fn consequence(&self) -> &'static str {
        match self.last_copy {
            true => "there is no other copy, so this is an I/O error",
            false => "the other copy serves",
        }
    }
}

impl core::fmt::Display for Loss {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { holder, slab, cause, .. } = self;
        match *holder {
            Holder::FILE => f.write_str("the local file")?,
            number => write!(f, "holder {number}")?,
        }
        write!(f, " of slab {slab} {cause}: {}", self.consequence())
    }
}

#[derive(Debug)]
struct Waiting {
    losses: VecDeque<Loss>,
    /// Holders that were reported already, and whether with a last copy.
    reported: Vec<(u64, bool)>,
    ended: bool,
}

/// The queue of losses from the threads that find them to the notifier.
#[derive(Debug)]
pub(crate) struct Losses {
    waiting: Mutex<Waiting>,
    woken: Condvar,
}

impl Losses {
    pub(crate) fn new() -> Self {
        let waiting = Waiting {
            losses: VecDeque::with_capacity(LOSSES_MAX),
            reported: Vec::with_capacity(LOSSES_MAX),
            ended: false,
        };
        Self { waiting: Mutex::new(waiting), woken: Condvar::new() }
    }

    /// Queues a loss if it is the first of its kind and holder. Returns whether it is. It allocates
    /// nothing.
    pub(crate) fn push(&self, loss: Loss) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = (loss.holder, loss.last_copy);
        if waiting.reported.contains(&reported) || waiting.reported.len() == LOSSES_MAX {
            return false;
        }
        waiting.reported.push(reported);
        waiting.losses.push_back(loss);
        self.woken.notify_one();
        true
    }

    /// Ends [`Self::next`].
    pub(crate) fn stop(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.woken.notify_all();
    }

    /// Waits for the next loss. None at the end.
    pub(crate) fn next(&self) -> Option<Loss> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(loss) = waiting.losses.pop_front() {
                return Some(loss);
            }
            if waiting.ended {
                return None;
            }
            waiting = self.woken.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
