//! A request to one holder: pages that are sent or fetched together, in buffers of their own.
//!
//! The thread that sends a request shares its slot with the worker that executes it. The thread can
//! stop waiting at a deadline: the buffers stay with the worker until it has completed the request.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_types::Key;

use crate::lender::{BATCH_PAGES, PageOutcome};
use crate::page::Page;
use crate::pulse::Pulse;

/// What a request asks of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Put,
    Get,
    Flush,
}

/// The keys, pages and outcomes of a request.
#[derive(Debug)]
pub struct Payload {
    pub operation: Operation,
    pub count: usize,
    pub keys: [Key; BATCH_PAGES],
    pub pages: Box<[Page]>,
    pub outcomes: [PageOutcome; BATCH_PAGES],
    /// When the request was made.
    pub sent: Instant,
    pub deadline: Instant,
}

impl Payload {
    /// Empties the payload for a new request.
    pub fn reset(&mut self, operation: Operation, deadline: Instant) {
        self.operation = operation;
        (self.sent, self.deadline) = (Instant::now(), deadline);
        self.count = 0;
    }

    /// Appends a page and returns its buffer.
    pub fn push(&mut self, key: Key) -> &mut Page {
        let at = self.count;
        self.keys[at] = key;
        self.outcomes[at] = PageOutcome::Lost;
        self.count += 1;
        &mut self.pages[at]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    InFlight,
    /// It takes longer than expected, or nobody waits for it any more.
    Overdue,
    Done,
}

impl Stage {
    const fn is_in_flight(self) -> bool {
        matches!(self, Self::InFlight | Self::Overdue)
    }
}

/// A slot for one request, reused for the next one. See the module.
#[derive(Debug)]
pub struct RequestSlot {
    stage: Mutex<Stage>,
    finished: Arc<Finished>,
    payload: Mutex<Payload>,
}

impl RequestSlot {
    pub fn new(finished: Arc<Finished>) -> Self {
        let payload = Payload {
            operation: Operation::Get,
            count: 0,
            keys: [Key::new(0, 0); BATCH_PAGES],
            pages: Page::rooms(BATCH_PAGES),
            outcomes: [PageOutcome::Lost; BATCH_PAGES],
            sent: Instant::now(),
            deadline: Instant::now(),
        };
        Self { stage: Mutex::new(Stage::Idle), finished, payload: Mutex::new(payload) }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The payload. Waits while a worker has it locked.
    pub fn payload(&self) -> MutexGuard<'_, Payload> {
        self.payload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the slot can take a new request: none of its requests is in flight.
    pub fn is_free(&self) -> bool {
        !self.stage().is_in_flight()
    }

    /// Marks the request as in flight.
    pub fn start(&self) {
        *self.stage() = Stage::InFlight;
    }

    /// Marks the request as overdue with its holder, if it is in flight.
    pub fn mark_overdue(&self, pulse: &Pulse) {
        let mut stage = self.stage();
        if *stage == Stage::InFlight {
            *stage = Stage::Overdue;
            pulse.begin_overdue();
        }
    }

    /// Marks the request as completed, and wakes the thread that waits for it or for another one.
    pub fn complete(&self, pulse: &Pulse) {
        let mut stage = self.stage();
        if *stage == Stage::Overdue {
            pulse.end_overdue();
        }
        *stage = Stage::Done;
        drop(stage);
        self.finished.add();
    }

    /// Waits until the request is completed, or until `deadline`. Returns whether it is completed.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        loop {
            let seen = self.finished.count();
            if self.is_free() {
                return true;
            }
            if !self.finished.wait(seen, deadline) {
                return self.is_free();
            }
        }
    }
}

/// Counts the requests of a thread's slots that have been completed.
#[derive(Debug, Default)]
pub struct Finished {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Finished {
    fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another count than `seen` is reached, or until `deadline`. Returns whether it is.
    pub fn wait(&self, seen: u64, deadline: Option<Instant>) -> bool {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count == seen {
            let Some(deadline) = deadline else {
                count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            count = match self.changed.wait_timeout(count, left) {
                Ok((count, _)) => count,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }
}
