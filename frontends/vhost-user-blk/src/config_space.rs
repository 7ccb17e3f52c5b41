//! The device's configuration space: `struct virtio_blk_config` (virtio 1.2, section 5.2.4).

use spillway_types::PAGE_BYTES;

use crate::chain::SEGMENTS_MAX;
use crate::request::{RANGES_MAX, SECTOR_BYTES, ZERO_SECTORS_MAX};

/// Bytes of the supported fields.
const BYTES: usize = 60;
/// Most parts of a request besides header and status, so that a request fits a queue of 128.
const PARTS_MAX: u32 = 126;
/// Sectors of a block.
const BLOCK_SECTORS: u32 = (PAGE_BYTES as u64 / SECTOR_BYTES) as u32;

const _: () = assert!(PARTS_MAX as usize + 2 <= SEGMENTS_MAX);

/// `size` bytes of a disk's configuration space, from `offset`; zeros beyond its end.
pub fn read(blocks: u64, queues: u16, offset: usize, size: usize) -> Vec<u8> {
    let mut space = [0; BYTES];
    let mut set = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, &(blocks * u64::from(BLOCK_SECTORS)).to_le_bytes());
    set(12, &PARTS_MAX.to_le_bytes());
    // Logical blocks of 512 bytes; physical blocks and the minimum I/O size are 4096.
    set(20, &(SECTOR_BYTES as u32).to_le_bytes());
    set(24, &[BLOCK_SECTORS.ilog2() as u8]);
    set(26, &(BLOCK_SECTORS as u16).to_le_bytes());
    set(34, &queues.to_le_bytes());
    // For discards: most sectors of a range, most ranges, alignment. For zeros: the same without alignment, and that
    // they free memory.
    set(36, &ZERO_SECTORS_MAX.to_le_bytes());
    set(40, &(RANGES_MAX as u32).to_le_bytes());
    set(44, &BLOCK_SECTORS.to_le_bytes());
    set(48, &ZERO_SECTORS_MAX.to_le_bytes());
    set(52, &(RANGES_MAX as u32).to_le_bytes());
    set(56, &[1]);
    (offset..offset + size).map(|at| space.get(at).copied().unwrap_or(0)).collect()
}
