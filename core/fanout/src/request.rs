//! A request to one holder: pages that are sent or fetched together, in buffers of their own.
//!
//! The thread that sends a request shares its slot with the worker that executes it. The thread can
//! stop waiting at a deadline: the buffers stay with the worker until it has completed the request.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use spillway_types::Key;

use crate::lender::{BATCH_PAGES, PageOutcome};
use crate::page::Page;

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
    pub deadline: Instant,
}

impl Payload {
    /// Empties the payload for a new request.
    pub fn reset(&mut self, operation: Operation, deadline: Instant) {
        self.operation = operation;
        self.deadline = deadline;
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
    Done,
}

/// A slot for one request, reused for the next one. See the module.
#[derive(Debug)]
pub struct RequestSlot {
    stage: Mutex<Stage>,
    done: Condvar,
    payload: Mutex<Payload>,
}

impl RequestSlot {
    pub fn new() -> Self {
        let payload = Payload {
            operation: Operation::Get,
            count: 0,
            keys: [Key::new(0, 0); BATCH_PAGES],
            pages: Page::rooms(BATCH_PAGES),
            outcomes: [PageOutcome::Lost; BATCH_PAGES],
            deadline: Instant::now(),
        };
        Self { stage: Mutex::new(Stage::Idle), done: Condvar::new(), payload: Mutex::new(payload) }
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
        *self.stage() != Stage::InFlight
    }

    /// Marks the request as in flight.
    pub fn start(&self) {
        *self.stage() = Stage::InFlight;
    }

    /// Marks the request as completed, and wakes the thread that waits for it.
    pub fn complete(&self) {
        *self.stage() = Stage::Done;
        self.done.notify_all();
    }

    /// Waits until the request is completed, or until `deadline`. Returns whether it is completed.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut stage = self.stage();
        while *stage == Stage::InFlight {
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
