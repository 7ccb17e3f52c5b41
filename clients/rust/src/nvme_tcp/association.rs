//! The association with a target: its queues, how it connects and reconnects, and its calls in flight. It does no I/O:
//! the caller passes in pipes, bytes and the time.
//!
//! ```text
//!          dialled, IC, Connect, authentication           all queues connected
//!   Down ------------------------------------> Starting -------------------------> Mending
//!    ^    (admin queue: enable, identify, count of     (pools that are not the same   |
//!    |     queues, list of pools; then each I/O queue)  any more are lost)            | keys in doubt
//!    |                                                                                v are deleted
//!    +---- a pipe ended, a command or a keep alive was not answered ---------------- Up
//! ```
//!
//! A call has a *ticket* from [`Association::open`] to [`Association::release`]. The association keeps no copy of the
//! value that a call stores: its owner passes the value each time the call is sent. [`super::call`] has the rules for
//! retries.
//!
//! A call never fails while its command may still be in flight on a live connection: a write that runs out of time ends
//! the association first.

mod deadlines;

use spillway_wire::nvme::{Completion, Status};

use super::call::{Call, Outcome, PoolRef, Retry, Trouble};
use super::commands;
use super::doubt::Doubts;
use super::phase::{Phase, Stage};
use super::pipe::Closed;
use super::pools::{Pools, Standing};
use super::queue::{Event, Outgoing, Queue};
use super::settings::Settings;

/// The admin queue's lane.
pub const ADMIN: usize = 0;
/// Most commands in flight on the admin queue.
pub(super) const ADMIN_DEPTH: u16 = 32;
/// Bytes of the buffer for the association's own commands: identify data, lists of pools.
const BUFFER_BYTES: usize = 64 << 10;
/// Shortest and longest wait before the target is dialled again, µs.
const BACKOFF_US: (u64, u64) = (20_000, 1_280_000);
/// Tags of commands without a ticket.
pub(super) const INTERNAL: u16 = u16::MAX;
const KEEP_ALIVE: u16 = u16::MAX - 1;

/// Names a call in flight.
pub type Ticket = u16;

/// The next step of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a pipe for this lane.
    Dial(usize),
    /// Wait for bytes on this lane.
    Read(usize),
    /// Wait until this time, µs.
    Sleep(u64),
    /// The association is up.
    Up,
    /// It was stopped, and does not connect again.
    Stopped,
}

/// The effect of received bytes on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<'b> {
    /// Data that the call reads: its bytes and their offset.
    Data(Ticket, usize, &'b [u8]),
    /// An event without data.
    Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Free,
    /// Ready to send, for the first time or again.
    Waiting,
    Sent {
        lane: usize,
        at_us: u64,
    },
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    state: CallState,
    call: Call,
    /// Place in the order in which calls were opened.
    order: u64,
    deadline_us: u64,
    /// The target has requested bytes of the value.
    wanted: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Association {
    pub(super) settings: Settings,
    pub(super) queues: Box<[Queue]>,
    pub(super) phase: Phase,
    /// Number of associations that have ended.
    generation: u32,
    pub(super) controller: u16,
    pub(super) capsule_data_bytes: u32,
    pending: Box<[Pending]>,
    opened: u64,
    /// All tickets from this one on are free.
    top: usize,
    /// A call had to wait: for a free command slot, for buffer space, or for an earlier answer.
    pub(super) held_back: bool,
    /// Tickets whose owners must check them.
    changed: Vec<Ticket>,
    pub(super) pools: Pools,
    pub(super) doubts: Doubts,
    pub(super) buffer: Box<[u8]>,
    /// Bytes that the association's latest command has received into `buffer`.
    pub(super) buffered: usize,
    pub(super) failures: u32,
    trouble: Trouble,
    jitter: u64,
    pub(super) keep_alive_at_us: u64,
    /// When the unanswered keep alive was sent.
    keep_alive_sent_us: Option<u64>,
}

impl Association {
    /// An association that is down and may be dialled at once. `seed` spreads the reconnects of clients that lost the
    /// same target.
    pub fn new(settings: Settings, seed: u64) -> Self {
        let idle = Pending {
            state: CallState::Free,
            call: Call::Pools(0),
            order: 0,
            deadline_us: 0,
            wanted: false,
        };
        let tickets = usize::from(settings.depth) * usize::from(settings.io_queues)
            + usize::from(ADMIN_DEPTH);
        let queue =
            |lane: usize| Queue::new(if lane == ADMIN { ADMIN_DEPTH } else { settings.depth } - 1);
        Self {
            queues: (0..=usize::from(settings.io_queues)).map(queue).collect(),
            phase: Phase::Down { dial_at_us: 0 },
            generation: 0,
            controller: 0,
            capsule_data_bytes: 0,
            pending: vec![idle; tickets].into(),
            opened: 0,
            top: 0,
            held_back: false,
            changed: Vec::with_capacity(2 * tickets),
            pools: Pools::default(),
            doubts: Doubts::new(),
            buffer: vec![0; BUFFER_BYTES].into(),
            buffered: 0,
            failures: 0,
            trouble: Trouble::NotTried,
            jitter: seed | 1,
            keep_alive_at_us: 0,
            keep_alive_sent_us: None,
            settings,
        }
    }

    /// The settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of associations that have ended. When it grows, shut down and drop all pipes.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Why the last association ended or could not be made.
    pub const fn trouble(&self) -> Trouble {
        self.trouble
    }

    /// The client's pools as this session knows them.
    pub const fn pools(&mut self) -> &mut Pools {
        &mut self.pools
    }

    /// Most calls in flight.
    pub const fn tickets(&self) -> usize {
        self.pending.len()
    }

    /// A call that waits for an answer on this lane.
    pub fn awaited_on(&self, lane: usize) -> Option<Ticket> {
        let awaited = |pending: &Pending| matches!(pending.state, CallState::Sent { lane: on, .. } if on == lane);
        self.active().iter().position(awaited).map(|ticket| ticket as Ticket)
    }

    /// Lanes: the admin queue and the I/O queues.
    pub const fn lanes(&self) -> usize {
        self.queues.len()
    }

    /// The next step of connecting.
    pub const fn step(&self, now_us: u64) -> Step {
        match self.phase {
            Phase::Down { dial_at_us } if dial_at_us > now_us => Step::Sleep(dial_at_us),
            Phase::Down { .. } => Step::Dial(ADMIN),
            Phase::Starting { lane, stage: Stage::Dial, .. } => Step::Dial(lane),
            Phase::Starting { lane, .. } => Step::Read(lane),
            Phase::Mending { .. } => Step::Read(ADMIN + 1),
            Phase::Up => Step::Up,
            Phase::Stopped => Step::Stopped,
        }
    }

    /// Records that a pipe could not be made, or has ended.
    pub fn closed(&mut self, closed: Closed, now_us: u64) {
        self.end(Trouble::Closed(closed), now_us);
    }

    /// Ends the association for good. Calls in flight fail.
    pub fn stop(&mut self, now_us: u64) {
        self.end(Trouble::NotTried, now_us);
        self.phase = Phase::Stopped;
        for ticket in 0..self.top {
            if self.pending[ticket].state == CallState::Waiting {
                self.fail(ticket, Outcome::Unreachable(self.trouble));
            }
        }
    }

    /// Bytes to send on a lane. The caller sends all of them, or some from the front.
    pub const fn outgoing(&mut self, lane: usize) -> &mut Outgoing {
        self.queues[lane].outgoing()
    }

    /// Takes the next PDU from bytes received on a lane. `None` when no PDU is complete: then pass the rest of `bytes`
    /// again, followed by newly received bytes.
    pub fn receive<'b>(
        &mut self,
        lane: usize,
        bytes: &mut &'b [u8],
        now_us: u64,
    ) -> Option<Delivery<'b>> {
        match self.queues[lane].next(bytes) {
            Ok(event) => Some(self.deliver(event?, now_us)),
            Err(trouble) => {
                self.end(trouble, now_us);
                None
            }
        }
    }

    fn deliver<'b>(&mut self, event: Event<'b>, now_us: u64) -> Delivery<'b> {
        match event {
            Event::Data { tag: INTERNAL, offset, bytes } => {
                // The queue has checked that the data is within the requested range.
                self.buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Event::Data { tag, offset, bytes } => return Delivery::Data(tag, offset, bytes),
            Event::Initialized => self.advance(&Completion::default(), now_us),
            Event::Wanted { tag } => {
                // The association's own commands send their data in the capsule.
                if let Some(pending) = self.pending.get_mut(usize::from(tag)) {
                    pending.wanted = true;
                    note(&mut self.changed, tag);
                }
            }
            Event::Done { tag: INTERNAL, completion, bytes } => {
                self.buffered = bytes as usize;
                self.advance(&completion, now_us);
            }
            Event::Done { tag: KEEP_ALIVE, completion, .. } => {
                self.keep_alive_sent_us = None;
                if !completion.status.is_success() {
                    self.end(Trouble::Refused("Keep Alive", completion.status.0), now_us);
                }
            }
            Event::Done { tag, completion, bytes } => {
                self.answered(tag, &completion, bytes, now_us);
            }
        }
        Delivery::Progress
    }

    /// Handles the target's answer to a call.
    fn answered(&mut self, ticket: Ticket, completion: &Completion, bytes: u32, now_us: u64) {
        let status = completion.status.code();
        if matches!(status, Status::ABORTED | Status::TRANSPORT | Status::PATH) {
            // The command was not executed, and the target is about to end the association.
            self.end(Trouble::Refused("a command", status.0), now_us);
            return;
        }
        let pending = &self.pending[usize::from(ticket)];
        let lost = status == Status::INVALID_NAMESPACE;
        if let Some(pool) = pending.call.pool().filter(|_| lost) {
            self.lose(pool);
            self.conclude(ticket, Outcome::PoolLost);
            return;
        }
        let outcome = Outcome::Answered {
            status: status.0,
            result: completion.result,
            bytes,
            generation: self.generation,
        };
        self.conclude(ticket, outcome);
    }

    fn conclude(&mut self, ticket: Ticket, outcome: Outcome) {
        self.pending[usize::from(ticket)].state = CallState::Ended(outcome);
        note(&mut self.changed, ticket);
        self.rouse();
    }

    /// Makes the owners of waiting calls check again: there may be room now.
    pub fn rouse(&mut self) {
        if !core::mem::take(&mut self.held_back) {
            return;
        }
        for (ticket, pending) in self.pending[..self.top].iter().enumerate() {
            if pending.state == CallState::Waiting || pending.wanted {
                note(&mut self.changed, ticket as Ticket);
            }
        }
    }

    /// The next ticket whose owner must check it, if any.
    pub fn next_changed(&mut self) -> Option<Ticket> {
        self.changed.pop()
    }

    /// Opens a call with a deadline. `None` when all tickets are in use.
    pub fn open(&mut self, call: Call, deadline_us: u64) -> Option<Ticket> {
        let ticket = self.pending.iter().position(|pending| pending.state == CallState::Free)?;
        self.opened += 1;
        let state = match call.pool() {
            _ if self.phase == Phase::Stopped => {
                CallState::Ended(Outcome::Unreachable(self.trouble))
            }
            Some(pool) if self.pools.number(pool).is_none() => CallState::Ended(Outcome::PoolLost),
            _ => CallState::Waiting,
        };
        self.pending[ticket] =
            Pending { state, call, order: self.opened, deadline_us, wanted: false };
        self.top = self.top.max(ticket + 1);
        Some(ticket as Ticket)
    }

    /// How the call ended, if it has.
    pub fn outcome(&self, ticket: Ticket) -> Option<Outcome> {
        match self.pending[usize::from(ticket)].state {
            CallState::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The lane on which the call waits for its answer.
    pub fn lane(&self, ticket: Ticket) -> Option<usize> {
        match self.pending[usize::from(ticket)].state {
            CallState::Sent { lane, .. } => Some(lane),
            _ => None,
        }
    }

    /// Returns the ticket of a call that has ended.
    pub fn release(&mut self, ticket: Ticket) {
        self.pending[usize::from(ticket)].state = CallState::Free;
        while self.top > 0 && self.pending[self.top - 1].state == CallState::Free {
            self.top -= 1;
        }
    }

    /// The slots up to the last call in flight. Some may be free.
    fn active(&self) -> &[Pending] {
        &self.pending[..self.top]
    }

    /// Sends a call with its `value`, or the part of `value` that the target has requested, if possible now. `value` is
    /// empty for calls that send nothing.
    pub fn push(&mut self, ticket: Ticket, value: &[u8], now_us: u64) {
        let pending = self.pending[usize::from(ticket)];
        let moved = match pending.state {
            CallState::Sent { lane, .. } if pending.wanted => {
                let supplied = self.queues[lane].supply(ticket, value);
                self.pending[usize::from(ticket)].wanted = !supplied;
                supplied
            }
            CallState::Waiting => self.may_be_sent(&pending) && self.send(ticket, value, now_us),
            _ => true,
        };
        self.held_back |= !moved;
    }

    fn may_be_sent(&self, pending: &Pending) -> bool {
        self.phase == Phase::Up
            && !self.active().iter().any(|other| {
                other.order < pending.order
                    && matches!(other.state, CallState::Waiting | CallState::Sent { .. })
                    && pending.call.must_follow(&other.call)
            })
    }

    /// Sends a call. Returns false when there is no room.
    fn send(&mut self, ticket: Ticket, value: &[u8], now_us: u64) -> bool {
        let call = self.pending[usize::from(ticket)].call;
        let number = match call.pool() {
            Some(pool) => match self.pools.number(pool) {
                Some(number) => number,
                None => {
                    self.conclude(ticket, Outcome::PoolLost);
                    return true;
                }
            },
            None => 0,
        };
        let io = ADMIN + 1..self.queues.len();
        let lane = match call.is_admin() {
            true => ADMIN,
            false => io.min_by_key(|&lane| self.queues[lane].in_flight()).unwrap_or(ADMIN + 1),
        };
        let mut inline = [0; commands::INLINE_BYTES];
        let (command, payload) = commands::of_call(&call, number, value, &mut inline);
        let sent = self.queues[lane].submit(ticket, command, payload).is_ok();
        if sent {
            self.pending[usize::from(ticket)].state = CallState::Sent { lane, at_us: now_us };
        }
        sent
    }

    /// Whether a call that fails leaves its key in doubt.
    fn leaves_doubt(&self, call: &Call) -> bool {
        call.retry() == Retry::Private
            && call.pool().is_some_and(|pool| self.pools.is_private(pool))
    }

    fn fail(&mut self, ticket: usize, outcome: Outcome) {
        let call = self.pending[ticket].call;
        self.conclude(ticket as Ticket, outcome);
        if self.leaves_doubt(&call)
            && !self.doubts.add(&call)
            && let Some(pool) = call.pool()
        {
            self.lose(pool);
        }
    }

    pub(super) fn lose(&mut self, pool: PoolRef) {
        self.pools.lose(pool);
        self.doubts.forget(pool);
        self.end_calls_of_lost_pools();
    }

    fn end_calls_of_lost_pools(&mut self) {
        for ticket in 0..self.top {
            let Pending { state, call, .. } = self.pending[ticket];
            let lost = call.pool().is_some_and(|pool| self.pools.standing(pool) == Standing::Lost);
            if lost && state == CallState::Waiting {
                self.conclude(ticket as Ticket, Outcome::PoolLost);
            }
        }
    }

    /// Ends the association. Calls that can be retried wait for the next one.
    pub(super) fn end(&mut self, trouble: Trouble, now_us: u64) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.trouble = trouble;
        self.generation += 1;
        self.keep_alive_sent_us = None;
        for queue in &mut self.queues {
            queue.stop();
        }
        let wait_us = if self.phase == Phase::Up { 0 } else { self.backoff_us() };
        self.phase = Phase::Down { dial_at_us: now_us + wait_us };
        for ticket in 0..self.top {
            let Pending { state: CallState::Sent { .. }, call, .. } = self.pending[ticket] else {
                continue;
            };
            self.pending[ticket].wanted = false;
            let again = match call.retry() {
                Retry::Always => true,
                Retry::Private => self.leaves_doubt(&call),
                Retry::Never => false,
            };
            if again {
                self.pending[ticket].state = CallState::Waiting;
            } else {
                self.fail(ticket, Outcome::Unknown(trouble));
            }
        }
        self.held_back = true;
        self.rouse();
    }

    /// The wait before the next attempt, µs: twice the last one, plus up to a quarter.
    fn backoff_us(&mut self) -> u64 {
        let wait_us = (BACKOFF_US.0 << self.failures.min(6)).min(BACKOFF_US.1);
        self.failures += 1;
        // Xorshift (G. Marsaglia, 2003).
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        wait_us + self.jitter % (wait_us / 4)
    }
}

/// Adds a ticket whose owner must check it. The list never grows: a full one contains duplicates, which are removed.
fn note(changed: &mut Vec<Ticket>, ticket: Ticket) {
    if changed.len() == changed.capacity() {
        changed.sort_unstable();
        changed.dedup();
    }
    changed.push(ticket);
}
