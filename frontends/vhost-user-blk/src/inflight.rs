//! The region that records requests in flight, so that the next daemon executes them again if this one is
//! killed (vhost-user, "Inflight I/O tracking", split virtqueues).
//!
//! The guest's QEMU keeps the memory, so it is as untrusted as the guest's own. Every field is read once
//! and bounded. A queue's part, little-endian, begins at a multiple of 64 bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 0-7 | features, 0 |
//! | 8-9 | version, 1 |
//! | 10-11 | descriptors |
//! | 12-13 | head of the last completed request |
//! | 14-15 | index of the used ring after the last recorded completion |
//! | 16.. | for each descriptor: in flight (1), padding (5), next (2), counter (8) |

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::{AtomicAccess, MmapRegion};

use crate::error::Error;
use crate::memory::{map_file, slice};

const VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;
const DESCRIPTOR_BYTES: usize = 16;
const ALIGNMENT: usize = 64;

/// The region of all queues.
#[derive(Debug)]
pub struct Inflight {
    mapping: MmapRegion,
    queues: u16,
    queue_size: u16,
}

/// Bytes of a queue's part.
const fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + DESCRIPTOR_BYTES * queue_size as usize).next_multiple_of(ALIGNMENT)
}

/// Bytes of a region.
const fn region_bytes(queues: u16, queue_size: u16) -> u64 {
    (queues as usize * queue_bytes(queue_size)) as u64
}

impl Inflight {
    /// Creates a region. Returns its length and its file, which the guest's QEMU keeps.
    pub fn create(queues: u16, queue_size: u16) -> io::Result<(u64, File)> {
        let bytes = region_bytes(queues, queue_size);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("spillway-inflight", flags)?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((bytes, file.into()))
    }

    /// Maps a region that [`Self::create`] created, perhaps in another daemon.
    pub fn map(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<Self, Error> {
        if bytes < region_bytes(queues, queue_size) {
            return Err(Error::ShortMemory);
        }
        Ok(Self { mapping: map_file(file, offset, bytes)?, queues, queue_size })
    }
}

/// One queue's part of the region.
#[derive(Debug)]
pub struct QueueInflight {
    region: Arc<Inflight>,
    start: usize,
    size: u16,
    counter: u64,
}

impl QueueInflight {
    /// The part of queue number `queue`; none if the region has no such part.
    pub fn of(region: Arc<Inflight>, queue: u16, size: u16) -> Option<Self> {
        if queue >= region.queues || size > region.queue_size {
            return None;
        }
        let start = usize::from(queue) * queue_bytes(region.queue_size);
        Some(Self { region, start, size, counter: 0 })
    }

    /// Reads a field of the region. Fields are aligned and inside it, so this can't fail.
    fn field<T: AtomicAccess>(&self, at: usize) -> Option<T> {
        let memory = slice(&self.region.mapping);
        vm_memory::Bytes::load(&memory, self.start + at, Ordering::SeqCst).ok()
    }

    fn set<T: AtomicAccess>(&self, at: usize, value: T) {
        let memory = slice(&self.region.mapping);
        let set = vm_memory::Bytes::store(&memory, value, self.start + at, Ordering::SeqCst);
        debug_assert!(set.is_ok(), "fields lie in the region");
    }

    const fn descriptor(head: u16) -> usize {
        HEADER_BYTES + DESCRIPTOR_BYTES * head as usize
    }

    /// Starts tracking, with the used ring at `used_index`. Returns the heads of the requests that were in flight, in
    /// the order of their arrival.
    pub fn recover(&mut self, used_index: u16) -> Vec<u16> {
        if self.field::<u16>(8) != Some(VERSION) {
            self.set(10, self.size);
            self.set(14, used_index);
            self.set(8, VERSION);
            return Vec::new();
        }
        // A kill came after the last completion was put into the used ring, and before it was recorded here.
        if self.field::<u16>(14) != Some(used_index) {
            let last = self.field::<u16>(12).filter(|&head| head < self.size);
            last.into_iter().for_each(|head| self.set(Self::descriptor(head), 0_u8));
            self.set(14, used_index);
        }
        let flying = |head: &u16| self.field::<u8>(Self::descriptor(*head)) == Some(1);
        let heads = (0..self.size).filter(flying);
        let mut counted: Vec<(u64, u16)> = heads
            .map(|head| (self.field::<u64>(Self::descriptor(head) + 8).unwrap_or(0), head))
            .collect();
        counted.sort_unstable();
        self.counter = counted.last().map_or(0, |last| last.0.wrapping_add(1));
        counted.into_iter().map(|(_, head)| head).collect()
    }

    /// Records a request that was taken from the available ring.
    pub fn begin(&mut self, head: u16) {
        if head < self.size {
            self.set(Self::descriptor(head) + 8, self.counter);
            self.counter = self.counter.wrapping_add(1);
            self.set(Self::descriptor(head), 1_u8);
        }
    }

    /// Records a request that is about to be put into the used ring.
    pub fn completing(&self, head: u16) {
        self.set(12, head);
    }

    /// Records that the request is in the used ring, whose index is now `used_index`.
    pub fn completed(&self, head: u16, used_index: u16) {
        if head < self.size {
            self.set(Self::descriptor(head), 0_u8);
        }
        self.set(14, used_index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u16 = 8;

    fn queue(file: &File) -> QueueInflight {
        let bytes = region_bytes(2, SIZE);
        let region = Inflight::map(file.try_clone().unwrap(), 0, bytes, 2, SIZE).unwrap();
        QueueInflight::of(Arc::new(region), 1, SIZE).unwrap()
    }

    #[test]
    fn what_was_in_flight_is_found_in_its_order() {
        let (_, file) = Inflight::create(2, SIZE).unwrap();
        let mut first = queue(&file);
        assert!(first.recover(7).is_empty());
        for head in [5, 2, 6] {
            first.begin(head);
        }
        first.completing(2);
        first.completed(2, 8);
        drop(first);
        let mut second = queue(&file);
        assert_eq!(second.recover(8), [5, 6]);
        second.begin(0);
        assert_eq!(queue(&file).recover(8), [5, 6, 0]);
    }

    #[test]
    fn a_completion_that_was_not_noted_is_one() {
        let (_, file) = Inflight::create(2, SIZE).unwrap();
        let mut first = queue(&file);
        first.recover(0);
        first.begin(3);
        first.begin(4);
        first.completing(3);
        // The daemon is killed here, with the used ring at 1.
        assert_eq!(queue(&file).recover(1), [4]);
    }

    #[test]
    fn a_hostile_region_is_bounded() {
        let (bytes, file) = Inflight::create(2, SIZE).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; bytes as usize], 0).unwrap();
        assert!(queue(&file).recover(0).is_empty());
        let marks: Vec<u8> = [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0xff, 0xff, 9, 9].into();
        let marks = marks.repeat(bytes as usize / 16);
        std::os::unix::fs::FileExt::write_all_at(&file, &marks, 0).unwrap();
        assert!(queue(&file).recover(0).iter().all(|&head| head < SIZE));
        assert!(Inflight::map(file, 0, bytes - 1, 2, SIZE).is_err());
    }
}
