//! Pages that travel to or from one holder together, in buffers of their own.
//!
//! A lot is shared by the thread that wants something and the worker that carries it, so that the former can stop to
//! wait: the buffers stay the worker's until it is done.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_types::Key;

use crate::lender::{BATCH_PAGES, Carried};
use crate::page::Page;

/// What a lot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    Put,
    Get,
    Flush,
}

/// What a lot carries.
#[derive(Debug)]
pub struct Cargo {
    pub errand: Errand,
    pub count: usize,
    pub keys: [Key; BATCH_PAGES],
    pub pages: Box<[Page]>,
    pub outcomes: [Carried; BATCH_PAGES],
    pub deadline: Instant,
}

impl Cargo {
    /// Empties it for another errand.
    pub fn begin(&mut self, errand: Errand, deadline: Instant) {
        self.errand = errand;
        self.deadline = deadline;
        self.count = 0;
    }

    /// Appends a page; its room.
    pub fn push(&mut self, key: Key) -> &mut Page {
        let at = self.count;
        self.keys[at] = key;
        self.outcomes[at] = Carried::Lost;
        self.count += 1;
        &mut self.pages[at]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    UnderWay,
    Done,
}

/// See the module.
#[derive(Debug)]
pub struct Lot {
    stage: Mutex<Stage>,
    done: Condvar,
    cargo: Mutex<Cargo>,
}

impl Lot {
    pub fn new() -> Self {
        let cargo = Cargo {
            errand: Errand::Get,
            count: 0,
            keys: [Key::new(0, 0); BATCH_PAGES],
            pages: Page::rooms(BATCH_PAGES),
            outcomes: [Carried::Lost; BATCH_PAGES],
            deadline: Instant::now(),
        };
        Self { stage: Mutex::new(Stage::Idle), done: Condvar::new(), cargo: Mutex::new(cargo) }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it carries. Waits while a worker has it.
    pub fn cargo(&self) -> MutexGuard<'_, Cargo> {
        self.cargo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no worker has it.
    pub fn is_free(&self) -> bool {
        *self.stage() != Stage::UnderWay
    }

    /// A worker is to have it.
    pub fn hand_over(&self) {
        *self.stage() = Stage::UnderWay;
    }

    /// The worker is done with it.
    pub fn give_back(&self) {
        *self.stage() = Stage::Done;
        self.done.notify_all();
    }

    /// Waits until no worker has it, or until `deadline`; whether none has.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut stage = self.stage();
        while *stage == Stage::UnderWay {
            let Some(deadline) = deadline else {
                stage = self.done.wait(stage).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            stage = match self.done.wait_timeout(stage, left) {
                Ok((stage, _)) => stage,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }
}
