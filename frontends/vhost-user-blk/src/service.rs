//! Executes requests: copies between the guest's memory and the disk.

use std::sync::Arc;
use std::time::Instant;

use spillway_serving::{CommandKind, Recorder};
use spillway_store::PageBuf;
use spillway_types::PAGE_BYTES;
use vm_memory::GuestMemoryMmap;

use crate::chain::{Chain, Cursor, DescriptorTable, Malformed};
use crate::disk::Disk;
use crate::error::Error;
use crate::group::GROUP_BLOCKS;
use crate::request::{HEADER_BYTES, ID_BYTES, RANGE_BYTES, RANGES_MAX, Request, Span, Status};

/// Bytes of a group of blocks.
const GROUP_BYTES: u64 = (GROUP_BLOCKS * PAGE_BYTES) as u64;

/// The reason why a request failed.
#[derive(Debug)]
enum Failure {
    /// An error, which is counted and logged.
    Error(Error),
    /// A request that the disk refuses, with the status for the guest.
    Status(Status),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Error(malformed.into())
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Executes the requests of one queue, with buffers that are reused.
#[derive(Debug)]
pub struct Service {
    chain: Chain,
    mover: Mover,
    recorder: Recorder,
}

/// Moves blocks between the disk and the guest's memory.
#[derive(Debug)]
struct Mover {
    disk: Arc<Disk>,
    pages: Box<[PageBuf]>,
    /// What the present request does.
    kind: CommandKind,
}

impl Service {
    /// A service for requests to `disk`.
    pub fn new(disk: Arc<Disk>) -> Self {
        let pages = vec![PageBuf::ZERO; GROUP_BLOCKS].into();
        let recorder = disk.latencies.recorder();
        let mover = Mover { disk, pages, kind: CommandKind::Other };
        Self { chain: Chain::new(), mover, recorder }
    }

    /// Executes the request whose chain begins at `head`. Returns the number of bytes written to the guest's memory; 0
    /// if the chain is malformed.
    pub fn serve(&mut self, memory: &GuestMemoryMmap, table: DescriptorTable, head: u16) -> u32 {
        let began = Instant::now();
        self.mover.kind = CommandKind::Other;
        let written = self.try_to_serve(memory, table, head).unwrap_or_else(|malformed| {
            self.mover.disk.count_error(&malformed.into());
            0
        });
        self.recorder.record(self.mover.kind, began.elapsed());
        written
    }

    fn try_to_serve(
        &mut self,
        memory: &GuestMemoryMmap,
        table: DescriptorTable,
        head: u16,
    ) -> Result<u32, Malformed> {
        self.chain.collect(memory, table, head)?;
        let mut status_at = self.chain.device_writes();
        // The last byte is for the status.
        let in_bytes = status_at.left().checked_sub(1).ok_or(Malformed::Chain)?;
        status_at.leave(1);
        let (status, written) = match self.mover.carry_out(memory, &self.chain, in_bytes) {
            Ok(written) => (Status::Ok, written),
            Err(failure) => (self.mover.report(failure), 0),
        };
        status_at.write(memory, &[status as u8])?;
        Ok(written as u32 + 1)
    }
}

impl Mover {
    fn report(&self, failure: Failure) -> Status {
        match failure {
            Failure::Status(status) => status,
            Failure::Error(error) => {
                self.disk.count_error(&error);
                Status::Error
            }
        }
    }

    fn carry_out(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        in_bytes: u64,
    ) -> Result<u64, Failure> {
        let mut out = chain.device_reads();
        let mut header = [0; HEADER_BYTES];
        out.read(memory, &mut header)?;
        let disk_bytes = self.disk.blocks() * PAGE_BYTES as u64;
        let request = Request::parse(&header, out.left(), in_bytes, disk_bytes)?;
        self.kind = request.kind();
        match request {
            Request::Read(span) => {
                self.read(memory, span, chain.device_writes())?;
                return Ok(span.bytes);
            }
            Request::Write(span) => self.write(memory, span, out)?,
            Request::Flush => self.disk.sync()?,
            Request::Id => {
                let mut id = [0; ID_BYTES];
                let name = self.disk.name().as_bytes();
                let shown = name.len().min(ID_BYTES);
                id[..shown].copy_from_slice(&name[..shown]);
                let length = (ID_BYTES as u64).min(in_bytes) as usize;
                chain.device_writes().write(memory, &id[..length])?;
                return Ok(length as u64);
            }
            Request::Zero { ranges, parts } => {
                let mut spans = [Span::default(); RANGES_MAX];
                // Checks all ranges before it changes the first.
                for span in &mut spans[..ranges] {
                    let mut range = [0; RANGE_BYTES];
                    out.read(memory, &mut range)?;
                    *span = Request::range(&range, parts, disk_bytes)?;
                }
                for span in &spans[..ranges] {
                    self.zero(*span, parts)?;
                }
            }
        }
        Ok(0)
    }

    fn read(
        &mut self,
        memory: &GuestMemoryMmap,
        span: Span,
        into: Cursor<'_>,
    ) -> Result<(), Failure> {
        let mut into = into;
        for piece in pieces(span) {
            let (first, count) = piece.blocks();
            let pages = &mut self.pages[..count];
            self.disk.read(first, pages)?;
            for (page, part) in pages.iter().zip(piece.parts()) {
                into.write(memory, &page.0[part])?;
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        memory: &GuestMemoryMmap,
        span: Span,
        from: Cursor<'_>,
    ) -> Result<(), Failure> {
        let mut from = from;
        for piece in pieces(span) {
            let (first, count) = piece.blocks();
            for (page, part) in self.pages[..count].iter_mut().zip(piece.parts()) {
                from.read(memory, &mut page.0[part])?;
            }
            self.write_piece(piece, first, count)?;
        }
        Ok(())
    }

    /// Writes a piece from the buffer: all whole blocks together, then each partial block on its own.
    fn write_piece(&self, piece: Span, first: u64, count: usize) -> Result<(), Error> {
        let is_whole = |part: &std::ops::Range<usize>| part.len() == PAGE_BYTES;
        let (mut whole_start, mut whole_end) = (0, count);
        for (at, part) in piece.parts().enumerate().filter(|(_, part)| !is_whole(part)) {
            self.disk.write_part(first + at as u64, part.start, &self.pages[at].0[part.clone()])?;
            // Only the first and the last block can be partial.
            if at == 0 {
                whole_start = 1;
            } else {
                whole_end = at;
            }
        }
        if whole_start < whole_end {
            self.disk.write(first + whole_start as u64, &self.pages[whole_start..whole_end])?;
        }
        Ok(())
    }

    /// Frees the whole blocks of a range. With `parts`, also fills the partial blocks at its ends with zeros.
    fn zero(&self, span: Span, parts: bool) -> Result<(), Error> {
        const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        for piece in pieces(span) {
            let (first, count) = piece.blocks();
            let (mut whole_start, mut whole_end) = (0, count);
            for (at, part) in piece.parts().enumerate().filter(|(_, part)| part.len() != PAGE_BYTES)
            {
                if parts {
                    self.disk.write_part(first + at as u64, part.start, &ZEROS[part.clone()])?;
                }
                if at == 0 {
                    whole_start = 1;
                } else {
                    whole_end = at;
                }
            }
            if whole_start < whole_end {
                self.disk.zero(first + whole_start as u64, whole_end - whole_start)?;
            }
        }
        Ok(())
    }
}

/// Cuts a range at the ends of groups of blocks.
fn pieces(span: Span) -> impl Iterator<Item = Span> {
    let end = span.start + span.bytes;
    let mut start = span.start;
    std::iter::from_fn(move || {
        if start == end {
            return None;
        }
        let bytes = (GROUP_BYTES - start % GROUP_BYTES).min(end - start);
        let piece = Span { start, bytes };
        start += bytes;
        Some(piece)
    })
}

impl Span {
    /// The first block that it touches, and the number of blocks.
    const fn blocks(self) -> (u64, usize) {
        let page = PAGE_BYTES as u64;
        let (first, end) = (self.start / page, (self.start + self.bytes).div_ceil(page));
        (first, (end - first) as usize)
    }

    /// The part of each touched block.
    fn parts(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (first, count) = self.blocks();
        let end = self.start + self.bytes;
        (first..first + count as u64).map(move |block| {
            let at = block * PAGE_BYTES as u64;
            let part_end = (end - at).min(PAGE_BYTES as u64);
            self.start.saturating_sub(at) as usize..part_end as usize
        })
    }
}
