//! The client's side of one queue pair.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_ring::Region;
use spillway_types::{Get, PAGE_BYTES, Put, VALUE_BYTES_MAX};
use spillway_wire::kv::{self, io};
use spillway_wire::nvme::{Command, Completion, Status};
use spillway_wire::ring::{DATA_BYTES_MAX, WAKE, data};

use super::connect::{Connected, Peer, connect};
use super::polling::Polling;
use super::{RingOptions, error_of};
use crate::{Error, Operation, Outcome, Pool};

/// Most operations in flight: one bit of a word each.
pub const SLOTS_MAX: usize = 64;
/// Commands written between two updates of the doorbell, so that the server starts before the last
/// one is written.
const DOORBELL_EVERY: u32 = 4;
/// Polls of the queue between two reads of the clock.
const LOOKS: u32 = 32;
/// Size of the data area of a lane that need not hold values of any length.
const AREA_BYTES: u32 = 1 << 20;
/// Part of the data area used by long values in flight, so that it stays in the caches; at least two values, if
/// they fit.
const WINDOW_BYTES: usize = 1 << 20;

/// A queue pair, and a slot in the data area for each operation in flight.
#[derive(Debug)]
pub struct Lane {
    socket: OwnedFd,
    region: Region,
    instance: u64,
    polling: Polling,
    timeout: Duration,
    /// Commands written, and completions read, so far.
    submitted: u32,
    completed: u32,
    /// A bit for each free slot.
    free: u64,
    /// The slots of the batch in progress.
    window: Window,
    /// The operation of the batch in each slot.
    operation: [u32; SLOTS_MAX],
    lost: bool,
}

/// Slots for operations in flight: each has a command id and a part of the data area.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// A bit for each.
    slots: u64,
    /// Bytes of each part.
    room: usize,
}

impl Window {
    /// As many slots as fit in `area_bytes`, at most `most`.
    const fn new(area_bytes: usize, room: usize, most: usize) -> Self {
        let fit = area_bytes / room;
        let count = if fit < most { fit } else { most };
        let count = if count < SLOTS_MAX { count } else { SLOTS_MAX };
        Self { slots: if count == 0 { 0 } else { u64::MAX >> (SLOTS_MAX - count) }, room }
    }

    /// The offset of a slot's part.
    const fn offset(&self, slot: u16) -> usize {
        slot as usize * self.room
    }

    /// Builds the command of an operation, and copies a value to its slot. `None` if the value does
    /// not fit.
    #[inline]
    fn prepare(
        &self,
        region: &Region,
        slot: u16,
        operation: &Operation<'_>,
    ) -> Result<Option<Command>, Error> {
        let (offset, room) = (self.offset(slot), self.room);
        let retrieve = |opcode, pool, key, bytes: usize| {
            let bytes = bytes.min(room) as u32;
            let mut command = kv::retrieve(opcode, slot, namespace(pool)?, key, bytes);
            command.data = data(offset as u32, bytes);
            Ok(Some(command))
        };
        match *operation {
            Operation::Put { pool, key, value } => {
                if value.is_empty() || value.len() > VALUE_BYTES_MAX {
                    return Err(Error::Length { bytes: value.len(), limit: VALUE_BYTES_MAX });
                }
                if value.len() > room {
                    return Ok(None);
                }
                let bytes = value.len() as u32;
                region.write(offset, value);
                let mut command = kv::store(slot, namespace(pool)?, key, bytes);
                command.data = data(offset as u32, bytes);
                Ok(Some(command))
            }
            Operation::Get { pool, key, ref value } => {
                retrieve(io::RETRIEVE, pool, key, value.len())
            }
            Operation::Take { pool, key, ref value } => retrieve(io::TAKE, pool, key, value.len()),
            Operation::Flush { pool, key } => {
                Ok(Some(kv::with_key(io::DELETE, slot, namespace(pool)?, key)))
            }
            Operation::FlushObject { pool, object } => {
                Ok(Some(kv::flush_object(slot, namespace(pool)?, object)))
            }
            Operation::Exists { pool, key } => {
                Ok(Some(kv::with_key(io::EXIST, slot, namespace(pool)?, key)))
            }
        }
    }

    /// The outcome of an operation. `None` if its value is longer than the slot, but not than the
    /// caller's buffer.
    #[inline]
    fn finish(
        &self,
        region: &Region,
        slot: u16,
        operation: &mut Operation<'_>,
        completion: &Completion,
    ) -> Result<Option<Outcome>, Error> {
        let (status, result) = (completion.status, completion.result);
        Ok(Some(match operation {
            Operation::Put { value, .. } => match status.code() {
                Status::SUCCESS => Outcome::Put(Put::Stored),
                Status::CAPACITY => Outcome::Put(Put::Refused(kv::refusal_of(result))),
                _ => return Err(error_of(status, value.len())),
            },
            Operation::Get { value, .. } | Operation::Take { value, .. } => match status.code() {
                Status::SUCCESS => {
                    let bytes = usize::try_from(result).unwrap_or(usize::MAX);
                    if bytes > value.len() {
                        Outcome::Get(Get::Short(bytes))
                    } else if bytes > self.room {
                        return Ok(None);
                    } else {
                        region.read(self.offset(slot), &mut value[..bytes]);
                        Outcome::Get(Get::Hit(bytes))
                    }
                }
                Status::KEY_NOT_FOUND => Outcome::Get(Get::Miss),
                _ => return Err(error_of(status, value.len())),
            },
            Operation::Flush { .. } | Operation::Exists { .. } => {
                let there = match status.code() {
                    Status::SUCCESS => true,
                    Status::KEY_NOT_FOUND => false,
                    _ => return Err(error_of(status, 0)),
                };
                if matches!(operation, Operation::Flush { .. }) {
                    Outcome::Flushed(u64::from(there))
                } else {
                    Outcome::Exists(there)
                }
            }
            Operation::FlushObject { .. } if status.is_success() => Outcome::Flushed(result),
            Operation::FlushObject { .. } => return Err(error_of(status, 0)),
        }))
    }
}

/// Space in the data area for an operation with a long value.
fn long_bytes(operation: &Operation<'_>) -> usize {
    match operation {
        Operation::Put { value, .. } => value.len(),
        Operation::Get { value, .. } | Operation::Take { value, .. } => {
            value.len().min(VALUE_BYTES_MAX)
        }
        _ => 0,
    }
}

/// Whether a time is over.
pub fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// The namespace of a pool.
pub fn namespace(pool: Pool) -> Result<u32, Error> {
    u32::try_from(pool.0).map_err(|_| Error::NoPool)
}

impl Lane {
    /// Opens a connection; the first one of a ring with a data area for values of any length.
    pub fn open(peer: &Peer, options: &RingOptions, first: bool) -> Result<Self, Error> {
        let depth = 1 << options.depth.clamp(1, SLOTS_MAX as u16).ilog2();
        let data_bytes = match peer {
            Peer::Agent { pages, .. } => {
                peer.filling(depth, if first { *pages } else { 1 })?.data_bytes()
            }
            Peer::Daemon(_) => {
                let pages = u32::from(depth) * PAGE_BYTES as u32;
                pages.max(if first { VALUE_BYTES_MAX as u32 } else { AREA_BYTES })
            }
        };
        let Connected { socket, region, instance } =
            connect(peer, depth, data_bytes.min(DATA_BYTES_MAX), options.timeout)?;
        let granted = region.geometry();
        let window = Window::new(granted.data_bytes() as usize, PAGE_BYTES, granted.depth().into());
        Ok(Self {
            socket,
            region,
            instance,
            polling: Polling::new(options.poll),
            timeout: options.timeout,
            submitted: 0,
            completed: 0,
            free: window.slots,
            window,
            operation: [0; SLOTS_MAX],
            lost: false,
        })
    }

    /// The daemon's number for its run.
    pub const fn instance(&self) -> u64 {
        self.instance
    }

    /// Whether this connection is unusable.
    pub const fn is_lost(&self) -> bool {
        self.lost
    }

    /// Executes one operation. `None` if its value is longer than a page: use
    /// [`Self::execute_large`].
    #[inline]
    pub fn execute(&mut self, operation: &mut Operation<'_>) -> Result<Option<Outcome>, Error> {
        let page = self.pages();
        let Some(command) = page.prepare(&self.region, 0, operation)? else { return Ok(None) };
        let completion = self.round_trip(command)?;
        page.finish(&self.region, 0, operation, &completion)
    }

    /// Executes one operation, which may use the whole data area.
    pub fn execute_large(&mut self, operation: &mut Operation<'_>) -> Result<Outcome, Error> {
        let room = self.area_bytes();
        let whole = Window::new(room, room, 1);
        let Some(command) = whole.prepare(&self.region, 0, operation)? else {
            let bytes = if let Operation::Put { value, .. } = operation { value.len() } else { 0 };
            return Err(Error::Length { bytes, limit: room });
        };
        let completion = self.round_trip(command)?;
        match whole.finish(&self.region, 0, operation, &completion)? {
            Some(outcome) => Ok(outcome),
            None => Err(Error::Length { bytes: completion.result as usize, limit: room }),
        }
    }

    /// Sends a command with or for a little data, and returns its result.
    pub fn admin(
        &mut self,
        mut command: Command,
        sent: &[u8],
        answer: &mut [u8],
    ) -> Result<u64, Error> {
        let room = self.region.geometry().data_bytes() as usize;
        let bytes = sent.len().max(answer.len());
        if bytes > room {
            return Err(Error::Length { bytes, limit: room });
        }
        // Clears the buffer, so that bytes that the daemon does not write do not look like an
        // answer.
        answer.fill(0);
        self.region.write(0, answer);
        self.region.write(0, sent);
        command.data = data(0, bytes as u32);
        let completion = self.round_trip(command)?;
        if !completion.status.is_success() {
            return Err(Error::of_pools(completion.status));
        }
        self.region.read(0, answer);
        Ok(completion.result)
    }

    /// Sends a command and waits for its completion. No other is in flight.
    #[inline]
    fn round_trip(&mut self, command: Command) -> Result<Completion, Error> {
        self.region.set_command(self.submitted, &command);
        self.submitted = self.submitted.wrapping_add(1);
        self.ring_doorbell();
        self.wait()?;
        let completion = self.next().ok_or(Error::Lost)?;
        if completion.id != command.id {
            return self.lose(Error::Protocol("an answer to a command that was not sent"));
        }
        Ok(completion)
    }

    /// The longest value that fits in this lane's data area.
    fn area_bytes(&self) -> usize {
        (self.region.geometry().data_bytes() as usize).min(VALUE_BYTES_MAX)
    }

    /// Slots of a page each.
    fn pages(&self) -> Window {
        let geometry = self.region.geometry();
        Window::new(geometry.data_bytes() as usize, PAGE_BYTES, geometry.depth().into())
    }

    /// Executes operations, as many at a time as there are slots. Skips those with values longer
    /// than a page and those that are left at `until`, and adds their indexes to `large`.
    pub fn batch(
        &mut self,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
        large: &mut Vec<usize>,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let places = 0..operations.len();
        self.run(self.pages(), places, operations, outcomes, large, until)
    }

    /// Whether the value of each of the operations at `places` fits in the data area.
    pub fn takes(&self, operations: &[Operation<'_>], places: &[usize]) -> bool {
        places.iter().all(|&at| long_bytes(&operations[at]) <= self.area_bytes())
    }

    /// Executes those of a batch that are in `large`: while the server copies one value, this side copies the next.
    /// Skips those that do not fit in the data area, and those that are left at `until`.
    pub fn batch_large(
        &mut self,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
        large: &mut Vec<usize>,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let (area, depth) = (self.area_bytes(), self.region.geometry().depth());
        let bytes = |at: usize| long_bytes(&operations[at]);
        let (now, later): (Vec<usize>, _) = large.iter().partition(|&&at| bytes(at) <= area);
        // An operation that leaves no space for a second one goes alone. All keep their order.
        let is_alone = |at: usize| bytes(at) > area / 2;
        let groups = now.chunk_by(|&one, &next| !is_alone(one) && !is_alone(next));
        let longest = |group: &[usize]| group.iter().map(|&at| bytes(at)).max();
        let groups: Vec<_> = groups.map(|group| (group, longest(group))).collect();
        *large = later;
        for (group, longest) in groups {
            let room = longest.unwrap_or(0).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
            let most = (WINDOW_BYTES / room).max(2).min(depth.into());
            let window = Window::new(self.region.geometry().data_bytes() as usize, room, most);
            self.run(window, group.iter().copied(), operations, outcomes, large, until)?;
        }
        Ok(())
    }

    /// Executes the operations at `places` with several in flight. Adds the indexes of those that do not fit, and of
    /// those that are left at `until`, to `put_off`. What is in flight then may take the time of one answer.
    #[inline]
    fn run(
        &mut self,
        window: Window,
        mut places: impl Iterator<Item = usize>,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
        put_off: &mut Vec<usize>,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        self.window = window;
        self.free = window.slots;
        let mut more = true;
        while more || self.free != window.slots {
            if more && is_over(until) {
                put_off.extend(places.by_ref());
                more = false;
            }
            let mut unannounced = 0;
            while self.free != 0 && more {
                let Some(next) = places.next() else {
                    more = false;
                    break;
                };
                let slot = self.free.trailing_zeros();
                match window.prepare(&self.region, slot as u16, &operations[next]) {
                    Ok(Some(command)) => {
                        self.region.set_command(self.submitted, &command);
                        self.submitted = self.submitted.wrapping_add(1);
                        self.free &= !(1 << slot);
                        self.operation[slot as usize] = next as u32;
                        unannounced += 1;
                        if unannounced == DOORBELL_EVERY || window.room != PAGE_BYTES {
                            unannounced = 0;
                            self.region.submitted().store(self.submitted, Ordering::Release);
                        }
                    }
                    Ok(None) => put_off.push(next),
                    Err(error) => outcomes[next] = Err(error),
                }
                if window.room != PAGE_BYTES {
                    // The server need not wait until the next value is copied.
                    self.wake_server();
                }
            }
            if self.free == window.slots {
                continue;
            }
            if until.is_some_and(|until| until.elapsed() > self.timeout) {
                return self.lose(Error::Timeout);
            }
            self.ring_doorbell();
            self.wait()?;
            while let Some(completion) = self.next() {
                self.take_answer(operations, outcomes, put_off, &completion)?;
                if window.room != PAGE_BYTES {
                    // The free slot goes to the server before the next value is copied.
                    break;
                }
            }
        }
        Ok(())
    }

    /// Assigns a completion to its operation of a batch.
    #[inline]
    fn take_answer(
        &mut self,
        operations: &mut [Operation<'_>],
        outcomes: &mut [Result<Outcome, Error>],
        put_off: &mut Vec<usize>,
        completion: &Completion,
    ) -> Result<(), Error> {
        let (slot, window) = (completion.id, self.window);
        let in_flight =
            usize::from(slot) < SLOTS_MAX && (window.slots & !self.free) >> slot & 1 != 0;
        if !in_flight {
            return self.lose(Error::Protocol("an answer to a command that was not sent"));
        }
        self.free |= 1 << slot;
        let at = self.operation[usize::from(slot)] as usize;
        match window.finish(&self.region, slot, &mut operations[at], completion) {
            Ok(Some(outcome)) => outcomes[at] = Ok(outcome),
            Ok(None) => put_off.push(at),
            Err(error) => outcomes[at] = Err(error),
        }
        Ok(())
    }

    /// Publishes all written commands to the server. The caller that waits for the answers wakes it if
    /// it sleeps.
    #[inline]
    fn ring_doorbell(&self) {
        self.region.submitted().store(self.submitted, Ordering::Release);
    }

    /// Wakes the server if it sleeps.
    #[inline]
    fn wake_server(&self) {
        let asleep = self.region.server_asleep();
        if asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0 {
            // A full socket contains unread wake-ups. A closed one is noticed while waiting.
            let _ = send(&self.socket, &[WAKE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// The next completion, if there is one.
    #[inline]
    fn next(&mut self) -> Option<Completion> {
        let completion = self.region.completion(self.completed)?;
        self.completed = self.completed.wrapping_add(1);
        Some(completion)
    }

    /// Whether there is a completion.
    #[inline]
    fn is_answered(&self) -> bool {
        core::hint::spin_loop();
        self.region.completion(self.completed).is_some()
    }

    /// Waits for a completion: polls for a while if that pays off, then sleeps.
    #[inline]
    fn wait(&mut self) -> Result<(), Error> {
        // The server may fall asleep just before it would see the doorbell, and this side may
        // notice that later. So check repeatedly.
        self.wake_server();
        if (0..LOOKS).any(|_| self.is_answered()) {
            return Ok(());
        }
        let time = self.polling.time();
        if !time.is_zero() {
            let start = Instant::now();
            let mut found = false;
            while !found && start.elapsed() < time {
                self.wake_server();
                found = (0..LOOKS).any(|_| self.is_answered());
            }
            self.polling.ended(found);
            if found {
                return Ok(());
            }
        }
        self.sleep()
    }

    /// Sleeps until there is a completion.
    #[cold]
    fn sleep(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let asleep = self.region.client_asleep();
            asleep.store(1, Ordering::Relaxed);
            // Either this side sees the completion, or the server sees that it must wake a thread;
            // the same holds for the doorbell.
            fence(Ordering::SeqCst);
            self.wake_server();
            if self.region.completion(self.completed).is_some() {
                asleep.store(0, Ordering::Relaxed);
                return Ok(());
            }
            let mut byte = [0; 1];
            match recv(&self.socket, &mut byte, RecvFlags::empty()) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return self.lose(Error::Lost),
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return self.lose(errno.into()),
            }
            if start.elapsed() > self.timeout && self.region.completion(self.completed).is_none() {
                return self.lose(Error::Timeout);
            }
        }
    }

    /// Closes the connection. Sets the doorbell to an invalid value, so that the server ends the
    /// connection before it executes more submitted commands: an old put must not take effect after a
    /// newer one elsewhere.
    #[cold]
    fn lose<T>(&mut self, error: Error) -> Result<T, Error> {
        self.lost = true;
        let out_of_reach = self.submitted.wrapping_add(1 << 31);
        self.region.submitted().store(out_of_reach, Ordering::SeqCst);
        Err(error)
    }
}
