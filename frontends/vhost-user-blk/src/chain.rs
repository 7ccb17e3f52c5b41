//! A descriptor chain: which parts of the guest's memory a request is made of.
//!
//! virtio-queue's own chain begins at the available ring alone. A request that was in flight when a
//! daemon was killed is known by its head, so the chain is walked here from a head, with the same bounds.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Most parts of one request.
pub const SEGMENTS_MAX: usize = 256;

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: u32 = 16;

/// Why a chain can't be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is not as virtio says.
    Chain,
    /// It names memory that the guest's QEMU does not share, or that is not there.
    Memory {
        /// Where, in the guest.
        address: u64,
    },
}

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    address: u64,
    bytes: u32,
}

/// The parts of a request, in a buffer that is used again.
#[derive(Debug)]
pub struct Chain {
    segments: Box<[Segment; SEGMENTS_MAX]>,
    /// Parts that the device reads; those it writes follow.
    out: usize,
    count: usize,
}

/// A descriptor table, of the queue or of one request.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorTable {
    /// Its address in the guest.
    pub address: u64,
    /// Its descriptors.
    pub length: u16,
}

impl DescriptorTable {
    fn descriptor(self, memory: &GuestMemoryMmap, at: u16) -> Result<Descriptor, Malformed> {
        if at >= self.length {
            return Err(Malformed::Chain);
        }
        let offset = u64::from(at) * u64::from(DESCRIPTOR_BYTES);
        let address = self.address.checked_add(offset).ok_or(Malformed::Chain)?;
        // A copy: what is checked is what is used.
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
                // One level, at the end of a chain; a table that is longer than a chain may be is
                // walked no further than that.
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
            // A chain that goes round in a circle ends at the bound on its parts.
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

    /// What the device reads.
    pub fn device_reads(&self) -> Cursor<'_> {
        Cursor { segments: &self.segments[..self.out], at: 0 }
    }

    /// What the device writes.
    pub fn device_writes(&self) -> Cursor<'_> {
        Cursor { segments: &self.segments[self.out..self.count], at: 0 }
    }
}

/// A place in the parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first that are behind.
    at: u32,
}

impl Cursor<'_> {
    /// Bytes ahead.
    pub fn left(&self) -> u64 {
        let all: u64 = self.segments.iter().map(|segment| u64::from(segment.bytes)).sum();
        all - u64::from(self.at)
    }

    /// Goes forward to where `bytes` are left.
    pub fn leave(&mut self, bytes: u64) {
        let mut skip = self.left().saturating_sub(bytes);
        while skip != 0 {
            let (_, length) = self.next_part(skip);
            skip -= length;
        }
    }

    /// Takes the next part of at most `bytes` bytes: its address and length.
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

    /// Copies bytes to the next place in the guest's memory.
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
