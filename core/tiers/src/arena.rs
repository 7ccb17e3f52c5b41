//! Frames of memory, in chunks that grow on demand and go back to the host when empty.
//!
//! A chunk is 64 frames, so that one word tells which are free. Chunks belong to *lanes*, each with
//! a lock of its own; a caller names the lane it prefers. A frame has a reference count: one
//! reference for each index entry that names it and one for each reader that copies from it.

mod chunks;
mod dedup;
mod emptying;
mod hands;
mod lanes;
mod low;
mod rebuild;
mod reserve;
mod spans;
mod warm;

use core::ops::Deref;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::apart::{Apart, expect_read};
use crate::budget::{Budget, Use};
use crate::meta::Meta;
use crate::region::{Backing, GrowArray, Region, Zeroed, zeroed_slice};
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering};
use dedup::Shared;
pub use emptying::Emptying;
use hands::{HANDS, Hand};
use low::Low;
pub use reserve::RESERVES_MAX;
use reserve::Reserve;
use spillway_types::PAGE_BYTES;
use warm::Warm;

/// Frames of a chunk.
const CHUNK_FRAMES: u32 = 64;
/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = CHUNK_FRAMES as usize * PAGE_BYTES;
/// No frame, chunk or cell.
pub const NONE: u32 = u32::MAX;
/// Number of lanes.
const LANES: usize = 4;
/// Frames of a span, the unit from which cells are cut.
pub(crate) const SPAN_FRAMES: u32 = 16;
/// Spans of a chunk.
const CHUNK_SPANS: u64 = (CHUNK_FRAMES / SPAN_FRAMES) as u64;
/// The word of a chunk whose spans are all free.
const SPANS_WHOLE: u64 = (1 << CHUNK_SPANS) - 1;
/// The lane of spans.
const SPANS: usize = LANES;
/// The lane of frames that packing has freed and moves other pages to.
const STOCK: usize = LANES + 1;
/// The lane of chunks that are being emptied.
const LEAVING: usize = LANES + 2;
/// Lanes of reserves follow, whose numbers begin at 1.
const RESERVED: usize = LEAVING;

/// A chunk, 24 bytes. Guarded by the lock of its lane, or of the spans.
#[derive(Debug)]
#[repr(C)]
struct Chunk {
    /// A set bit is a free frame, or a free span.
    free: AtomicU64,
    prev: AtomicU32,
    next: AtomicU32,
    /// Which lane; those above `RESERVED` are reserves. Changed under the lock of the lane that it
    /// is in.
    lane: AtomicU32,
    /// 1 for a chunk that is found in use while the arena is rebuilt.
    claimed: AtomicU32,
}

// SAFETY: atomics, for which zero is a value.
unsafe impl Zeroed for Chunk {}

/// Chunks of a lane that have something free, most recently freed first.
#[derive(Debug)]
struct Lane {
    first: u32,
    /// Free frames, or spans, of all its chunks.
    free: u64,
}

/// Chunks that are in no lane.
#[derive(Debug)]
struct Spare {
    first: u32,
    high: u32,
    committed_bytes: usize,
}

/// The memory that values lie in.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    frames: GrowArray<Meta>,
    chunks: GrowArray<Chunk>,
    lanes: [Apart<Lock<Lane>>; LEAVING + 1],
    hands: Box<[Apart<Hand>]>,
    /// Whether to ask the kernel for huge pages; false once it has none.
    huge: AtomicU32,
    reserves: Box<[Reserve]>,
    /// The highest reserve number so far.
    reserves_high: AtomicU32,
    spare: Lock<Spare>,
    warm: Warm,
    /// Frames whose memory was released for the index; a list through [`Meta::next`].
    hollow: Lock<u32>,
    shared: Option<Shared>,
    budget: Budget,
    low: Low,
}

impl Arena {
    /// An arena whose chunks, together with all else that takes from [`Self::budget`], stay within
    /// `capacity_bytes`. `shares` makes [`Self::store_shared`] find equal pages.
    pub fn open(capacity_bytes: u64, backing: Backing, shares: bool) -> io::Result<Self> {
        Self::over(
            Region::reserve(Self::region_bytes(capacity_bytes), backing)?,
            capacity_bytes,
            shares,
        )
    }

    /// An arena in memory that another process kept, with unknown contents at first. The index
    /// claims the parts in use ([`Self::claim`], [`Cells::claim`](crate::Cells::claim)), and then
    /// [`Self::settle`] frees the rest.
    ///
    /// # Errors
    /// As for [`Region::adopt`].
    pub fn take_over(capacity_bytes: u64, file: OwnedFd, shares: bool) -> io::Result<Self> {
        let region = Region::adopt(file, Self::region_bytes(capacity_bytes))?;
        let committed_bytes = region.bytes();
        let arena = Self::over(region, capacity_bytes, shares)?;
        arena.spare.lock().committed_bytes = committed_bytes;
        Ok(arena)
    }

    const fn region_bytes(capacity_bytes: u64) -> usize {
        (capacity_bytes / CHUNK_BYTES as u64) as usize * CHUNK_BYTES
    }

    fn over(region: Region, capacity_bytes: u64, shares: bool) -> io::Result<Self> {
        let chunks = region.bytes() / CHUNK_BYTES;
        let budget = Budget::new(capacity_bytes);
        let frames_max = chunks * CHUNK_FRAMES as usize;
        let shared = if shares { Some(Shared::open(frames_max, &budget)?) } else { None };
        let huge = region.descriptor().is_some();
        Ok(Self {
            shared,
            huge: AtomicU32::new(huge.into()),
            region,
            frames: GrowArray::reserve(frames_max)?,
            chunks: GrowArray::reserve(chunks)?,
            lanes: core::array::from_fn(|_| Apart(Lock::new(Lane { first: NONE, free: 0 }))),
            hands: (0..HANDS).map(|_| Apart(Hand::default())).collect(),
            reserves: zeroed_slice(RESERVES_MAX),
            reserves_high: AtomicU32::new(0),
            spare: Lock::new(Spare { first: NONE, high: 0, committed_bytes: 0 }),
            warm: Warm::new(),
            hollow: Lock::new(NONE),
            budget,
            low: Low::default(),
        })
    }

    /// The memory budget.
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The descriptor of a memfd's arena.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.region.descriptor()
    }

    /// Most frames that there can be.
    pub const fn frames_max(&self) -> usize {
        self.region.bytes() / PAGE_BYTES
    }

    /// How many frames fit in the present cap, if all memory were frames: the cap may be lower than at first.
    pub fn frames_within_cap(&self) -> u64 {
        (self.budget.cap() / PAGE_BYTES as u64).min(self.frames_max() as u64)
    }

    /// The metadata of `frame`.
    #[inline(always)]
    pub fn meta(&self, frame: u32) -> &Meta {
        self.frames.get(frame as usize)
    }

    /// Start of `frame`.
    #[inline(always)]
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        let offset = frame as usize * PAGE_BYTES;
        debug_assert!(offset < self.region.bytes());
        // SAFETY: frames that were handed out lie within the region.
        unsafe { self.region.base().add(offset) }
    }

    /// Takes a frame and fills it: `value`, then zeros. So every byte of the frame is written before
    /// it can be read, and nothing of its last owner is left. `None` if memory is exhausted.
    #[inline]
    pub fn store(&self, lane: usize, value: &[u8]) -> Option<u32> {
        let frame = self.take(lane)?;
        self.fill(frame, value);
        Some(frame)
    }

    /// Like [`Self::store`], with a page that `fill` writes to the frame itself. It must write all of it.
    pub fn store_page(&self, lane: usize, fill: impl FnOnce(&mut [u8; PAGE_BYTES])) -> Option<u32> {
        let frame = self.take(lane)?;
        // SAFETY: the frame was just taken off the free list, so nobody else reads or writes it.
        fill(unsafe { &mut *self.address(frame).cast() });
        self.meta(frame).first_reference();
        Some(frame)
    }

    /// Like [`Self::store`], for a page that arrives later: until [`Self::content_mut`] has written all of it, it
    /// contains its last owner's bytes.
    pub fn store_later(&self, lane: usize) -> Option<u32> {
        let frame = self.take(lane)?;
        self.meta(frame).first_reference();
        Some(frame)
    }

    /// Like [`Self::store_later`], for as many pages as there are places, or as there is memory for. Returns their number,
    /// 0 if memory is exhausted. It takes one lock, not one for each page: a lock waits until all bytes that were copied
    /// before it have reached the cache, which took half of the time of a long put.
    pub fn store_several_later(&self, lane: usize, places: &mut [u32]) -> usize {
        let mut taken = self.take_several(lane, places);
        if taken == 0
            && let (Some(first), Some(frame)) = (places.first_mut(), self.take(lane))
        {
            (*first, taken) = (frame, 1);
        }
        places[..taken].iter().for_each(|&frame| self.meta(frame).first_reference());
        taken
    }

    /// The bytes of a frame, to be written.
    ///
    /// # Safety
    /// The caller holds the only reference, nobody else knows the frame, and there is no other slice of its bytes.
    #[expect(clippy::mut_from_ref, reason = "the frame is the caller's, not the arena's")]
    pub unsafe fn content_mut(&self, frame: u32) -> &mut [u8; PAGE_BYTES] {
        // SAFETY: it lies within the region, and nobody else reads or writes it.
        unsafe { &mut *self.address(frame).cast() }
    }

    /// Fills a frame that was just taken.
    #[inline]
    fn fill(&self, frame: u32, value: &[u8]) {
        assert!(value.len() <= PAGE_BYTES);
        let address = self.address(frame);
        // SAFETY: the frame was just taken off the free list, so nobody else reads or writes it.
        unsafe {
            core::ptr::copy_nonoverlapping(value.as_ptr(), address, value.len());
            core::ptr::write_bytes(address.add(value.len()), 0, PAGE_BYTES - value.len());
        }
        self.meta(frame).first_reference();
    }

    /// Writes to the beginning of a frame.
    ///
    /// # Safety
    /// The caller holds the only reference, and nobody else knows the frame.
    pub(crate) unsafe fn write(&self, frame: u32, bytes: &[u8]) {
        assert!(bytes.len() <= PAGE_BYTES);
        // SAFETY: it lies within the frame, which nobody else reads or writes.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(frame), bytes.len());
        }
    }

    /// Like [`Self::store`] for a page, but gives a reference to an equal page of the same sharing
    /// domain if there is one. Also tells whether that is so.
    pub fn store_shared(
        &self,
        lane: usize,
        domain: u16,
        page: &[u8; PAGE_BYTES],
    ) -> Option<(u32, bool)> {
        let Some(shared) = &self.shared else {
            return self.store(lane, page).map(|frame| (frame, false));
        };
        let bucket = shared.bucket(page);
        if let Some(frame) = shared.find(self, bucket, domain, page, NONE) {
            return Some((frame, true));
        }
        let frame = self.store(lane, page)?;
        shared.insert(self.budget(), bucket, domain, frame);
        Some((frame, false))
    }

    /// A reference to a frame of the same sharing domain and content, except `except`.
    pub fn find_shared(&self, domain: u16, page: &[u8; PAGE_BYTES], except: u32) -> Option<u32> {
        let shared = self.shared.as_ref()?;
        shared.find(self, shared.bucket(page), domain, page, except)
    }

    /// Drops a reference that the caller holds; the last one frees the frame.
    #[inline]
    pub fn release(&self, frame: u32) {
        if self.meta(frame).drop_reference() {
            self.free(frame);
        }
    }

    /// Frees a frame whose last reference the caller dropped.
    fn free(&self, frame: u32) {
        self.forget_shared(frame);
        self.give_frame(frame);
    }

    /// Removes a frame that is about to be freed from the table of shared frames.
    #[inline]
    fn forget_shared(&self, frame: u32) {
        if let Some(shared) = &self.shared {
            shared.remove(frame, self.content(frame));
        }
    }

    fn give_frame(&self, frame: u32) {
        self.give(frame / CHUNK_FRAMES, frame % CHUNK_FRAMES, u64::MAX);
    }

    /// Adds a reading reference to a frame that has one. `None` if there are too many.
    #[inline]
    pub fn pin(&self, frame: u32) -> Option<Pinned<'_>> {
        // On its way while the count is.
        expect_read(self.address(frame));
        // Not `then_some`, which would drop what was not pinned.
        self.meta(frame).add_reference().then(|| self.adopt(frame))
    }

    /// Converts a reference of the caller to one for reading.
    pub const fn adopt(&self, frame: u32) -> Pinned<'_> {
        Pinned { arena: self, frame }
    }

    /// The bytes of a frame to which the caller holds a reference.
    #[inline]
    pub fn content(&self, frame: u32) -> &[u8; PAGE_BYTES] {
        // SAFETY: a frame is written only before anyone else knows of it, and not freed while it
        // has a reference.
        unsafe { &*self.address(frame).cast() }
    }

    /// Frames that are still available: free ones, and those of chunks that fit in memory.
    pub fn frames_left(&self) -> u64 {
        let room = self.left(Use::Frames) / CHUNK_BYTES as u64;
        let free: u64 = self.lanes[..LANES].iter().map(|lane| lane.0.lock().free).sum();
        room * u64::from(CHUNK_FRAMES) + free + self.frames_at_hand()
    }

    /// Bytes of free frames and spans in chunks that are charged to the budget.
    pub fn free_bytes(&self) -> u64 {
        let free = |lane: &Apart<Lock<Lane>>| lane.0.lock().free * PAGE_BYTES as u64;
        let frames: u64 = self.lanes[..LANES].iter().map(free).sum();
        let spans = free(&self.lanes[SPANS]) * u64::from(SPAN_FRAMES);
        let packing = free(&self.lanes[STOCK]) + free(&self.lanes[LEAVING]);
        let at_hand = self.frames_at_hand() * PAGE_BYTES as u64;
        frames + spans + packing + at_hand + self.reserved_free_bytes() + self.warm_bytes()
    }

    /// Whether there is memory for another chunk of frames.
    pub fn grows(&self) -> bool {
        self.left(Use::Frames) >= CHUNK_BYTES as u64
    }

    /// Releases the memory of up to `count` free frames, so that the index can grow. The frames are
    /// hollow until there is memory for them again. Returns their number.
    pub fn hollow_out(&self, count: usize) -> usize {
        if self.give_warm_back(1) != 0 {
            return count;
        }
        for done in 0..count {
            let Some(frame) = self.take_any() else { return done };
            if self.region.release(frame as usize * PAGE_BYTES, PAGE_BYTES).is_err() {
                self.free(frame);
                return done;
            }
            let mut first = self.hollow.lock();
            let meta = self.meta(frame);
            meta.next.store(*first, Ordering::Relaxed);
            *first = frame;
            self.budget.give(PAGE_BYTES as u64);
        }
        count
    }

    /// Makes a hollow frame a frame again.
    fn refill(&self) -> Option<u32> {
        let mut first = self.hollow.lock();
        let frame = *first;
        if frame == NONE || !self.budget.take(PAGE_BYTES as u64, Use::Frames) {
            return None;
        }
        *first = self.meta(frame).next.load(Ordering::Relaxed);
        Some(frame)
    }

    #[inline(always)]
    fn chunk(&self, chunk: u32) -> &Chunk {
        self.chunks.get(chunk as usize)
    }
}

/// A frame that can't be freed or changed while this lives.
#[derive(Debug)]
pub struct Pinned<'a> {
    arena: &'a Arena,
    frame: u32,
}

impl Pinned<'_> {
    /// Present references to the frame, including this one.
    pub fn references(&self) -> u16 {
        self.arena.meta(self.frame).references()
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8; PAGE_BYTES];

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.arena.content(self.frame)
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.arena.release(self.frame);
    }
}
