//! Decodes a guest's requests, from bytes that were copied first (virtio 1.2, section 5.2.6).

use spillway_serving::CommandKind;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};

/// Bytes of a sector, the protocol's unit regardless of the block size.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a range to discard.
pub const RANGE_BYTES: usize = 16;
/// Most ranges of one request.
pub const RANGES_MAX: usize = 16;
/// Most sectors of one range to discard or fill with zeros: 2 GiB.
pub const ZERO_SECTORS_MAX: u32 = 1 << 22;
/// Most bytes that a request reads or writes, so that no request occupies a thread for long.
const DATA_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a disk's name.
pub const ID_BYTES: usize = VIRTIO_BLK_ID_BYTES as usize;

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It succeeded.
    Ok = VIRTIO_BLK_S_OK as u8,
    /// It failed.
    Error = VIRTIO_BLK_S_IOERR as u8,
    /// The device does not support it.
    Unsupported = VIRTIO_BLK_S_UNSUPP as u8,
}

/// A request whose range lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Copies bytes of the disk to the guest's memory.
    Read(Span),
    /// Copies bytes of the guest's memory to the disk.
    Write(Span),
    /// Makes completed writes durable.
    Flush,
    /// Reads the disk's name.
    Id,
    /// Discards ranges or fills them with zeros. The ranges follow the header.
    Zero {
        /// Number of ranges.
        ranges: usize,
        /// Whether parts of blocks at a range's ends must read as zeros too.
        parts: bool,
    },
}

/// A range of bytes of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

impl Span {
    /// A range that begins at a sector, if it lies on a disk of `disk_bytes`.
    fn on(disk_bytes: u64, sector: u64, bytes: u64) -> Result<Self, Status> {
        let start = sector.checked_mul(SECTOR_BYTES).ok_or(Status::Error)?;
        let end = start.checked_add(bytes).ok_or(Status::Error)?;
        if end > disk_bytes || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Status::Error);
        }
        Ok(Self { start, bytes })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl Request {
    /// What it does, for the metrics.
    pub const fn kind(self) -> CommandKind {
        match self {
            Self::Read(_) => CommandKind::Read,
            Self::Write(_) => CommandKind::Write,
            Self::Flush => CommandKind::Flush,
            Self::Id => CommandKind::Other,
            Self::Zero { .. } => CommandKind::Discard,
        }
    }

    /// Decodes a header. `out_bytes` is the number of bytes that follow it in the guest's memory, `in_bytes` the number
    /// that the device can write before the status.
    ///
    /// # Errors
    /// The status with which the request fails.
    pub fn parse(
        header: &[u8; HEADER_BYTES],
        out_bytes: u64,
        in_bytes: u64,
        disk_bytes: u64,
    ) -> Result<Self, Status> {
        let (kind, sector) = (word(header, 0) as u32, word(header, 8));
        match kind {
            VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT if in_bytes.max(out_bytes) > DATA_BYTES_MAX => {
                Err(Status::Error)
            }
            VIRTIO_BLK_T_IN => Span::on(disk_bytes, sector, in_bytes).map(Self::Read),
            VIRTIO_BLK_T_OUT => Span::on(disk_bytes, sector, out_bytes).map(Self::Write),
            VIRTIO_BLK_T_FLUSH => Ok(Self::Flush),
            VIRTIO_BLK_T_GET_ID => Ok(Self::Id),
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                let ranges = out_bytes / RANGE_BYTES as u64;
                let whole = out_bytes.is_multiple_of(RANGE_BYTES as u64);
                if !whole || ranges == 0 || ranges > RANGES_MAX as u64 {
                    return Err(Status::Error);
                }
                let parts = kind == VIRTIO_BLK_T_WRITE_ZEROES;
                Ok(Self::Zero { ranges: ranges as usize, parts })
            }
            _ => Err(Status::Unsupported),
        }
    }

    /// Decodes a range to discard, or with `parts` to fill with zeros.
    ///
    /// # Errors
    /// The status with which the request fails.
    pub fn range(bytes: &[u8; RANGE_BYTES], parts: bool, disk_bytes: u64) -> Result<Span, Status> {
        let (sector, rest) = (word(bytes, 0), word(bytes, 8));
        let (sectors, flags) = (rest & u64::from(u32::MAX), (rest >> 32) as u32);
        // A discard allows no flag, a fill with zeros allows one.
        let allowed = if parts { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
        if flags & !allowed != 0 {
            return Err(Status::Unsupported);
        }
        if sectors > ZERO_SECTORS_MAX.into() {
            return Err(Status::Error);
        }
        Span::on(disk_bytes, sector, sectors * SECTOR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u32, sector: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    #[test]
    fn ranges_lie_on_the_disk() {
        let read = |sector, bytes| Request::parse(&header(0, sector), 0, bytes, 8192);
        assert_eq!(read(1, 512), Ok(Request::Read(Span { start: 512, bytes: 512 })));
        assert_eq!(read(16, 0), Ok(Request::Read(Span { start: 8192, bytes: 0 })));
        for (sector, bytes) in [(16, 512), (1, 8192), (0, 100), (u64::MAX, 512), (1 << 55, 512)] {
            assert_eq!(read(sector, bytes), Err(Status::Error), "{sector} {bytes}");
        }
        let long = Request::parse(&header(1, 0), DATA_BYTES_MAX + 512, 0, u64::MAX);
        assert_eq!(long, Err(Status::Error));
        let write = Request::parse(&header(1, 8), 4096, 0, 8192);
        assert_eq!(write, Ok(Request::Write(Span { start: 4096, bytes: 4096 })));
    }

    #[test]
    fn what_is_unknown_is_unsupported() {
        assert_eq!(Request::parse(&header(99, 0), 0, 0, 0), Err(Status::Unsupported));
        let zero = |bytes| Request::parse(&header(13, 0), bytes, 0, 0);
        assert_eq!(zero(32), Ok(Request::Zero { ranges: 2, parts: true }));
        for bytes in [0, 8, 17, 16 * 17] {
            assert_eq!(zero(bytes), Err(Status::Error), "{bytes}");
        }
        let mut range = [0; RANGE_BYTES];
        range[8] = 8;
        range[12] = 1;
        assert_eq!(Request::range(&range, false, 4096), Err(Status::Unsupported));
        assert_eq!(Request::range(&range, true, 4096), Ok(Span { start: 0, bytes: 4096 }));
        range[8..12].copy_from_slice(&(ZERO_SECTORS_MAX + 1).to_le_bytes());
        assert_eq!(Request::range(&range, true, u64::MAX), Err(Status::Error));
        range[12] = 2;
        assert_eq!(Request::range(&range, true, 4096), Err(Status::Unsupported));
    }
}
