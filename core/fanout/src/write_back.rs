//! The write-back buffer in front of the local file.
//!
//! A page counts as written once it is in the buffer. Reads take it from there until the file has
//! it. The buffer is lost only with the process, as are the keys without which the file is
//! worthless. A slow disk delays writers only while the buffer is full. Adjacent pages are written
//! together.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use spillway_types::Key;

use crate::lender::{BATCH_PAGES, PageOutcome};
use crate::page::Page;

/// Pages of the buffer: 4 MiB.
const BUFFER_PAGES: usize = 1024;
/// Threads that write to the file. The same thread always writes a page, so that an older write
/// never follows a newer one.
const WRITERS: usize = 4;
/// Adjacent pages that have the same writer.
const EXTENT_PAGES: u64 = BATCH_PAGES as u64;
/// How long a writer waits before it retries a failed write.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of a writer's stack, which is locked in memory.
const STACK_BYTES: usize = 128 << 10;
/// Threads that can wait for room at the same time without an allocation.
const WAITING_MAX: usize = 64;
/// No slot.
const NONE: u32 = u32::MAX;

/// A file of pages, or a test's fake of one.
pub trait Pages: core::fmt::Debug + Send + Sync + 'static {
    /// Number of pages.
    fn count(&self) -> u64;

    /// Reads adjacent pages from `first` on, at most [`BATCH_PAGES`].
    fn read(&self, first: u64, pages: &mut [Page]) -> io::Result<()>;

    /// Writes adjacent pages from `first` on, at most [`BATCH_PAGES`].
    fn write(&self, first: u64, pages: &[Page]) -> io::Result<()>;
}

/// See the module. Dropping it ends its threads, each after the write that it is doing.
#[derive(Debug)]
pub struct WriteBack {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Box<dyn Pages>,
    buffer: Mutex<Buffer>,
    /// For each writer: notified when its queue gets a slot, and at the end.
    arrived: [Condvar; WRITERS],
    /// Notified when slots become free, or when the first of the waiting threads changes.
    room: Condvar,
}

/// The use of a slot of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Only in its writer's queue.
    Waiting,
    /// Being written. Its contents stay, so that it can be read, and queued again if the write
    /// fails. A newer write of the page takes another slot.
    Writing,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: u64,
    is: Use,
}

#[derive(Debug)]
struct Buffer {
    rooms: Box<[Page]>,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// For each page of the file: the slot with its newest contents, or [`NONE`] if the file has
    /// them.
    newest: Box<[u32]>,
    queues: [VecDeque<u32>; WRITERS],
    /// Writers whose last write failed: a bit each.
    failing: u8,
    /// Tickets of the threads that wait for slots. The first gets the next free ones.
    tickets: VecDeque<u64>,
    next_ticket: u64,
    ended: bool,
}

/// Slots of adjacent pages.
struct Run {
    first: u64,
    slots: [u32; BATCH_PAGES],
    count: usize,
}

impl WriteBack {
    /// Starts the writers to `file`.
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn start(file: Box<dyn Pages>) -> io::Result<Self> {
        let buffer = Mutex::new(Buffer::new(file.count()));
        let arrived = [const { Condvar::new() }; WRITERS];
        let write_back =
            Self { shared: Arc::new(Shared { file, buffer, arrived, room: Condvar::new() }) };
        for writer in 0..WRITERS {
            let (shared, rooms) = (Arc::clone(&write_back.shared), Page::rooms(BATCH_PAGES));
            let thread = thread::Builder::new().name("fanout-writer".into());
            thread.stack_size(STACK_BYTES).spawn(move || shared.write(writer, rooms))?;
        }
        Ok(write_back)
    }

    /// Buffers pages if there is room for all of them and no thread waits for room, or reports them
    /// lost if the file fails. Returns whether it did one of the two.
    pub fn put_now(&self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome]) -> bool {
        let mut buffer = self.shared.buffer();
        let has_room = buffer.tickets.is_empty() && buffer.slots_for(keys) <= buffer.free.len();
        let is_taken = has_room || buffer.failing != 0;
        if is_taken {
            buffer.put(keys, pages, outcomes);
        }
        drop(buffer);
        if is_taken {
            self.shared.wake(keys, outcomes);
        }
        is_taken
    }

    /// Buffers pages, and waits for room until the deadline. Pages beyond it are reported lost.
    pub fn put(
        &self,
        keys: &[Key],
        pages: &[Page],
        outcomes: &mut [PageOutcome],
        deadline: Instant,
    ) {
        outcomes.fill(PageOutcome::Lost);
        let mut buffer = self.shared.buffer();
        let ticket = buffer.take_ticket();
        let mut done = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A late page is not buffered: a newer one may exist.
            if left.is_zero() {
                break;
            }
            if buffer.tickets.front() == Some(&ticket) {
                let taken = buffer.put(&keys[done..], &pages[done..], &mut outcomes[done..]);
                self.shared.wake(&keys[done..done + taken], &outcomes[done..done + taken]);
                done += taken;
            }
            if done == keys.len() {
                break;
            }
            buffer = wait(&self.shared.room, buffer, left);
        }
        buffer.tickets.retain(|other| *other != ticket);
        self.shared.room.notify_all();
    }

    /// Reads pages from the buffer, and the others from the file, adjacent ones together.
    pub fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [PageOutcome]) {
        let mut here = [false; BATCH_PAGES];
        let buffer = self.shared.buffer();
        for (at, key) in keys.iter().enumerate() {
            if let Some(page) = buffer.page(number(*key)) {
                pages[at].0 = page.0;
                outcomes[at] = PageOutcome::Done;
                here[at] = true;
            }
        }
        drop(buffer);
        let mut start = 0;
        while start < keys.len() {
            if here[start] {
                start += 1;
                continue;
            }
            let first = number(keys[start]);
            let follows =
                |at: &usize| !here[*at] && number(keys[*at]) == first + (*at - start) as u64;
            let end = start + (start..keys.len()).take_while(follows).count();
            let done = self.shared.file.read(first, &mut pages[start..end]);
            outcomes[start..end].fill(if done.is_ok() {
                PageOutcome::Done
            } else {
                PageOutcome::Lost
            });
            start = end;
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.shared.buffer().ended = true;
        self.shared.arrived.iter().for_each(Condvar::notify_all);
    }
}

impl Shared {
    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writers of the pages that were buffered.
    fn wake(&self, keys: &[Key], outcomes: &[PageOutcome]) {
        let mut woken = [false; WRITERS];
        let taken = keys.iter().zip(outcomes).filter(|(_, outcome)| **outcome == PageOutcome::Done);
        for (key, _) in taken {
            let writer = writer_of(number(*key));
            if !std::mem::replace(&mut woken[writer], true) {
                self.arrived[writer].notify_one();
            }
        }
    }

    /// The main loop of a writer.
    fn write(&self, writer: usize, mut rooms: Box<[Page]>) {
        // The kernel may wait for this thread, as for a holder's workers.
        let _ = spillway_platform::swap::serve_swap();
        let mut buffer = self.buffer();
        while !buffer.ended {
            let Some(run) = buffer.take(writer, &mut rooms) else {
                buffer = self.arrived[writer].wait(buffer).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(buffer);
            let written = self.file.write(run.first, &rooms[..run.count]);
            buffer = self.buffer();
            match written {
                Ok(()) => {
                    buffer.written(&run);
                    buffer.failing &= !(1 << writer);
                    self.room.notify_all();
                }
                Err(error) => {
                    buffer.requeue(&run);
                    let is_first = buffer.failing == 0;
                    buffer.failing |= 1 << writer;
                    // Threads that wait for room learn of the failure.
                    self.room.notify_all();
                    drop(buffer);
                    if is_first {
                        tracing::error!(
                            "the local file can't be written; it is tried again: {error}"
                        );
                    }
                    buffer = self.buffer();
                    if !buffer.ended {
                        buffer = wait(&self.arrived[writer], buffer, RETRY);
                    }
                }
            }
        }
    }
}

impl Buffer {
    fn new(pages: u64) -> Self {
        Self {
            rooms: Page::rooms(BUFFER_PAGES),
            slots: vec![Slot { page: 0, is: Use::Free }; BUFFER_PAGES].into(),
            free: (0..BUFFER_PAGES as u32).collect(),
            newest: vec![NONE; pages as usize].into(),
            queues: core::array::from_fn(|_| VecDeque::with_capacity(BUFFER_PAGES)),
            failing: 0,
            tickets: VecDeque::with_capacity(WAITING_MAX),
            next_ticket: 0,
            ended: false,
        }
    }

    /// The slot of a page, if the file does not have its newest contents.
    fn slot(&self, page: u64) -> Option<u32> {
        self.newest.get(page as usize).copied().filter(|slot| *slot != NONE)
    }

    fn page(&self, page: u64) -> Option<&Page> {
        self.slot(page).map(|slot| &self.rooms[slot as usize])
    }

    /// The slot of a page that is queued and not yet being written.
    fn waiting(&self, page: u64) -> Option<u32> {
        self.slot(page).filter(|slot| self.slots[*slot as usize].is == Use::Waiting)
    }

    /// Takes a ticket at the end of the waiting threads.
    fn take_ticket(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.push_back(ticket);
        ticket
    }

    /// How many free slots the pages need: queued slots are overwritten in place.
    fn slots_for(&self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.waiting(number(**key)).is_none()).count()
    }

    /// Buffers pages while there is room. Returns how many have an outcome now.
    fn put(&mut self, keys: &[Key], pages: &[Page], outcomes: &mut [PageOutcome]) -> usize {
        for (at, (key, page)) in keys.iter().zip(pages).enumerate() {
            let number = number(*key);
            if self.failing != 0 || number >= self.newest.len() as u64 {
                outcomes[at] = PageOutcome::Lost;
                continue;
            }
            let Some(slot) = self.waiting(number).or_else(|| self.begin(number)) else { return at };
            self.rooms[slot as usize].0 = page.0;
            outcomes[at] = PageOutcome::Done;
        }
        keys.len()
    }

    /// Allocates a slot for a page and queues it for its writer.
    fn begin(&mut self, page: u64) -> Option<u32> {
        let slot = self.free.pop()?;
        self.newest[page as usize] = slot;
        self.slots[slot as usize] = Slot { page, is: Use::Waiting };
        self.queues[writer_of(page)].push_back(slot);
        Some(slot)
    }

    /// Takes the pages that a writer writes next, and copies them into `rooms`.
    fn take(&mut self, writer: usize, rooms: &mut [Page]) -> Option<Run> {
        let oldest = self.slots[self.queues[writer].pop_front()? as usize].page;
        let extent = oldest - oldest % EXTENT_PAGES;
        let mut first = oldest;
        while first > extent && self.waiting(first - 1).is_some() {
            first -= 1;
        }
        let mut run = Run { first, slots: [NONE; BATCH_PAGES], count: 0 };
        for page in first..extent + EXTENT_PAGES {
            let Some(slot) = self.waiting(page) else { break };
            self.slots[slot as usize].is = Use::Writing;
            rooms[run.count].0 = self.rooms[slot as usize].0;
            run.slots[run.count] = slot;
            run.count += 1;
        }
        let slots = &self.slots;
        self.queues[writer].retain(|slot| slots[*slot as usize].is == Use::Waiting);
        Some(run)
    }

    /// Frees the slots of a run: the file has its pages.
    fn written(&mut self, run: &Run) {
        for &slot in &run.slots[..run.count] {
            let page = self.slots[slot as usize].page as usize;
            if self.newest[page] == slot {
                self.newest[page] = NONE;
            }
            self.release(slot);
        }
    }

    /// Queues the slots of a run again: the file does not have its pages.
    fn requeue(&mut self, run: &Run) {
        for &slot in &run.slots[..run.count] {
            let Slot { page, is } = &mut self.slots[slot as usize];
            if self.newest[*page as usize] == slot {
                *is = Use::Waiting;
                self.queues[writer_of(*page)].push_front(slot);
            } else {
                self.release(slot);
            }
        }
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize].is = Use::Free;
        self.free.push(slot);
    }
}

/// The page of the file that a key names.
const fn number(key: Key) -> u64 {
    key.object << 32 | key.index as u64
}

const fn writer_of(page: u64) -> usize {
    (page / EXTENT_PAGES % WRITERS as u64) as usize
}

fn wait<'a>(
    woken: &Condvar,
    buffer: MutexGuard<'a, Buffer>,
    limit: Duration,
) -> MutexGuard<'a, Buffer> {
    match woken.wait_timeout(buffer, limit) {
        Ok((buffer, _)) => buffer,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

#[cfg(test)]
pub(crate) mod tests;
