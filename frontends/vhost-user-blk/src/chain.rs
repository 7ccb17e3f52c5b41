//! A descriptor chain: the parts of the guest's memory that make up a request.
//!
//! virtio-queue can walk a chain only from the available ring. Of a request that was in flight when a
//! daemon was killed, only the head is known. So this module walks a chain from its head, with the same
//! bounds.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Most parts of one request.
pub const SEGMENTS_MAX: usize = 256;

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: u32 = 16;

/// The reason why a chain can't be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It violates virtio.
    Chain,
    /// It names memory that the guest's QEMU does not share, or that does not exist.
    Memory {
        /// The guest's address.
        address: u64,
    },
}

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    address: u64,
    bytes: u32,
}

/// The parts of a request, in a buffer that is reused for each request.
#[derive(Debug)]
pub struct Chain {
    segments: Box<[Segment; SEGMENTS_MAX]>,
    /// Number of parts that the device reads; the parts that it writes follow.
    out: usize,
    count: usize,
}

/// A descriptor table: that of the queue, or the indirect table of a request.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorTable {
    /// Its address in the guest.
    pub address: u64,
    /// Its number of descriptors.
    pub length: u16,
}

impl DescriptorTable {
    fn descriptor(self, memory: &GuestMemoryMmap, at: u16) -> Result<Descriptor, Malformed> {
        if at >= self.length {
            return Err(Malformed::Chain);
        }
        let offset = u64::from(at) * u64::from(DESCRIPTOR_BYTES);
        let address = self.address.checked_add(offset).ok_or(Malformed::Chain)?;
        // A copy, so that the guest can't change it between check and use.
        memory.read_obj(GuestAddress(address)).map_err(|_| Malformed::Memory { address })
    }
}

impl Chain {
    pub fn new() -> Self {
        Self { segments: Box::new([Segment::default(); SEGMENTS_MAX]), out: 0, count: 0 }
    }

    /// Walks the chain that begins at `head`.
    pub fn collect(
        &mut self,
        memory: &GuestMemoryMmap,
        table: DescriptorTable,
        head: u16,
    ) -> Result<(), Malformed> {
        (self.out, self.count) = (0, 0);
        let (mut table, mut at, mut indirect) = (table, head, false);
        loop {
            let descriptor = table.descriptor(memory, at)?;
            if descriptor.refers_to_indirect_table() {
                let length = descriptor.len() / DESCRIPTOR_BYTES;
                let whole = descriptor.len().is_multiple_of(DESCRIPTOR_BYTES);
                // One level of indirection is allowed, at the end of a chain. The walk of a long table ends at
                // SEGMENTS_MAX.
                if indirect || !whole || descriptor.has_next() || length == 0 {
                    return Err(Malformed::Chain);
                }
                let length = u16::try_from(length).map_err(|_| Malformed::Chain)?;
                table = DescriptorTable { address: descriptor.addr().0, length };
                (at, indirect) = (0, true);
                continue;
            }
            self.push(descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            // A circular chain ends at SEGMENTS_MAX.
            at = descriptor.next();
        }
    }

    fn push(&mut self, descriptor: Descriptor) -> Result<(), Malformed> {
        let writable = descriptor.is_write_only();
        if self.count == SEGMENTS_MAX || (!writable && self.out < self.count) {
            return Err(Malformed::Chain);
        }
        let segment = Segment { address: descriptor.addr().0, bytes: descriptor.len() };
        self.segments[self.count] = segment;
        self.count += 1;
        self.out += usize::from(!writable);
        Ok(())
    }

    /// The parts that the device reads.
    pub fn device_reads(&self) -> Cursor<'_> {
        Cursor { segments: &self.segments[..self.out], at: 0 }
    }

    /// The parts that the device writes.
    pub fn device_writes(&self) -> Cursor<'_> {
        Cursor { segments: &self.segments[self.out..self.count], at: 0 }
    }
}

/// A position in the parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first part that were consumed.
    at: u32,
}

impl Cursor<'_> {
    /// Number of remaining bytes.
    pub fn left(&self) -> u64 {
        let all: u64 = self.segments.iter().map(|segment| u64::from(segment.bytes)).sum();
        all - u64::from(self.at)
    }

    /// Skips ahead until `bytes` bytes remain.
    pub fn leave(&mut self, bytes: u64) {
        let mut skip = self.left().saturating_sub(bytes);
        while skip != 0 {
            let (_, length) = self.next_part(skip);
            skip -= length;
        }
    }

    /// Consumes the next part, at most `bytes` bytes. Returns its address and length; length 0 at the end.
    fn next_part(&mut self, bytes: u64) -> (u64, u64) {
        while let [segment, rest @ ..] = self.segments {
            let left = segment.bytes - self.at;
            if left == 0 {
                (self.segments, self.at) = (rest, 0);
                continue;
            }
            let length = u64::from(left).min(bytes);
            let address = segment.address.wrapping_add(u64::from(self.at));
            self.at += length as u32;
            return (address, length);
        }
        (0, 0)
    }

    /// Copies the next bytes out of the guest's memory.
    pub fn read(&mut self, memory: &GuestMemoryMmap, bytes: &mut [u8]) -> Result<(), Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (address, length) = self.next_part(rest.len() as u64);
            if length == 0 {
                return Err(Malformed::Chain);
            }
            let (part, after) = rest.split_at_mut(length as usize);
            memory
                .read_slice(part, GuestAddress(address))
                .map_err(|_| Malformed::Memory { address })?;
            rest = after;
        }
        Ok(())
    }

    /// Copies bytes to the next part of the guest's memory.
    pub fn write(&mut self, memory: &GuestMemoryMmap, bytes: &[u8]) -> Result<(), Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (address, length) = self.next_part(rest.len() as u64);
            if length == 0 {
                return Err(Malformed::Chain);
            }
            let (part, after) = rest.split_at(length as usize);
            memory
                .write_slice(part, GuestAddress(address))
                .map_err(|_| Malformed::Memory { address })?;
            rest = after;
        }
        Ok(())
    }
}
