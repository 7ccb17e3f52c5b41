//! Finds frames of equal content.
//!
//! Buckets of frames by the XXH3-128 of their content, chained through an array by frame number.
//! Equal hashes are never trusted: the bytes are compared before a frame is shared. Each frame
//! carries the number of its sharing domain, because a client must not find another client's page
//! outside its domain. About 6 bytes a page: 5 for the chain and the domain, and 1 for the buckets
//! when memory is full.

use std::io;

use twox_hash::XxHash3_128;

use super::Arena;
use crate::budget::{Budget, Use};
use crate::region::GrowArray;
use crate::sync::{AtomicU8, AtomicU32, Lock, Ordering};
use spillway_types::PAGE_BYTES;

/// Bits of a link for the next frame's number plus one; the others belong to the domain.
const NEXT_BITS: u32 = 26;
const NEXT_MASK: u32 = (1 << NEXT_BITS) - 1;
/// Frames for each bucket when memory is full.
const BUCKET_FRAMES: usize = 4;
/// Number of locks of the buckets.
const STRIPES: usize = 16;
/// Most frames of a bucket that are compared. A longer bucket is an attack.
const COMPARED_MAX: usize = 16;

/// The frames that can be shared.
#[derive(Debug)]
pub(crate) struct Shared {
    /// First frame's number plus one.
    buckets: GrowArray<AtomicU32>,
    bucket_count: usize,
    /// By frame: the next frame, and the low bits of the domain plus one.
    links: GrowArray<AtomicU32>,
    /// By frame: the high bits of the domain plus one. Both parts 0: the frame is in no bucket.
    domains: GrowArray<AtomicU8>,
    growth: Lock<()>,
    stripes: [Lock<()>; STRIPES],
    seed: u64,
}

impl Shared {
    pub(crate) fn open(frames_max: usize, budget: &Budget) -> io::Result<Self> {
        if frames_max >= NEXT_MASK as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let bucket_count = (frames_max / BUCKET_FRAMES).max(1);
        let buckets = GrowArray::reserve(bucket_count)?;
        if !buckets.grow(bucket_count, budget, Use::Index) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Self {
            buckets,
            bucket_count,
            links: GrowArray::reserve(frames_max)?,
            domains: GrowArray::reserve(frames_max)?,
            growth: Lock::new(()),
            stripes: core::array::from_fn(|_| Lock::new(())),
            seed: u64::from_ne_bytes(seed),
        })
    }

    /// The bucket of a page's content.
    pub(crate) fn bucket(&self, page: &[u8; PAGE_BYTES]) -> usize {
        let hash = XxHash3_128::oneshot_with_seed(self.seed, page);
        (hash % self.bucket_count as u128) as usize
    }

    /// A reference to a frame of the same domain and content, which is not `except`.
    pub(crate) fn find(
        &self,
        arena: &Arena,
        bucket: usize,
        domain: u16,
        page: &[u8; PAGE_BYTES],
        except: u32,
    ) -> Option<u32> {
        let mut candidates = [0; COMPARED_MAX];
        let mut count = 0;
        let stripe = self.stripes[bucket % STRIPES].lock();
        let mut at = self.buckets.get(bucket).load(Ordering::Relaxed);
        while at != 0 && count < COMPARED_MAX {
            let frame = at - 1;
            let wanted = frame != except && self.domain(frame) == Some(domain);
            if wanted && arena.meta(frame).share_if_live() {
                candidates[count] = frame;
                count += 1;
            }
            at = self.links.get(frame as usize).load(Ordering::Relaxed) & NEXT_MASK;
        }
        drop(stripe);
        let mut found = None;
        for &frame in &candidates[..count] {
            if found.is_none() && arena.content(frame) == page {
                found = Some(frame);
            } else {
                arena.release(frame);
            }
        }
        found
    }

    /// Makes a frame findable, if there is memory for that.
    pub(crate) fn insert(&self, budget: &Budget, bucket: usize, domain: u16, frame: u32) {
        if frame as usize >= self.links.len().min(self.domains.len()) {
            let _growth = self.growth.lock();
            if !self.links.grow(frame as usize + 1, budget, Use::Index)
                || !self.domains.grow(frame as usize + 1, budget, Use::Index)
            {
                return;
            }
        }
        let mark = u32::from(domain) + 1;
        let _stripe = self.stripes[bucket % STRIPES].lock();
        let first = self.buckets.get(bucket).swap(frame + 1, Ordering::Relaxed);
        let link = first | mark << NEXT_BITS;
        self.links.get(frame as usize).store(link, Ordering::Relaxed);
        let high = (mark >> (u32::BITS - NEXT_BITS)) as u8;
        self.domains.get(frame as usize).store(high, Ordering::Relaxed);
    }

    /// Removes an unreferenced frame, if it is in the table.
    pub(crate) fn remove(&self, frame: u32, page: &[u8; PAGE_BYTES]) {
        if self.domain(frame).is_none() {
            return;
        }
        let bucket = self.bucket(page);
        let _stripe = self.stripes[bucket % STRIPES].lock();
        let link = self.links.get(frame as usize).swap(0, Ordering::Relaxed);
        self.domains.get(frame as usize).store(0, Ordering::Relaxed);
        let next = link & NEXT_MASK;
        let head = self.buckets.get(bucket);
        let mut at = head.load(Ordering::Relaxed);
        if at == frame + 1 {
            head.store(next, Ordering::Relaxed);
            return;
        }
        while at != 0 {
            let link = self.links.get(at as usize - 1);
            let value = link.load(Ordering::Relaxed);
            at = value & NEXT_MASK;
            if at == frame + 1 {
                link.store(value & !NEXT_MASK | next, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The domain of a frame that is found; `None` of one that is not.
    pub(crate) fn domain(&self, frame: u32) -> Option<u16> {
        if frame as usize >= self.links.len().min(self.domains.len()) {
            return None;
        }
        let low = self.links.get(frame as usize).load(Ordering::Relaxed) >> NEXT_BITS;
        let high = u32::from(self.domains.get(frame as usize).load(Ordering::Relaxed));
        (low | high << (u32::BITS - NEXT_BITS)).checked_sub(1).map(|domain| domain as u16)
    }
}
