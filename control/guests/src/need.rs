//! A request of a guest for memory, and the rate limit of its requests.

use crate::Cause;
use crate::settings::{MESSAGES_MAX, NEEDS_MAX};

/// A guest's request for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    pub(crate) cause: Cause,
    /// Its deadline, without the time of the change itself.
    pub(crate) until_us: u64,
}

/// Messages processed in this second, and messages ignored in all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    second: u64,
    messages: u32,
    needs: u32,
    ignored: u64,
}

impl Needs {
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored
    }

    pub(crate) fn ignore(&mut self) {
        self.ignored += 1;
    }

    pub(crate) fn may_speak(&mut self, now_us: u64) -> bool {
        if self.second != now_us / 1_000_000 {
            *self = Self { second: now_us / 1_000_000, ignored: self.ignored, ..Self::default() };
        }
        self.messages += 1;
        self.within(self.messages <= MESSAGES_MAX)
    }

    pub(crate) fn may_wish(&mut self) -> bool {
        self.needs += 1;
        self.within(self.needs <= NEEDS_MAX)
    }

    fn within(&mut self, fits: bool) -> bool {
        if !fits {
            self.ignore();
        }
        fits
    }
}
