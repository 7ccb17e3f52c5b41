//! What is written to the local file, behind those who write.
//!
//! A page counts as written once it is in the buffer here: what is in it is read from it, and it is lost only with the
//! process, as are the keys of all that the file has. So a slow disk is felt when the buffer is full, not before, and pages
//! that follow each other are written together.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use spillway_types::Key;

use crate::backup::BackupFile;
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
pub struct Behind<F: Pages = BackupFile> {
    shared: Arc<Shared<F>>,
}

#[derive(Debug)]
struct Shared<F> {
    file: F,
    buffer: Mutex<Buffer>,
    /// Rung for a writer when there is something for it, and at the end.
    came: [Condvar; WRITERS],
    /// Rung when slots have become free.
    room: Condvar,
}

/// What a slot of the buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Waiting,
    /// The writer has a copy of it, so it stays as it is. A newer write of the page takes another slot.
    Writing,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: u64,
    is: Use,
    /// It is in its writer's queue, for this use or an earlier one.
    queued: bool,
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
    ended: bool,
}

/// Slots whose pages follow each other.
struct Run {
    first: u64,
    slots: [u32; BATCH_PAGES],
    count: usize,
}

impl<F: Pages> Behind<F> {
    /// Writes to `file`.
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn start(file: F) -> io::Result<Self> {
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

    /// Takes pages in, if there is room for all just now; whether there was.
    pub fn put_now(&self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried]) -> bool {
        let mut buffer = self.shared.buffer();
        let Some(outcome) = buffer.put(keys, pages) else { return false };
        drop(buffer);
        self.shared.ring(keys, outcome);
        outcomes.fill(outcome);
        true
    }

    /// Takes pages in once there is room for them.
    pub fn put(&self, keys: &[Key], pages: &[Page], outcomes: &mut [Carried], deadline: Instant) {
        let mut buffer = self.shared.buffer();
        let outcome = loop {
            if let Some(outcome) = buffer.put(keys, pages) {
                break outcome;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Carried::Lost;
            }
            buffer = wait(&self.shared.room, buffer, left);
        };
        drop(buffer);
        self.shared.ring(keys, outcome);
        outcomes.fill(outcome);
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

impl<F: Pages> Drop for Behind<F> {
    fn drop(&mut self) {
        self.shared.buffer().ended = true;
        self.shared.came.iter().for_each(Condvar::notify_all);
    }
}

impl<F: Pages> Shared<F> {
    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who write the pages that were taken in.
    fn ring(&self, keys: &[Key], outcome: Carried) {
        if outcome != Carried::Done {
            return;
        }
        let mut rung = [false; WRITERS];
        for key in keys {
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
                    if buffer.failing == 0 {
                        tracing::error!(
                            "the local file can't be written; it is tried again: {error}"
                        );
                    }
                    buffer.failing |= 1 << writer;
                    // Whoever waits for room hears of it.
                    self.room.notify_all();
                    buffer = wait(&self.came[writer], buffer, RETRY);
                }
            }
        }
    }
}

impl Buffer {
    fn new(pages: u64) -> Self {
        Self {
            rooms: Page::rooms(BUFFER_PAGES),
            slots: vec![Slot { page: 0, is: Use::Free, queued: false }; BUFFER_PAGES].into(),
            free: (0..BUFFER_PAGES as u32).collect(),
            newest: vec![NONE; pages as usize].into(),
            queues: core::array::from_fn(|_| VecDeque::with_capacity(BUFFER_PAGES)),
            failing: 0,
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

    /// Takes pages in, all of them or none; none when there is no room.
    fn put(&mut self, keys: &[Key], pages: &[Page]) -> Option<Carried> {
        if self.failing != 0 || keys.iter().any(|key| number(*key) >= self.newest.len() as u64) {
            return Some(Carried::Lost);
        }
        let fresh = keys.iter().filter(|key| self.waiting(number(**key)).is_none()).count();
        if fresh > self.free.len() {
            return None;
        }
        for (key, page) in keys.iter().zip(pages) {
            let slot = match self.waiting(number(*key)) {
                Some(slot) => slot,
                None => self.begin(number(*key))?,
            };
            self.rooms[slot as usize].0 = page.0;
        }
        Some(Carried::Done)
    }

    /// A free slot for a page.
    fn begin(&mut self, page: u64) -> Option<u32> {
        let slot = self.free.pop()?;
        self.newest[page as usize] = slot;
        self.slots[slot as usize].page = page;
        self.wait_for_writer(slot);
        Some(slot)
    }

    fn wait_for_writer(&mut self, slot: u32) {
        let it = &mut self.slots[slot as usize];
        it.is = Use::Waiting;
        if !std::mem::replace(&mut it.queued, true) {
            self.queues[writer_of(it.page)].push_back(slot);
        }
    }

    /// What a writer is to write next, copied into `rooms`.
    fn take(&mut self, writer: usize, rooms: &mut [Page]) -> Option<Run> {
        let oldest = loop {
            let slot = self.queues[writer].pop_front()?;
            let it = &mut self.slots[slot as usize];
            it.queued = false;
            // It may have been written with one before it.
            if it.is == Use::Waiting {
                break it.page;
            }
        };
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
            if self.newest[self.slots[slot as usize].page as usize] == slot {
                self.wait_for_writer(slot);
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
mod tests;
