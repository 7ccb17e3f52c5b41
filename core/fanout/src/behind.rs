//! What is written to the local file, behind those who write.
//!
//! A page counts as written once it is in the buffer here, from which it is read until the file has it. The buffer is lost only
//! with the process, and so are the keys without which the file is worth nothing. A slow disk is felt when the buffer is full,
//! not before, and pages that follow each other are written together.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use spillway_types::Key;

use crate::lender::{BATCH_PAGES, Carried};
use crate::page::Page;

/// Pages of the buffer: 4 MiB.
const BUFFER_PAGES: usize = 1024;
/// Threads that write. A page is always written by the same one, so that no older write of it comes after a newer one.
const WRITERS: usize = 4;
/// Pages that follow each other and have the same writer.
const EXTENT_PAGES: u64 = BATCH_PAGES as u64;
/// A write that failed is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of a writer's stack, which is locked in memory.
const STACK_BYTES: usize = 128 << 10;
/// Threads that wait for room at the same time without an allocation.
const WAITING_MAX: usize = 64;
/// No slot.
const NONE: u32 = u32::MAX;

/// A file of pages, or what stands for one in a test.
pub trait Pages: core::fmt::Debug + Send + Sync + 'static {
    /// How many there are.
    fn count(&self) -> u64;

    /// Reads pages that follow each other from `first` on, at most [`BATCH_PAGES`].
    fn read(&self, first: u64, pages: &mut [Page]) -> io::Result<()>;

    /// Writes pages from `first` on, at most [`BATCH_PAGES`].
    fn write(&self, first: u64, pages: &[Page]) -> io::Result<()>;
}

/// See the module. Its threads end when it is dropped, and each when it is done with what it writes then.
#[derive(Debug)]
pub struct Behind {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Box<dyn Pages>,
    buffer: Mutex<Buffer>,
    /// Rung for a writer when there is something for it, and at the end.
    came: [Condvar; WRITERS],
    /// Rung when slots have become free, or the turn of those who wait for some.
    room: Condvar,
}

/// What a slot of the buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// In its writer's queue, and there alone.
    Waiting,
    /// It stays as it is, to be read, and to be put back if that fails. A newer write of the page takes another slot.
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
    /// The slot of each page of the file that has what was written last, or [`NONE`]: then the file has it.
    newest: Box<[u32]>,
    queues: [VecDeque<u32>; WRITERS],
    /// Writers whose last write failed, a bit each.
    failing: u8,
    /// Those who wait for slots; the first gets the next ones.
    turns: VecDeque<u64>,
    next_turn: u64,
    ended: bool,
}

/// Slots whose pages follow each other.
struct Run {
    first: u64,
    slots: [u32; BATCH_PAGES],
    count: usize,
}

impl Behind {
    /// Writes to `file`.
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn start(file: Box<dyn Pages>) -> io::Result<Self> {
        let buffer = Mutex::new(Buffer::new(file.count()));
        let came = [const { Condvar::new() }; WRITERS];
        let behind = Self { shared: Arc::new(Shared { file, buffer, came, room: Condvar::new() }) };
        for writer in 0..WRITERS {
            let (shared, rooms) = (Arc::clone(&behind.shared), Page::rooms(BATCH_PAGES));
            let thread = thread::Builder::new().name("fanout-behind".into());
            thread.stack_size(STACK_BYTES).spawn(move || shared.write(writer, rooms))?;
        }
        Ok(behind)
    }

    /// Takes pages in, if there is room for all just now and nobody waits for it, or says that they are lost if the file fails;
    /// whether it did one of the two.
    pub fn put_now(&self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried]) -> bool {
        let mut buffer = self.shared.buffer();
        let has_room = buffer.turns.is_empty() && buffer.slots_for(keys) <= buffer.free.len();
        let is_carried = has_room || buffer.failing != 0;
        if is_carried {
            buffer.put(keys, pages, outcomes);
        }
        drop(buffer);
        if is_carried {
            self.shared.ring(keys, outcomes);
        }
        is_carried
    }

    /// Takes pages in as there is room for them.
    pub fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried], deadline: Instant) {
        outcomes.fill(Carried::Lost);
        let mut buffer = self.shared.buffer();
        let turn = buffer.queue_up();
        let mut done = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // What comes late is not wanted: there may be something newer.
            if left.is_zero() {
                break;
            }
            if buffer.turns.front() == Some(&turn) {
                let taken = buffer.put(&keys[done..], &pages[done..], &mut outcomes[done..]);
                self.shared.ring(&keys[done..done + taken], &outcomes[done..done + taken]);
                done += taken;
            }
            if done == keys.len() {
                break;
            }
            buffer = wait(&self.shared.room, buffer, left);
        }
        buffer.turns.retain(|other| *other != turn);
        self.shared.room.notify_all();
    }

    /// Brings pages back, those that follow each other in the file together.
    pub fn get(&self, keys: &[Key], pages: &mut [Page], outcomes: &mut [Carried]) {
        let mut here = [false; BATCH_PAGES];
        let buffer = self.shared.buffer();
        for (at, key) in keys.iter().enumerate() {
            if let Some(page) = buffer.page(number(*key)) {
                pages[at].0 = page.0;
                outcomes[at] = Carried::Done;
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
            outcomes[start..end].fill(if done.is_ok() { Carried::Done } else { Carried::Lost });
            start = end;
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.shared.buffer().ended = true;
        self.shared.came.iter().for_each(Condvar::notify_all);
    }
}

impl Shared {
    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who write the pages that were taken in.
    fn ring(&self, keys: &[Key], outcomes: &[Carried]) {
        let mut rung = [false; WRITERS];
        let taken = keys.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Carried::Done);
        for (key, _) in taken {
            let writer = writer_of(number(*key));
            if !std::mem::replace(&mut rung[writer], true) {
                self.came[writer].notify_one();
            }
        }
    }

    /// A writer's life.
    fn write(&self, writer: usize, mut rooms: Box<[Page]>) {
        // As in a holder's workers: the kernel may wait for it.
        let _ = spillway_platform::swap::serve_swap();
        let mut buffer = self.buffer();
        while !buffer.ended {
            let Some(run) = buffer.take(writer, &mut rooms) else {
                buffer = self.came[writer].wait(buffer).unwrap_or_else(PoisonError::into_inner);
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
                    buffer.put_back(&run);
                    let is_first = buffer.failing == 0;
                    buffer.failing |= 1 << writer;
                    // Whoever waits for room hears of it.
                    self.room.notify_all();
                    drop(buffer);
                    if is_first {
                        tracing::error!(
                            "the local file can't be written; it is tried again: {error}"
                        );
                    }
                    buffer = self.buffer();
                    if !buffer.ended {
                        buffer = wait(&self.came[writer], buffer, RETRY);
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
            turns: VecDeque::with_capacity(WAITING_MAX),
            next_turn: 0,
            ended: false,
        }
    }

    /// The slot of a page, if the file does not have what was written last.
    fn slot(&self, page: u64) -> Option<u32> {
        self.newest.get(page as usize).copied().filter(|slot| *slot != NONE)
    }

    fn page(&self, page: u64) -> Option<&Page> {
        self.slot(page).map(|slot| &self.rooms[slot as usize])
    }

    /// The slot of a page that no writer has begun with.
    fn waiting(&self, page: u64) -> Option<u32> {
        self.slot(page).filter(|slot| self.slots[*slot as usize].is == Use::Waiting)
    }

    /// A place at the end of those who wait.
    fn queue_up(&mut self) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.turns.push_back(turn);
        turn
    }

    /// Slots that pages need: those that wait are overwritten.
    fn slots_for(&self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.waiting(number(**key)).is_none()).count()
    }

    /// Takes pages in while there is room; how many have an outcome now.
    fn put(&mut self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried]) -> usize {
        for (at, (key, page)) in keys.iter().zip(pages).enumerate() {
            let number = number(*key);
            if self.failing != 0 || number >= self.newest.len() as u64 {
                outcomes[at] = Carried::Lost;
                continue;
            }
            let Some(slot) = self.waiting(number).or_else(|| self.begin(number)) else { return at };
            self.rooms[slot as usize].0 = page.0;
            outcomes[at] = Carried::Done;
        }
        keys.len()
    }

    /// A free slot for a page.
    fn begin(&mut self, page: u64) -> Option<u32> {
        let slot = self.free.pop()?;
        self.newest[page as usize] = slot;
        self.slots[slot as usize] = Slot { page, is: Use::Waiting };
        self.queues[writer_of(page)].push_back(slot);
        Some(slot)
    }

    /// What a writer is to write next, copied into `rooms`.
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

    /// The file has what was taken.
    fn written(&mut self, run: &Run) {
        for &slot in &run.slots[..run.count] {
            let page = self.slots[slot as usize].page as usize;
            if self.newest[page] == slot {
                self.newest[page] = NONE;
            }
            self.release(slot);
        }
    }

    /// The file does not have what was taken.
    fn put_back(&mut self, run: &Run) {
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

/// Which page of the file a key is.
const fn number(key: Key) -> u64 {
    key.object << 32 | key.index as u64
}

const fn writer_of(page: u64) -> usize {
    (page / EXTENT_PAGES % WRITERS as u64) as usize
}

fn wait<'a>(
    rung: &Condvar,
    buffer: MutexGuard<'a, Buffer>,
    limit: Duration,
) -> MutexGuard<'a, Buffer> {
    match rung.wait_timeout(buffer, limit) {
        Ok((buffer, _)) => buffer,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

#[cfg(test)]
pub(crate) mod tests;
