//! Values longer than a page in transit between a client and the store.
//!
//! A value that arrives in parts lies in frames from its first part on. So it takes the same capacity as
//! when it is stored, and is charged to its client from the start. A value that leaves in parts stays in
//! its frames. So values in transit take no memory beside the store.

use std::sync::Arc;

use spillway_tiers::sync::Ordering;
use spillway_tiers::{LargePin, PageBuf};
use spillway_types::{
    ClientId, Get, Key, PAGE_BYTES, PoolId, Put, Refusal, VALUE_BYTES_MAX, billed_pages,
};

use crate::client::ClientSlot;
use crate::error::Error;
use crate::get::PinnedValue;
use crate::pool::Access;
use crate::position::HandlePosition;
use crate::put::lane;
use crate::samplers::Use;
use crate::slot::{Slot, ValueLocation};
use crate::store::Store;

/// Pages that [`LongPut::room`] has room for.
const ROOM_PAGES: usize = 64;

/// The result of starting a put.
#[derive(Debug)]
#[must_use]
pub enum Begun {
    /// The value may come.
    Put(LongPut),
    /// Other values of the client are in transit and use up its target: try again when one of them is
    /// complete or cancelled.
    Later,
    /// It is answered already.
    Refused(Refusal),
}

/// A value that arrives in parts. Dropping it discards the value.
#[derive(Debug)]
pub struct LongPut {
    store: Arc<Store>,
    client: ClientId,
    pool: PoolId,
    access: Access,
    at: HandlePosition,
    length: usize,
    arrived: usize,
    kept: Kept,
    /// The bytes after the whole pages.
    rest: Box<PageBuf>,
    /// Pages charged to the client.
    paid: u64,
}

/// The memory of a value.
#[derive(Debug)]
struct Kept {
    /// The first cell of its map, allocated before its pages. None once memory was exhausted: then
    /// nothing is kept.
    map: Option<u32>,
    /// Frames of the pages that have arrived, and of some of the next ones.
    frames: Vec<u32>,
}

/// A value that leaves in parts, as it was when it was looked up, whatever happens to its key meanwhile.
#[derive(Debug)]
pub struct LongGet {
    store: Arc<Store>,
    client: ClientId,
    cell: u32,
    length: usize,
    /// Where what is given ends.
    end: usize,
    left: usize,
    frames: Vec<u32>,
}

/// What [`Store::get_long`] and [`Store::take_long`] found.
#[derive(Debug)]
pub enum Found {
    /// A long value. No part of it was read yet.
    Long(LongGet),
    /// Anything else.
    Other(Get),
}

impl LongPut {
    /// Appends the next part. Without memory for it, the value is refused at the end.
    ///
    /// # Panics
    /// If more arrives than was announced.
    pub fn push(&mut self, part: &[u8]) {
        assert!(part.len() <= self.missing(), "more than was announced");
        let mut part = part;
        while !part.is_empty() && self.kept.map.is_some() {
            let (page, at) = (self.arrived / PAGE_BYTES, self.arrived % PAGE_BYTES);
            let (now, rest) = part.split_at(part.len().min(PAGE_BYTES - at));
            if page == self.length / PAGE_BYTES {
                self.rest.0[at..at + now.len()].copy_from_slice(now);
            } else {
                self.kept.take_ahead(&self.store, self.access, page + 1);
                if let Some(bytes) = self.kept.coming(&self.store, page).next() {
                    bytes[at..at + now.len()].copy_from_slice(now);
                }
            }
            self.arrived += now.len();
            part = rest;
        }
        self.arrived += part.len();
    }

    /// The memory of the next bytes, part by part, for callers that can read into it and then call
    /// [`Self::filled`]. Empty if there is no memory for them: then push them.
    pub fn room(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (first, at) = (self.arrived / PAGE_BYTES, self.arrived % PAGE_BYTES);
        let (pages, rest_bytes) = (self.length / PAGE_BYTES, self.length % PAGE_BYTES);
        let end = pages.min(first + ROOM_PAGES);
        self.kept.take_ahead(&self.store, self.access, end);
        let is_kept = self.kept.map.is_some();
        let rest = (is_kept && end == pages).then_some(&mut self.rest.0[..rest_bytes]);
        let pages = self.kept.coming(&self.store, first).map(|page| &mut page[..]);
        // The first may have come in part.
        let parts = pages.chain(rest).enumerate();
        let parts = parts.map(move |(number, part)| &mut part[if number == 0 { at } else { 0 }..]);
        parts.filter(|part| !part.is_empty())
    }

    /// Reports how many bytes were written to [`Self::room`].
    ///
    /// # Panics
    /// If this is more than the room.
    pub fn filled(&mut self, bytes: usize) {
        let end = self.arrived + bytes;
        let pages = end.div_ceil(PAGE_BYTES).min(self.length / PAGE_BYTES);
        let has_room = end <= self.length && self.kept.frames.len() >= pages;
        assert!(has_room && self.kept.map.is_some(), "more than there was room for");
        self.arrived = end;
    }

    /// Bytes that have not arrived yet.
    pub const fn missing(&self) -> usize {
        self.length - self.arrived
    }

    /// Stores the complete value under its key.
    ///
    /// # Panics
    /// If the value is incomplete.
    pub fn publish(mut self) -> Put {
        assert_eq!(self.arrived, self.length, "a part is missing");
        let store = Arc::clone(&self.store);
        let Some(cell) = self.kept.map.take() else {
            return store.refuse(self.pool, self.access, &self.at, Refusal::NodeFull);
        };
        store.share_frames(self.access, &mut self.kept.frames);
        let rest = &self.rest.0[..self.length % PAGE_BYTES];
        // SAFETY: the map was this value's alone, and is published below.
        unsafe { store.large().complete(cell, &self.kept.frames, rest) };
        // They belong to the value now.
        self.kept.frames.clear();
        let slot = Slot::new(ValueLocation::Large { cell }, self.access.payer()).with_listed(true);
        let slot = (slot, self.paid);
        let put = store.publish_or_refuse(self.pool, self.access, &self.at, slot, lane(), None);
        if put == Put::Stored {
            self.paid = 0;
        }
        put
    }
}

impl Kept {
    /// Nothing, and a map for what comes if there is memory for it.
    fn begin(store: &Store, access: Access, length: usize) -> Self {
        let lane = lane();
        let begin = || store.large().begin(lane, length).map(|cell| ValueLocation::Large { cell });
        let map = match store.place_at(access, lane, begin) {
            Some(ValueLocation::Large { cell }) => Some(cell),
            _ => None,
        };
        Self { map, frames: Vec::with_capacity(length / PAGE_BYTES) }
    }

    /// Allocates frames until there are `count`, or frees all.
    fn take_ahead(&mut self, store: &Store, access: Access, count: usize) {
        let lane = lane();
        let raw =
            |frame| ValueLocation::Raw { frame, length: PAGE_BYTES as u16, incompressible: false };
        while self.frames.len() < count && self.map.is_some() {
            match store.place_at(access, lane, || store.arena.store_later(lane).map(raw)) {
                Some(ValueLocation::Raw { frame, .. }) => self.frames.push(frame),
                _ => self.free(store),
            }
        }
    }

    /// The bytes of the pages from `first` on, as far as frames were taken for them.
    fn coming<'a>(
        &'a mut self,
        store: &'a Store,
        first: usize,
    ) -> impl Iterator<Item = &'a mut [u8; PAGE_BYTES]> {
        let frames = self.frames.get(first..).unwrap_or_default().iter();
        // SAFETY: the frames were allocated for this value, which is not published yet, and each appears here
        // once.
        frames.map(|&frame| unsafe { store.arena.content_mut(frame) })
    }

    fn free(&mut self, store: &Store) {
        if let Some(map) = self.map.take() {
            store.large().cancel(map);
        }
        self.frames.drain(..).for_each(|frame| store.arena.release(frame));
    }
}

impl Drop for LongPut {
    fn drop(&mut self) {
        self.kept.free(&self.store);
        let pages = billed_pages(self.length);
        self.store.recount(self.client, |client| {
            client.refund(self.paid);
            client.arriving_pages.fetch_sub(pages, Ordering::Relaxed);
        });
    }
}

impl LongGet {
    /// Bytes of the value.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Bytes that were not given yet.
    pub const fn left(&self) -> usize {
        self.left
    }

    /// The bytes that were not given yet, in parts where they lie.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (from, end) = (self.end - self.left, self.end);
        let rest = self.store.large().rest(self.cell);
        let content = |page: usize| match self.frames.get(page) {
            Some(&frame) => &self.store.arena.content(frame)[..],
            None => rest,
        };
        let pages = from / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        pages.map(move |page| {
            let begin = page * PAGE_BYTES;
            let whole = content(page);
            &whole[from.saturating_sub(begin)..whole.len().min(end - begin)]
        })
    }

    /// Skips the next bytes, at most all that are left.
    pub fn advance(&mut self, bytes: usize) {
        self.left -= bytes.min(self.left);
    }

    /// Leaves out the last bytes.
    pub fn cut(&mut self, bytes: usize) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        self.end -= bytes;
    }

    /// Copies the next bytes, as many as fit. Returns their number.
    pub fn pull(&mut self, into: &mut [u8]) -> usize {
        let given = into.len().min(self.left);
        let mut room = &mut into[..given];
        while !room.is_empty() {
            let from = self.end - self.left;
            let (page, at) = (from / PAGE_BYTES, from % PAGE_BYTES);
            let source = match self.frames.get(page) {
                Some(&frame) => &self.store.arena.content(frame)[at..],
                None => &self.store.large().rest(self.cell)[at..],
            };
            let length = source.len().min(room.len());
            let (part, rest) = room.split_at_mut(length);
            part.copy_from_slice(&source[..length]);
            self.left -= length;
            room = rest;
        }
        given
    }
}

impl Drop for LongGet {
    fn drop(&mut self) {
        self.store.large().release(self.cell);
        let pages = billed_pages(self.length);
        self.store.recount(self.client, |client| {
            client.leaving_pages.fetch_sub(pages, Ordering::Relaxed);
        });
    }
}

impl Store {
    /// Starts putting a value of `length` bytes, more than a page, that arrives in parts. A refusal is a normal answer,
    /// as for [`Store::put`].
    ///
    /// The client is charged for the value from now on. Memory for its pages is allocated as they arrive; memory for
    /// their map, at once.
    pub fn begin_put(self: &Arc<Self>, pool: PoolId, key: Key, length: usize) -> Begun {
        let Some(access) = self.access(pool) else { return Begun::Refused(Refusal::NoPool) };
        let at = HandlePosition::new(access.pool, key, self.seed);
        let refused = |reason| {
            self.tell(access, &at, Use::Put);
            match self.refuse(pool, access, &at, reason) {
                Put::Refused(reason) => Begun::Refused(reason),
                Put::Stored => Begun::Later,
            }
        };
        if length <= PAGE_BYTES || length > VALUE_BYTES_MAX || access.is_reserved() {
            return refused(Refusal::Length);
        }
        let entry = &self.clients[usize::from(access.client)];
        if entry.frozen.load(Ordering::Acquire) != 0 {
            return refused(Refusal::Frozen);
        }
        let pages = billed_pages(length);
        let paid = pages - self.held_pages(pool, access, &at).min(pages);
        // While this is held, the client's number is not reused.
        let control = self.control.lock();
        if !self.pools.is_live(pool) {
            return Begun::Refused(Refusal::NoPool);
        }
        if paid != 0 && !entry.charge(paid) {
            let later = entry.arriving_pages.load(Ordering::Relaxed) != 0;
            drop(control);
            return if later { Begun::Later } else { refused(Refusal::AtTarget) };
        }
        entry.arriving_pages.fetch_add(pages, Ordering::Relaxed);
        let client = ClientId(entry.id.load(Ordering::Relaxed));
        drop(control);
        let put = LongPut {
            store: Arc::clone(self),
            client,
            pool,
            access,
            at,
            length,
            arrived: 0,
            kept: Kept::begin(self, access, length),
            rest: Box::new(PageBuf::ZERO),
            paid,
        };
        if put.kept.map.is_none() {
            drop(put);
            return refused(Refusal::NodeFull);
        }
        self.tell(access, &at, Use::Put);
        Begun::Put(put)
    }

    /// Like [`Store::get`], with the value shown to `take` in parts, as by [`Value::show`](crate::Value::show); but one of
    /// more than `short` bytes is not shown: it leaves in parts. `room` is the longest that is given.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn get_long(
        self: &Arc<Self>,
        pool: PoolId,
        key: Key,
        (room, short): (usize, usize),
        scratch: &mut PageBuf,
        take: impl FnMut(usize, &[u8]),
    ) -> Result<Found, Error> {
        match self.look_up(pool, key, room)?.into_large(short) {
            Ok(pin) => Ok(Found::Long(self.leaving(pool, pin))),
            Err(value) => value.show(scratch, take).map(|(got, _)| Found::Other(got)),
        }
    }

    /// Like [`Store::take`], but a value of more than `short` bytes leaves in parts.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn take_long(
        self: &Arc<Self>,
        pool: PoolId,
        key: Key,
        (room, short): (usize, usize),
        scratch: &mut PageBuf,
        take: impl FnMut(usize, &[u8]),
    ) -> Result<Found, Error> {
        match self.take_held(pool, key, (room, short), scratch, take)? {
            (Get::Hit(length), PinnedValue::Large(pin)) if length > short => {
                Ok(Found::Long(self.leaving(pool, pin)))
            }
            (got, _) => Ok(Found::Other(got)),
        }
    }

    /// A value that is about to leave, counted for the client whose pool it was asked of.
    pub(crate) fn leaving(self: &Arc<Self>, pool: PoolId, pin: LargePin<'_>) -> LongGet {
        let length = pin.length();
        let control = self.control.lock();
        let client = self.access(pool).map_or(ClientId(0), |access| {
            let entry = &self.clients[usize::from(access.client)];
            entry.leaving_pages.fetch_add(billed_pages(length), Ordering::Relaxed);
            ClientId(entry.id.load(Ordering::Relaxed))
        });
        drop(control);
        let cell = pin.into_cell();
        let frames = self.large().frames(cell);
        LongGet { store: Arc::clone(self), client, cell, length, end: length, left: length, frames }
    }

    /// Changes what is counted of a client, if it is still there.
    fn recount(&self, client: ClientId, change: impl FnOnce(&ClientSlot)) {
        // While this is held, its number is not reused.
        let _control = self.control.lock();
        if let Ok((_, client)) = self.client(client) {
            change(client);
        }
    }

    /// Bytes of a client's long values in transit, in whole pages. Arriving values count as used pages.
    ///
    /// # Errors
    /// [`Error::NoClient`].
    pub fn in_flight_bytes_of(&self, client: ClientId) -> Result<u64, Error> {
        Ok(self.client(client)?.1.in_flight_pages() * PAGE_BYTES as u64)
    }

    /// Bytes of all clients' long values in transit, in whole pages.
    pub fn in_flight_bytes(&self) -> u64 {
        let clients = self.client_numbers().map(|number| &self.clients[usize::from(number)]);
        let in_use = clients.filter(|client| client.id.load(Ordering::Relaxed) != 0);
        in_use.map(ClientSlot::in_flight_pages).sum::<u64>() * PAGE_BYTES as u64
    }
}
