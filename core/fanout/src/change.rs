//! Requests for ranges of bytes, as batches of pages.

use core::cell::Cell;
use std::time::Instant;

use spillway_block::{Data, Error, Request, parts, whole_pages};
use spillway_types::PAGE_BYTES;

use crate::batch::{Batch, Want};
use crate::counters::add;
use crate::device::Core;
use crate::scratch::Scratch;

impl Core {
    /// Executes reads and writes, in any order.
    pub fn batch(&self, requests: &mut [Request<'_>]) {
        let mut scratch = self.scratches.take();
        let mut batch = Batch::new();
        for Request { offset, data, failed } in requests {
            failed.set(false);
            let (offset, failed) = (*offset, &*failed);
            match data {
                Data::Read(room) => self.read(&mut batch, &mut scratch, offset, room, failed),
                Data::Write(data) => self.write(&mut batch, &mut scratch, offset, data, failed),
            }
        }
        self.run(&mut batch, &mut scratch);
    }

    fn read<'x>(
        &self,
        batch: &mut Batch<'x>,
        scratch: &mut Scratch,
        offset: u64,
        mut room: &'x mut [u8],
        failed: &'x Cell<bool>,
    ) {
        if self.geometry.check(offset, room.len() as u64).is_err() {
            return failed.set(true);
        }
        add(&self.counters.read_bytes, room.len() as u64);
        for part in parts(offset, room.len() as u64) {
            let (piece, rest) = room.split_at_mut(part.end - part.start);
            room = rest;
            add(&self.counters.reads, 1);
            if !batch.takes(part.page) {
                self.run(batch, scratch);
            }
            batch.push(part.page, Want::Read { room: piece, start: part.start }, failed);
        }
    }

    fn write<'x>(
        &self,
        batch: &mut Batch<'x>,
        scratch: &mut Scratch,
        offset: u64,
        mut data: &'x [u8],
        failed: &'x Cell<bool>,
    ) {
        if self.geometry.check(offset, data.len() as u64).is_err() {
            return failed.set(true);
        }
        add(&self.counters.written_bytes, data.len() as u64);
        for part in parts(offset, data.len() as u64) {
            let (piece, rest) = data.split_at(part.end - part.start);
            data = rest;
            add(&self.counters.writes, 1);
            if part.is_whole() {
                if !batch.takes(part.page) {
                    self.run(batch, scratch);
                }
                batch.push(part.page, Want::Write(piece), failed);
                continue;
            }
            self.run(batch, scratch);
            let change = |page: &mut [u8]| page[part.start..part.end].copy_from_slice(piece);
            if !self.change(part.page, scratch, change) {
                failed.set(true);
            }
        }
    }

    /// Reads a page, changes it and writes it back, as one step. Returns whether that worked.
    fn change(&self, page: u64, scratch: &mut Scratch, change: impl FnOnce(&mut [u8])) -> bool {
        let began = Instant::now();
        let guards = self.locks.take(core::iter::once((page, true)));
        let mut bytes = [0; PAGE_BYTES];
        let failed = Cell::new(false);
        let mut batch = Batch::new();
        batch.push(page, Want::Read { room: &mut bytes, start: 0 }, &failed);
        self.run_locked(&mut batch, scratch);
        if !failed.get() {
            change(&mut bytes);
            let mut batch = Batch::new();
            batch.push(page, Want::Write(&bytes), &failed);
            self.run_locked(&mut batch, scratch);
        }
        drop(guards);
        self.counters.note_stall(began.elapsed());
        !failed.get()
    }

    /// Makes a range zeros, and frees the memory of its whole pages.
    pub fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.geometry.check(offset, bytes)?;
        let end = offset + bytes;
        let whole = whole_pages(offset, end);
        let inner_start = (whole.start * PAGE_BYTES as u64).min(end);
        let inner_end = (whole.end * PAGE_BYTES as u64).min(end).max(inner_start);
        let mut scratch = self.scratches.take();
        for part in parts(offset, inner_start - offset).chain(parts(inner_end, end - inner_end)) {
            let zero = |page: &mut [u8]| page[part.start..part.end].fill(0);
            // A page that is not stored is zeros already.
            if self.table.is_stored(part.page) && !self.change(part.page, &mut scratch, zero) {
                return Err(Error::NoCopy(part.page));
            }
        }
        self.discard(whole, &mut scratch);
        Ok(())
    }

    /// Makes the whole pages of a range zeros, and frees their memory.
    pub fn deallocate(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        self.geometry.check(offset, bytes)?;
        self.discard(whole_pages(offset, offset + bytes), &mut self.scratches.take());
        Ok(())
    }

    fn discard(&self, pages: core::ops::Range<u64>, scratch: &mut Scratch) {
        // A discard never fails: the page is zeros here, even if a holder still has its bytes.
        let failed = Cell::new(false);
        let mut batch = Batch::new();
        for page in pages.filter(|page| self.table.is_stored(*page)) {
            if !batch.takes(page) {
                self.run(&mut batch, scratch);
            }
            batch.push(page, Want::Discard, &failed);
        }
        self.run(&mut batch, scratch);
    }
}
