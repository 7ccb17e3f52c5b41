//! Drives an [`Association`]: pipes, threads, the clock.
//!
//! Any number of threads share a session, and it has no thread of its own. A calling thread queues its commands and
//! writes them, with everything else in the send buffer, in one system call. Then, if no thread reads the connection,
//! it becomes the reader: it handles everything that arrives, for all threads, until it has its own answers. Then a
//! thread that still waits becomes the reader. So a lone thread makes one write and one read for each command and wakes
//! no other thread. Many threads, or a batch, fill one connection.
//!
//! Data for the reader's own calls goes straight into its buffers. Data for other threads is staged, and they copy it.
//! No thread holds the lock during a system call on a connection.
//!
//! This code needs neither libc nor thread-local storage. After the start it allocates only to stage values longer than
//! a page. So the pager's tasks can use it too.

mod request;
mod turn;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use rustix::thread::futex;
use spillway_platform::lock::{Guard, Lock};
use spillway_types::PAGE_BYTES;

use super::association::{ADMIN, Association, Step};
use super::call::Trouble;
use super::pipe::{Dial, Pipe};
use super::queue::{Outgoing, PDU_BYTES_MAX};
use super::settings::Settings;
pub use request::{Data, Request};
use turn::{Core, Incoming, Lane, Owner, Staged, Turn};

/// A waiting thread checks the clock at least this often, µs.
const LOOK_US: u64 = 50_000;
/// Number of futex words that threads sleep on.
const PARKING: usize = 64;
const PARKED: u32 = 1;

/// See the module's documentation.
#[derive(Debug)]
pub struct Session<D: Dial> {
    dial: D,
    core: Lock<Core<D::Pipe>>,
    turns: AtomicU64,
    parking: [AtomicU32; PARKING],
}

/// The time of the monotonic clock, µs.
pub fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

impl<D: Dial> Session<D> {
    /// A session that is not connected yet. `seed` must differ between clients.
    pub fn new(dial: D, settings: Settings, seed: u64) -> Self {
        let association = Association::new(settings, seed);
        let lane = |_| Lane {
            pipe: None,
            incoming: Some(Incoming { bytes: vec![0; 2 * PDU_BYTES_MAX].into(), filled: 0 }),
            spare: Some(Outgoing::new()),
        };
        let staged = |_| Staged { bytes: Vec::with_capacity(PAGE_BYTES), offset: None };
        let tickets = association.tickets();
        Self {
            dial,
            turns: AtomicU64::new(0),
            parking: [const { AtomicU32::new(0) }; PARKING],
            core: Lock::new(Core {
                generation: association.generation(),
                lanes: (0..association.lanes()).map(lane).collect(),
                owners: vec![Owner::default(); tickets].into(),
                staged: (0..tickets).map(staged).collect(),
                association,
                dialling: false,
                tick_at_us: 0,
            }),
        }
    }

    /// Calls `look` with the association, under the lock.
    pub fn with<T>(&self, look: impl FnOnce(&mut Association) -> T) -> T {
        look(&mut self.core.lock().association)
    }

    /// Connects, within the time that a call may take.
    ///
    /// # Errors
    /// Why it could not connect. An error that a later attempt can't fix is returned at once.
    pub fn connect(&self) -> Result<(), Trouble> {
        let mut turn = Turn::new(self.turns.fetch_add(1, Ordering::Relaxed), &mut []);
        let mut core = self.core.lock();
        let deadline_us = now_us() + core.association.settings().call_timeout_us;
        loop {
            let trouble = core.association.trouble();
            match core.association.step(now_us()) {
                Step::Up => return Ok(()),
                Step::Stopped => return Err(trouble),
                _ if trouble.is_final() || deadline_us <= now_us() => return Err(trouble),
                _ => {}
            }
            core = self.tick(core);
            core = self.flush(core, &mut turn);
            core = self.bring_up(core, &mut turn);
            self.wake_changed(&mut core, turn.id);
        }
    }

    /// Runs the requests, and sets the outcome of each.
    pub fn run(&self, requests: &mut [Request<'_>]) {
        self.run_within(requests, u64::MAX);
    }

    /// The same within `timeout_us`, if that is less than the time that a call may take. A write that times out ends
    /// the association, so that it can't take effect later.
    pub fn run_within(&self, requests: &mut [Request<'_>], timeout_us: u64) {
        let mut turn = Turn::new(self.turns.fetch_add(1, Ordering::Relaxed), requests);
        turn.timeout_us = timeout_us;
        let mut core = self.core.lock();
        loop {
            core = self.tick(core);
            turn.move_on(&mut core, now_us());
            self.wake_changed(&mut core, turn.id);
            if turn.is_done() {
                break;
            }
            core = self.flush(core, &mut turn);
            core = self.wait(core, &mut turn);
        }
        self.hand_over(&core);
    }

    /// Keeps an idle association alive, and reconnects when it has ended. Returns the time of the next call, µs; call
    /// it then or earlier.
    pub fn tend(&self) -> u64 {
        let mut turn = Turn::new(self.turns.fetch_add(1, Ordering::Relaxed), &mut []);
        let mut core = self.tick(self.core.lock());
        core = self.flush(core, &mut turn);
        match core.association.step(now_us()) {
            Step::Up => core = self.read(core, ADMIN, 0, &mut turn),
            Step::Stopped => return u64::MAX,
            _ => core = self.bring_up(core, &mut turn),
        }
        self.wake_changed(&mut core, turn.id);
        self.hand_over(&core);
        let look_us = now_us() + core.association.settings().keep_alive_us / 6;
        match core.association.step(now_us()) {
            Step::Up => core.association.tick_at().min(look_us),
            Step::Sleep(until_us) => until_us.min(look_us),
            _ => now_us(),
        }
    }

    /// Ends the session: calls in flight fail.
    pub fn stop(&self) {
        let mut core = self.core.lock();
        core.association.stop(now_us());
        core.follow();
        self.wake_changed(&mut core, u64::MAX);
    }

    fn tick<'s>(&'s self, mut core: Guard<'s, Core<D::Pipe>>) -> Guard<'s, Core<D::Pipe>> {
        let now_us = now_us();
        if core.tick_at_us <= now_us {
            core.association.tick(now_us);
            core.tick_at_us = now_us + LOOK_US / 4;
        }
        core.follow();
        core
    }

    /// Writes the send buffers of all lanes that no thread writes to.
    fn flush<'s>(
        &'s self,
        mut core: Guard<'s, Core<D::Pipe>>,
        turn: &mut Turn<'_, '_>,
    ) -> Guard<'s, Core<D::Pipe>> {
        for lane in 0..core.lanes.len() {
            while !core.association.outgoing(lane).is_empty() {
                let Some(pipe) = core.lanes[lane].pipe.clone() else { break };
                let Some(mut bytes) = core.lanes[lane].spare.take() else { break };
                core::mem::swap(&mut bytes, core.association.outgoing(lane));
                core = self.send_all(core, lane, &pipe, &mut bytes, turn);
                bytes.clear();
                core.lanes[lane].spare = Some(bytes);
                core.association.rouse();
                turn.move_on(&mut core, now_us());
                self.wake_changed(&mut core, turn.id);
            }
        }
        core
    }

    /// Sends all of `bytes`, or as much as possible before the association ends.
    fn send_all<'s>(
        &'s self,
        mut core: Guard<'s, Core<D::Pipe>>,
        lane: usize,
        pipe: &Arc<D::Pipe>,
        bytes: &mut Outgoing,
        turn: &mut Turn<'_, '_>,
    ) -> Guard<'s, Core<D::Pipe>> {
        let generation = core.generation;
        loop {
            drop(core);
            let sent = pipe.send(bytes.bytes());
            core = self.core.lock();
            if core.generation != generation {
                return core;
            }
            match sent {
                Ok(0) => {}
                Ok(count) => {
                    bytes.sent(count);
                    if bytes.is_empty() {
                        return core;
                    }
                    continue;
                }
                Err(closed) => {
                    core.association.closed(closed, now_us());
                    core.follow();
                    return core;
                }
            }
            // No room: the target may not read until this side reads.
            let reader = core.lanes[lane].incoming.is_some();
            if reader {
                core = self.read(core, lane, 0, turn);
            }
            drop(core);
            pipe.wait_room(reader, LOOK_US);
            core = self.tick(self.core.lock());
            if core.generation != generation {
                return core;
            }
        }
    }

    /// Waits until there may be work for this turn, and does what the connection needs.
    fn wait<'s>(
        &'s self,
        mut core: Guard<'s, Core<D::Pipe>>,
        turn: &mut Turn<'_, '_>,
    ) -> Guard<'s, Core<D::Pipe>> {
        if core.association.step(now_us()) != Step::Up {
            return self.bring_up(core, turn);
        }
        let awaited = turn.held().iter().filter_map(|&ticket| core.association.lane(ticket));
        let mut unread = awaited.filter(|&lane| core.lanes[lane].incoming.is_some());
        match unread.next() {
            Some(lane) => self.read(core, lane, LOOK_US, turn),
            None => {
                self.park(core, turn, LOOK_US);
                core = self.core.lock();
                core
            }
        }
    }

    /// Does the next step of connecting, or waits while another thread does.
    fn bring_up<'s>(
        &'s self,
        mut core: Guard<'s, Core<D::Pipe>>,
        turn: &mut Turn<'_, '_>,
    ) -> Guard<'s, Core<D::Pipe>> {
        let now = now_us();
        let wait_us = match core.association.step(now) {
            Step::Dial(lane) if !core.dialling => return self.dial(core, lane),
            Step::Read(lane) if core.lanes[lane].incoming.is_some() => {
                return self.read(core, lane, LOOK_US, turn);
            }
            Step::Sleep(until_us) => (until_us - now).min(LOOK_US),
            Step::Up | Step::Stopped => return core,
            _ => LOOK_US,
        };
        self.park(core, turn, wait_us);
        core = self.core.lock();
        core
    }

    fn dial<'s>(
        &'s self,
        mut core: Guard<'s, Core<D::Pipe>>,
        lane: usize,
    ) -> Guard<'s, Core<D::Pipe>> {
        let generation = core.generation;
        let wait_us = core.association.settings().connect_timeout_us;
        core.dialling = true;
        drop(core);
        let dialled = self.dial.dial(wait_us);
        core = self.core.lock();
        core.dialling = false;
        core.follow();
        if core.generation != generation {
            return core;
        }
        match dialled {
            Ok(pipe) => {
                core.lanes[lane].pipe = Some(Arc::new(pipe));
                core.association.dialled(lane, now_us());
            }
            Err(closed) => core.association.closed(closed, now_us()),
        }
        core.follow();
        core
    }

    /// Reads a lane once, unless another thread reads it, and handles the bytes.
    fn read<'s>(
        &'s self,
        mut core: Guard<'s, Core<D::Pipe>>,
        lane: usize,
        wait_us: u64,
        turn: &mut Turn<'_, '_>,
    ) -> Guard<'s, Core<D::Pipe>> {
        let Some(pipe) = core.lanes[lane].pipe.clone() else { return core };
        let Some(mut incoming) = core.lanes[lane].incoming.take() else { return core };
        let generation = core.generation;
        drop(core);
        let received = pipe.receive(&mut incoming.bytes[incoming.filled..], wait_us);
        core = self.core.lock();
        if core.generation == generation {
            match received {
                Ok(count) => {
                    incoming.filled += count;
                    core.take_in(lane, &mut incoming, turn);
                }
                Err(closed) => core.association.closed(closed, now_us()),
            }
        }
        if core.generation != generation || core.association.generation() != generation {
            incoming.filled = 0;
        }
        core.lanes[lane].incoming = Some(incoming);
        core.follow();
        core
    }

    /// Sleeps until another thread has an event for this turn, or `wait_us` have passed.
    fn park(&self, core: Guard<'_, Core<D::Pipe>>, turn: &Turn<'_, '_>, wait_us: u64) {
        let word = self.word(turn.id);
        word.store(PARKED, Ordering::Relaxed);
        drop(core);
        let wait = rustix::thread::Timespec {
            tv_sec: (wait_us / 1_000_000) as i64,
            tv_nsec: (wait_us % 1_000_000 * 1_000) as i64,
        };
        // After an interrupted or late wait, the caller only checks again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, PARKED, Some(&wait));
    }

    fn word(&self, turn: u64) -> &AtomicU32 {
        &self.parking[(turn % PARKING as u64) as usize]
    }

    /// Wakes a turn if it sleeps. The caller must hold the lock, under which turns go to sleep.
    fn wake(&self, turn: u64) {
        let word = self.word(turn);
        if word.swap(0, Ordering::Relaxed) == PARKED {
            // More turns than words share words: wake all of them.
            let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Wakes the turns whose calls have changed.
    fn wake_changed(&self, core: &mut Core<D::Pipe>, me: u64) {
        while let Some(ticket) = core.association.next_changed() {
            let turn = core.owners[usize::from(ticket)].turn;
            if turn != me {
                self.wake(turn);
            }
        }
    }

    /// Stops reading for this turn, and wakes turns that wait for answers on lanes without a reader.
    fn hand_over(&self, core: &Core<D::Pipe>) {
        for (lane, state) in core.lanes.iter().enumerate() {
            if state.incoming.is_some()
                && let Some(ticket) = core.association.awaited_on(lane)
            {
                self.wake(core.owners[usize::from(ticket)].turn);
            }
        }
    }
}
