//! Pages on a blade: memory of another process or host, behind a [`Carrier`].
//!
//! A page goes to the next index of an object of this process's own; no index is ever used twice.
//! After a fork neither side writes to the objects that both hold ([`Blade::share`]). Freed values
//! are marked, and removed from the blade later, outside the path of any page ([`Blade::tidy`]).

mod carrier;
mod counts;
mod ledger;
mod object;
mod read;
mod seal;
mod silence;
mod tidy;

pub use carrier::{Carried, Carrier, Parcel, Wanted};
pub use counts::BladeCounts;
use counts::Counters;
pub use ledger::{HOLDERS_MAX, Ledger, OBJECTS_MAX};
use object::Object;
pub use read::{Read, ReadError};
pub use seal::{KEY_BYTES, SEALED_BYTES_MAX, SEALED_PAGE_BYTES, Seal};
pub use silence::{Heard, Silence, Silent};

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::budget::{Budget, Use};
use crate::file::WRITE_PAGES_MAX;
use crate::region::GrowArray;
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering};
use spillway_types::Key;

/// Values of an object.
pub const INDEXES_MAX: u32 = 1 << 23;
/// Most values of one [`Blade::read`].
pub const READ_PAGES_MAX: usize = 16;

const WORD_BITS: u32 = u64::BITS;
/// Pause after the blade has refused, ns.
const REFUSED_PAUSE_NS: u64 = 200_000_000;
/// How long the blade counts as short of room after it has refused, ns: eight intervals of the
/// memory manager, as it is configured.
const SHORT_NS: u64 = 8_000_000_000;
/// Most rooms of pages that have left which are kept for pages from the disk: soon others take them.
const LEFT_ROOM_MAX: u64 = 1024;
/// A call that takes longer counts as a stall, ns.
const STALL_NS: u64 = 100_000_000;

/// Where a value lies on the blade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BladePlace {
    /// Place of the object in the ledger.
    pub object: u16,
    /// Index within the object.
    pub index: u32,
    /// Bytes of the value before it was sealed.
    pub length: u16,
}

type Buffers = Box<[[u8; SEALED_BYTES_MAX]]>;

/// The blade tier of one process.
#[derive(Debug)]
pub struct Blade {
    seal: Seal,
    first: &'static dyn Carrier,
    mirror: Option<&'static dyn Carrier>,
    silence: Silence,
    ledger: &'static Ledger,
    holder: AtomicU32,
    objects: Box<[Lock<Object>]>,
    /// Place of the object that grows. Its lock is taken before an object's.
    current: Lock<Option<u16>>,
    /// Values being sealed.
    send_buffers: Lock<Buffers>,
    /// Sealed bytes of live values.
    bytes: AtomicU64,
    /// Freed values and finished objects that [`Blade::tidy`] has to look at.
    untidy: AtomicU64,
    refused_until_ns: AtomicU64,
    /// When the blade has refused last, ns; 0 before it has.
    refused_at_ns: AtomicU64,
    /// Pages that were removed because the blade was short of room, and whose room was not given to
    /// a page from the disk since.
    left_room: AtomicU64,
    /// The longest stall that [`Blade::take_stall_ns`] has not told yet.
    new_stall_ns: AtomicU64,
    counters: Counters,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Blade {
    /// A tier for process `holder` of the ledger. Every value goes to `first`, and to the mirror if
    /// there is one.
    pub fn new(
        seal: Seal,
        first: &'static dyn Carrier,
        mirror: Option<&'static dyn Carrier>,
        ledger: &'static Ledger,
        holder: usize,
    ) -> Self {
        let buffers = vec![[0; SEALED_BYTES_MAX]; WRITE_PAGES_MAX];
        Self {
            seal,
            first,
            mirror,
            silence: Silence::new(Duration::ZERO),
            ledger,
            holder: AtomicU32::new(holder as u32),
            objects: (0..OBJECTS_MAX).map(|_| Lock::default()).collect(),
            current: Lock::new(None),
            send_buffers: Lock::new(buffers.into_boxed_slice()),
            bytes: AtomicU64::new(0),
            untidy: AtomicU64::new(0),
            refused_until_ns: AtomicU64::new(0),
            refused_at_ns: AtomicU64::new(0),
            left_room: AtomicU64::new(0),
            new_stall_ns: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Sets for how long a blade or mirror may be down before the values that only it may have count
    /// as gone. Without it they are gone at once.
    #[must_use]
    pub fn with_loss_timeout(mut self, timeout: Duration) -> Self {
        self.silence = Silence::new(timeout);
        self
    }

    /// Bytes that a value is longer on the blade.
    pub const fn added_bytes(&self) -> usize {
        self.seal.added_bytes()
    }

    fn holder(&self) -> usize {
        self.holder.load(Ordering::Relaxed) as usize
    }

    /// Blade and mirror.
    fn carriers(&self) -> impl Iterator<Item = &'static dyn Carrier> + use<> {
        [Some(self.first), self.mirror].into_iter().flatten()
    }

    /// Sealed bytes of the values that this process has on the blade.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The counters.
    pub fn counts(&self) -> BladeCounts {
        self.counters.counts()
    }

    /// Whether blade and mirror are down, in this order.
    pub fn down(&self) -> (bool, bool) {
        (self.first.is_down(), self.mirror.is_some_and(Carrier::is_down))
    }

    /// Whether blade and mirror have said that they have no pool of this run, in this order.
    pub fn gone(&self) -> (bool, bool) {
        (self.first.is_gone(), self.mirror.is_some_and(Carrier::is_gone))
    }

    /// Whether the blade or the mirror answers, as far as known.
    pub fn answers(&self) -> bool {
        self.carriers().any(|carrier| !carrier.is_down())
    }

    /// Whether sending is worth trying now.
    pub fn takes(&self) -> bool {
        self.answers() && now_ns() >= self.refused_until_ns.load(Ordering::Relaxed)
    }

    /// Whether the blade has refused a value in the last 8 s: a copy there that nobody needs takes
    /// room from a page that goes to the disk.
    pub fn is_short(&self) -> bool {
        let at_ns = self.refused_at_ns.load(Ordering::Relaxed);
        at_ns != 0 && now_ns() < at_ns + SHORT_NS
    }

    /// Records that the copy of a page that was read back is removed from the blade.
    pub fn leave_room(&self) {
        let more = |left: u64| (left < LEFT_ROOM_MAX).then_some(left + 1);
        // At the most it stays.
        let _ = self.left_room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Takes the room that a page has left for a page from the disk. Returns whether there is one.
    pub fn take_room(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.left_room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Sends up to [`WRITE_PAGES_MAX`] values of at most a page. A place for each that is safe: taken
    /// by the blade and the mirror, or by one of them while the other is down.
    pub fn write(&self, contents: &[&[u8]], places: &mut [Option<BladePlace>], budget: &Budget) {
        let count = contents.len().min(WRITE_PAGES_MAX);
        let mut buffers = self.send_buffers.lock();
        let mut parcels = [Parcel { key: Key::new(0, 0), value: &[] }; WRITE_PAGES_MAX];
        let mut taken = [None; WRITE_PAGES_MAX];
        let mut sent = 0;
        for (content, buffer) in contents[..count].iter().zip(buffers.iter_mut()) {
            let Some((place, key)) = self.take_index(content.len(), budget) else { break };
            buffer[..content.len()].copy_from_slice(content);
            let length = self.seal.seal(key, buffer, content.len());
            parcels[sent] = Parcel { key, value: &buffer[..length] };
            taken[sent] = Some(place);
            sent += 1;
        }
        let (parcels, taken) = (&parcels[..sent], &taken[..sent]);
        let mut safe = [true; WRITE_PAGES_MAX];
        let mut copies = [0; WRITE_PAGES_MAX];
        let (began_ns, down) = (now_ns(), self.down());
        for carrier in self.carriers().filter(|carrier| !carrier.is_down()) {
            self.send(carrier, parcels, &mut safe, &mut copies);
        }
        self.note_stall(now_ns() - began_ns, down);
        for (at, place) in taken.iter().enumerate() {
            let Some(place) = *place else { continue };
            if safe[at] && copies[at] > 0 {
                places[at] = Some(place);
            } else {
                // What one of the two has of it is removed later.
                self.free(place);
            }
        }
    }

    /// Sends values to one of the two. A value that it refuses is not safe; one that was lost on the
    /// way is, if the other has it, for then this one is down.
    fn send(
        &self,
        carrier: &dyn Carrier,
        parcels: &[Parcel<'_>],
        safe: &mut [bool],
        copies: &mut [u32],
    ) {
        let mut outcomes = [Carried::Lost; WRITE_PAGES_MAX];
        let outcomes = &mut outcomes[..parcels.len()];
        carrier.put(parcels, outcomes);
        let down = carrier.is_down();
        let mut refused = 0;
        for (at, outcome) in outcomes.iter().enumerate() {
            match outcome {
                Carried::Done => {
                    copies[at] += 1;
                    self.counters.writes.fetch_add(1, Ordering::Relaxed);
                    let bytes = parcels[at].value.len() as u64;
                    self.counters.written_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Carried::Lost if down => {}
                _ => {
                    safe[at] = false;
                    refused += 1;
                }
            }
        }
        if refused > 0 {
            self.counters.refusals.fetch_add(refused, Ordering::Relaxed);
            let now_ns = now_ns();
            self.refused_until_ns.store(now_ns + REFUSED_PAUSE_NS, Ordering::Relaxed);
            self.refused_at_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// The next index of the object that grows; a new object when there is none or it is full.
    fn take_index(&self, length: usize, budget: &Budget) -> Option<(BladePlace, Key)> {
        let mut current = self.current.lock();
        if let Some(place) = *current {
            let mut object = self.objects[usize::from(place)].lock();
            if object.next < INDEXES_MAX {
                return self.extend(place, &mut object, length, budget);
            }
            object.grows = false;
            self.untidy.fetch_add(1, Ordering::Relaxed);
            *current = None;
        }
        let (place, name) = self.ledger.make(self.holder())?;
        let mut object = self.objects[usize::from(place)].lock();
        let dead = match object.dead.take() {
            Some(dead) => dead,
            None => GrowArray::reserve((INDEXES_MAX / WORD_BITS) as usize).ok()?,
        };
        *object = Object { name, grows: true, dead: Some(dead), ..Object::default() };
        *current = Some(place);
        self.extend(place, &mut object, length, budget)
    }

    fn extend(
        &self,
        place: u16,
        object: &mut Object,
        length: usize,
        budget: &Budget,
    ) -> Option<(BladePlace, Key)> {
        let index = object.next;
        let words = (index / WORD_BITS) as usize + 1;
        if !object.dead.as_mut()?.grow(words, budget, Use::Files) {
            return None;
        }
        object.next += 1;
        object.live += 1;
        self.bytes.fetch_add(self.sealed_bytes(length), Ordering::Relaxed);
        let at = BladePlace { object: place, index, length: length as u16 };
        Some((at, Key::new(object.name, index)))
    }

    const fn sealed_bytes(&self, length: usize) -> u64 {
        (length + self.seal.added_bytes()) as u64
    }

    /// Frees a value. It stays on the blade until [`Blade::tidy`].
    pub fn free(&self, place: BladePlace) {
        let mut object = self.objects[usize::from(place.object)].lock();
        let (word, bit) = (place.index / WORD_BITS, place.index % WORD_BITS);
        if let Some(dead) = &mut object.dead {
            *dead.get_mut(word as usize) |= 1 << bit;
        }
        object.dead_count += 1;
        object.dead_from = object.dead_from.min(word);
        object.live -= 1;
        drop(object);
        let bytes = self.sealed_bytes(usize::from(place.length));
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.untidy.fetch_add(1, Ordering::Relaxed);
    }

    /// The key of a value in use.
    fn key(&self, place: BladePlace) -> Key {
        Key::new(self.objects[usize::from(place.object)].lock().name, place.index)
    }

    /// Counts a call that stalled: it took long, or what was up before it (`down` says) no longer is.
    fn note_stall(&self, took_ns: u64, down: (bool, bool)) {
        let now = self.down();
        let fell = now.0 && !down.0 || now.1 && !down.1;
        if took_ns <= STALL_NS && !fell {
            return;
        }
        self.counters.stalls.fetch_add(1, Ordering::Relaxed);
        let longer = |most: u64| (took_ns > most).then_some(took_ns);
        for most in [&self.counters.stall_max_ns, &self.new_stall_ns] {
            let _ = most.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
        }
    }

    /// The longest stall since the last call; 0 when there was none.
    pub fn take_stall_ns(&self) -> u64 {
        self.new_stall_ns.swap(0, Ordering::Relaxed)
    }

    /// Keeps connections alive, and tries to come back to a blade or mirror that is down.
    pub fn tend(&self) {
        self.carriers().for_each(Carrier::tend);
    }

    /// Before a fork: makes `successor` a holder of all that this process holds. Neither of them writes
    /// to these objects any more.
    pub fn share(&self, successor: usize) {
        let mut current = self.current.lock();
        *current = None;
        for object in &self.objects {
            let mut object = object.lock();
            if object.name != 0 {
                object.shared = true;
                self.untidy.fetch_add(u64::from(object.grows), Ordering::Relaxed);
                object.grows = false;
            }
        }
        self.ledger.share(self.holder(), successor);
    }

    /// In a forked child, which is holder `holder`.
    pub fn become_child(&self, holder: usize) {
        self.holder.store(holder as u32, Ordering::Relaxed);
        self.carriers().for_each(Carrier::forget_connections);
    }

    /// When the process has ended: releases everything.
    pub fn leave(&self) {
        self.ledger.release(self.holder(), |name| self.flush_object(name));
    }

    /// Removes an object that no process of the run holds any more.
    pub fn flush_object(&self, name: u64) {
        self.carriers().for_each(|carrier| _ = carrier.flush_object(name));
    }

    /// Removes all that any process of the run has on the blade.
    pub fn end_run(&self) {
        self.carriers().for_each(|carrier| _ = carrier.end_run());
    }

    /// Numbers of descriptors that a child opens anew.
    pub fn descriptors(&self) -> impl Iterator<Item = u64> + use<> {
        self.carriers().flat_map(Carrier::descriptors)
    }

    /// Opens them, in a child.
    ///
    /// # Errors
    /// What `open` says.
    pub fn reopen(&self, open: &mut dyn FnMut(u64) -> io::Result<OwnedFd>) -> io::Result<()> {
        self.carriers().try_for_each(|carrier| carrier.reopen(open))
    }
}
