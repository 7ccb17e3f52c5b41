//! The state of a session behind its lock, and a thread's run over its requests.

use std::sync::Arc;

use super::now_us;
use super::request::Request;
use crate::nvme_tcp::association::{Association, Delivery, Step, Ticket};
use crate::nvme_tcp::call::Outcome;
use crate::nvme_tcp::pipe::Pipe;
use crate::nvme_tcp::queue::Outgoing;

/// Most calls of one batch in flight.
const WINDOW: usize = 128;

/// Bytes from a pipe that are not a complete PDU yet.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) bytes: Box<[u8]>,
    pub(super) filled: usize,
}

#[derive(Debug)]
pub(super) struct Lane<P> {
    pub(super) pipe: Option<Arc<P>>,
    /// `None` while a thread reads.
    pub(super) incoming: Option<Incoming>,
    /// `None` while a thread writes.
    pub(super) spare: Option<Outgoing>,
}

/// The owner of a ticket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Owner {
    pub(super) turn: u64,
    pub(super) place: usize,
}

/// Data that arrived for a thread other than the reader.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) bytes: Vec<u8>,
    /// Offset of the data in the value; `None` when nothing is staged.
    pub(super) offset: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Core<P> {
    pub(super) association: Association,
    /// The association that the pipes belong to.
    pub(super) generation: u32,
    pub(super) lanes: Box<[Lane<P>]>,
    pub(super) owners: Box<[Owner]>,
    pub(super) staged: Box<[Staged]>,
    pub(super) dialling: bool,
    pub(super) tick_at_us: u64,
}

/// One thread's run over a set of requests.
pub(super) struct Turn<'r, 'a> {
    pub(super) id: u64,
    pub(super) requests: &'r mut [Request<'a>],
    /// The number of requests opened so far.
    pub(super) opened: usize,
    pub(super) held: [Ticket; WINDOW],
    pub(super) holds: usize,
    /// Most time that each of its calls may take, µs.
    pub(super) timeout_us: u64,
    /// A call was not answered in time. The rest of the batch does not wait for a target that is away.
    pub(super) gave_up: bool,
}

impl<P: Pipe> Core<P> {
    /// Drops the pipes of an ended association.
    pub(super) fn follow(&mut self) {
        if self.generation == self.association.generation() {
            return;
        }
        self.generation = self.association.generation();
        for lane in &mut self.lanes {
            if let Some(pipe) = lane.pipe.take() {
                pipe.shut();
            }
            if let Some(incoming) = &mut lane.incoming {
                incoming.filled = 0;
            }
        }
    }

    /// Handles the complete PDUs that have arrived on a lane.
    pub(super) fn take_in(
        &mut self,
        lane: usize,
        incoming: &mut Incoming,
        turn: &mut Turn<'_, '_>,
    ) {
        let now_us = now_us();
        let mut bytes = &incoming.bytes[..incoming.filled];
        while let Some(delivery) = self.association.receive(lane, &mut bytes, now_us) {
            let Delivery::Data(ticket, offset, data) = delivery else { continue };
            let owner = self.owners[usize::from(ticket)];
            let staged = &mut self.staged[usize::from(ticket)];
            if offset == 0 {
                staged.offset = None;
            }
            if owner.turn == turn.id && staged.offset.is_none() {
                turn.requests[owner.place].accept(offset, data);
            } else {
                if staged.offset.is_none() {
                    staged.offset = Some(offset);
                    staged.bytes.clear();
                }
                staged.bytes.extend_from_slice(data);
            }
        }
        let left = incoming.filled - bytes.len()..incoming.filled;
        incoming.filled = left.len();
        incoming.bytes.copy_within(left, 0);
    }
}

impl<'r, 'a> Turn<'r, 'a> {
    pub(super) const fn new(id: u64, requests: &'r mut [Request<'a>]) -> Self {
        Self {
            id,
            requests,
            opened: 0,
            held: [0; WINDOW],
            holds: 0,
            timeout_us: u64::MAX,
            gave_up: false,
        }
    }

    pub(super) fn held(&self) -> &[Ticket] {
        &self.held[..self.holds]
    }

    pub(super) const fn is_done(&self) -> bool {
        self.holds == 0 && self.opened == self.requests.len()
    }

    /// Collects available outcomes, opens more requests, and sends what can be sent.
    pub(super) fn move_on<P: Pipe>(&mut self, core: &mut Core<P>, now_us: u64) {
        let mut kept = 0;
        for at in 0..self.holds {
            let ticket = self.held[at];
            if !self.collect(core, ticket) {
                self.held[kept] = ticket;
                kept += 1;
            }
        }
        self.holds = kept;
        while self.opened < self.requests.len() && self.holds < WINDOW {
            let away = self.gave_up && core.association.step(now_us) != Step::Up;
            let longest_us = core.association.settings().call_timeout_us;
            let timeout_us = if away { 0 } else { longest_us.min(self.timeout_us) };
            let deadline_us = now_us + timeout_us;
            let call = self.requests[self.opened].call;
            let Some(ticket) = core.association.open(call, deadline_us) else { break };
            core.owners[usize::from(ticket)] = Owner { turn: self.id, place: self.opened };
            core.staged[usize::from(ticket)].offset = None;
            self.held[self.holds] = ticket;
            self.holds += 1;
            self.opened += 1;
        }
        for at in 0..self.holds {
            let ticket = self.held[at];
            let place = core.owners[usize::from(ticket)].place;
            core.association.push(ticket, self.requests[place].value(), now_us);
        }
    }

    /// Takes a call's outcome, if it has one.
    fn collect<P: Pipe>(&mut self, core: &mut Core<P>, ticket: Ticket) -> bool {
        let Some(outcome) = core.association.outcome(ticket) else { return false };
        let request = &mut self.requests[core.owners[usize::from(ticket)].place];
        let staged = &core.staged[usize::from(ticket)];
        if let Some(offset) = staged.offset {
            request.accept(offset, &staged.bytes);
        }
        request.outcome = Some(outcome);
        if let Outcome::Unreachable(_) = outcome {
            self.gave_up = true;
        }
        core.association.release(ticket);
        true
    }
}
