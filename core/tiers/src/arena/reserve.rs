//! Frames reserved for one user, whose allocations always succeed.
//!
//! A reserve owns whole chunks, which are charged to the budget and have their metadata from the
//! start. Their memory is taken from the host at the first write and returned when a chunk empties;
//! the chunk stays in the reserve. No other user gets frames of its chunks.

use super::{Arena, CHUNK_BYTES, CHUNK_FRAMES, Lane, NONE, RESERVED};
use crate::budget::Use;
use crate::region::Zeroed;
use crate::sync::{Lock, Ordering};
use spillway_platform::schedule::give_way;
use spillway_types::PAGE_BYTES;

/// Most reserves at the same time.
pub const RESERVES_MAX: usize = 1024;
/// Additional frames: a page that replaces another is written before the other is freed, and
/// readers keep a freed frame during their copy.
const SLACK_FRAMES: u64 = CHUNK_FRAMES as u64;
/// How often a writer waits for others before it is refused. Chunks in transition do not count.
const WAITS: usize = 10_000;

/// The state of a reserve. All zero: nobody's.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Reserve(Lock<ReserveState>);

// SAFETY: a free lock around integers and false.
unsafe impl Zeroed for Reserve {}

#[derive(Debug)]
struct ReserveState {
    /// Chunks with free frames.
    lane: Lane,
    /// Chunks without memory, a list through [`Chunk::next`].
    empty: u32,
    /// All chunks that it has.
    chunks: u32,
    /// Chunks that are just getting or losing their memory, and are in no list meanwhile.
    in_motion: u32,
    /// Open: frames are available. A closed reserve waits for its last frames to be freed.
    open: bool,
}

impl ReserveState {
    const EMPTY: Self = Self {
        lane: Lane { first: NONE, free: 0 },
        empty: NONE,
        chunks: 0,
        in_motion: 0,
        open: false,
    };
}

impl Reserve {
    /// Chunks needed to reserve `frames`.
    pub(super) fn chunks_for(frames: u64) -> Option<u32> {
        let frames = frames.checked_add(SLACK_FRAMES)?;
        u32::try_from(frames.div_ceil(CHUNK_FRAMES.into())).ok()
    }

    /// Adopts a chunk with frames in use, and `free` others, from an earlier process.
    pub(super) fn settle(&self, arena: &Arena, chunk: u32, free: u64) {
        let mut state = self.0.lock();
        if state.chunks == 0 {
            *state = ReserveState::EMPTY;
        }
        state.chunks += 1;
        state.lane.free += free;
        if free != 0 {
            arena.link(&mut state.lane, chunk);
        }
    }

    /// Opens it with at least `chunks`. False if it has fewer, or is open.
    pub(super) fn open_again(&self, arena: &Arena, number: u16, chunks: u32) -> bool {
        let mut state = self.0.lock();
        if state.open {
            return false;
        }
        if state.chunks == 0 {
            *state = ReserveState::EMPTY;
        }
        while state.chunks < chunks {
            let Some(chunk) = arena.chunk_in_any_case() else { return false };
            arena.join_reserve(chunk, number.into(), &mut state.empty);
            state.chunks += 1;
        }
        state.open = true;
        true
    }
}

impl Arena {
    /// Makes a chunk without memory one of a reserve.
    fn join_reserve(&self, chunk: u32, number: usize, empty: &mut u32) {
        let entry = self.chunk(chunk);
        entry.lane.store((RESERVED + number) as u32, Ordering::Relaxed);
        entry.free.store(u64::MAX, Ordering::Relaxed);
        entry.next.store(*empty, Ordering::Relaxed);
        *empty = chunk;
    }

    /// Reserves `frames`. Returns the reserve's number, which is not 0, or `None` if they do not fit
    /// in memory with their metadata. Callers open one at a time.
    pub fn open_reserve(&self, frames: u64) -> Option<u16> {
        let chunks = Reserve::chunks_for(frames)?;
        let bytes = u64::from(chunks) * CHUNK_BYTES as u64;
        let number = (1..RESERVES_MAX).find(|&number| {
            let state = self.reserves[number].0.lock();
            !state.open && state.chunks == 0
        })?;
        if !self.budget.take(bytes, Use::Frames) {
            // A chunk may lack no more than what a core has at hand.
            self.empty_hands();
            self.give_warm_back(u64::MAX);
            if !self.budget.take(bytes, Use::Frames) {
                return None;
            }
        }
        let mut first = NONE;
        for had in 0..chunks {
            let Some((chunk, _)) = self.spare_chunk() else {
                self.budget.give(u64::from(chunks - had) * CHUNK_BYTES as u64);
                self.give_back_all(first);
                return None;
            };
            self.join_reserve(chunk, number, &mut first);
        }
        let state = ReserveState { empty: first, chunks, open: true, ..ReserveState::EMPTY };
        *self.reserves[number].0.lock() = state;
        let high = self.reserves_high.load(Ordering::Relaxed).max(number as u32);
        self.reserves_high.store(high, Ordering::Release);
        Some(number as u16)
    }

    /// Releases a reserve's memory. Frames still in use follow when they are freed.
    pub fn close_reserve(&self, number: u16) {
        let mut state = self.reserves[usize::from(number)].0.lock();
        state.open = false;
        let mut empty = core::mem::replace(&mut state.empty, NONE);
        let mut chunk = state.lane.first;
        while chunk != NONE {
            let next = self.chunk(chunk).next.load(Ordering::Relaxed);
            if self.chunk(chunk).free.load(Ordering::Relaxed) == u64::MAX {
                self.unlink(&mut state.lane, chunk);
                state.lane.free -= u64::from(CHUNK_FRAMES);
                self.chunk(chunk).next.store(empty, Ordering::Relaxed);
                empty = chunk;
            }
            chunk = next;
        }
        let mut at = empty;
        while at != NONE {
            state.chunks -= 1;
            at = self.chunk(at).next.load(Ordering::Relaxed);
        }
        drop(state);
        self.give_back_all(empty);
    }

    fn give_back_all(&self, first: u32) {
        let mut chunk = first;
        while chunk != NONE {
            let next = self.chunk(chunk).next.load(Ordering::Relaxed);
            self.give_back(chunk);
            chunk = next;
        }
    }

    /// Like [`Self::store`], with a frame of a reserve. `None` if it is closed, or more frames are
    /// in use than were reserved.
    pub fn store_reserved(&self, number: u16, value: &[u8]) -> Option<u32> {
        let mut waits = 0;
        while waits < WAITS {
            match self.take_reserved(number) {
                Taken::Frame(frame) => {
                    self.fill(frame, value);
                    return Some(frame);
                }
                Taken::Closed => return None,
                // Other writers and readers hold the additional frames, each for the time of a
                // copy.
                Taken::NoneFree => waits += 1,
                // The host may take milliseconds over a chunk's memory.
                Taken::InMotion => (),
            }
            give_way();
        }
        None
    }

    /// A free frame of a reserve, if it has one now.
    fn take_reserved(&self, number: u16) -> Taken {
        let reserve = &self.reserves[usize::from(number)].0;
        let mut state = reserve.lock();
        if !state.open {
            return Taken::Closed;
        }
        if state.lane.first == NONE {
            let chunk = state.empty;
            if chunk == NONE {
                return if state.in_motion == 0 { Taken::NoneFree } else { Taken::InMotion };
            }
            state.empty = self.chunk(chunk).next.load(Ordering::Relaxed);
            state.in_motion += 1;
            drop(state);
            // Outside of the lock: this takes tens of microseconds. Without it each frame faults
            // when it is written.
            let _ = self.region.populate(chunk as usize * CHUNK_BYTES, CHUNK_BYTES);
            state = reserve.lock();
            state.in_motion -= 1;
            state.lane.free += u64::from(CHUNK_FRAMES);
            self.link(&mut state.lane, chunk);
            if !state.open {
                // Closed meanwhile. The chunk is found when a frame of it is freed.
                let frame = self.take_of(&mut state.lane);
                drop(state);
                frame.into_iter().for_each(|frame| self.give_reserved(number, frame));
                return Taken::Closed;
            }
        }
        self.take_of(&mut state.lane).map_or(Taken::NoneFree, Taken::Frame)
    }

    /// A free frame of a lane whose lock is held.
    fn take_of(&self, lane: &mut Lane) -> Option<u32> {
        let (chunk, bit) = self.take_free_of(lane)?;
        Some(chunk * CHUNK_FRAMES + bit)
    }

    /// Frees a frame of a reserve.
    #[cold]
    pub(super) fn give_reserved(&self, number: u16, frame: u32) {
        let reserve = &self.reserves[usize::from(number)].0;
        let mut state = reserve.lock();
        let chunk = frame / CHUNK_FRAMES;
        let entry = self.chunk(chunk);
        let before = entry.free.load(Ordering::Relaxed);
        let free = before | 1 << (frame % CHUNK_FRAMES);
        entry.free.store(free, Ordering::Relaxed);
        state.lane.free += 1;
        if before == 0 {
            self.link(&mut state.lane, chunk);
        }
        let alone = state.lane.first == chunk && entry.next.load(Ordering::Relaxed) == NONE;
        if free != u64::MAX || alone && state.open {
            return;
        }
        self.unlink(&mut state.lane, chunk);
        state.lane.free -= u64::from(CHUNK_FRAMES);
        if !state.open {
            state.chunks -= 1;
            drop(state);
            self.give_back(chunk);
            return;
        }
        state.in_motion += 1;
        drop(state);
        self.release_chunk(chunk);
        let mut state = reserve.lock();
        state.in_motion -= 1;
        if state.open {
            entry.next.store(state.empty, Ordering::Relaxed);
            state.empty = chunk;
        } else {
            state.chunks -= 1;
            drop(state);
            self.give_back(chunk);
        }
    }

    /// Returns the memory of empty chunks that reserves keep to the host.
    pub(super) fn trim_reserves(&self) {
        for reserve in self.known_reserves() {
            let mut state = reserve.0.lock();
            if !state.open {
                continue;
            }
            let mut chunk = state.lane.first;
            while chunk != NONE {
                let entry = self.chunk(chunk);
                let next = entry.next.load(Ordering::Relaxed);
                if entry.free.load(Ordering::Relaxed) == u64::MAX {
                    self.unlink(&mut state.lane, chunk);
                    state.lane.free -= u64::from(CHUNK_FRAMES);
                    self.release_chunk(chunk);
                    entry.next.store(state.empty, Ordering::Relaxed);
                    state.empty = chunk;
                }
                chunk = next;
            }
        }
    }

    /// Bytes of free frames in all reserves, with and without memory.
    pub(super) fn reserved_free_bytes(&self) -> u64 {
        let free = |reserve: &Reserve| {
            let state = reserve.0.lock();
            let mut bytes = state.lane.free * PAGE_BYTES as u64;
            let mut chunk = state.empty;
            while state.open && chunk != NONE {
                bytes += CHUNK_BYTES as u64;
                chunk = self.chunk(chunk).next.load(Ordering::Relaxed);
            }
            bytes
        };
        self.known_reserves().iter().map(free).sum()
    }

    /// Those that were ever used, and number 0.
    fn known_reserves(&self) -> &[Reserve] {
        &self.reserves[..=self.reserves_high.load(Ordering::Acquire) as usize]
    }
}

/// Why a reserve has no frame now.
enum Taken {
    Frame(u32),
    /// All frames are in use.
    NoneFree,
    /// So are all with memory, and a chunk is just getting or losing its memory.
    InMotion,
    /// The reserve is closed.
    Closed,
}
