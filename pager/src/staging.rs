//! The staging area between the program and the store.
//!
//! Pages leave the program by UFFDIO_MOVE, a window at a time, and land at the same places of a
//! staging window: from then on the program can't change them, so copies from there are final. With
//! a victim pool, windows wait here in order until the pool is full, and a touched page moves back.

use crate::table::WINDOW_PAGES;
use rustix::io::Errno;
use spillway_platform::PAGE_SIZE;
use spillway_platform::lock::Lock;
use spillway_platform::memory::map_native;
use std::sync::atomic::{AtomicU64, Ordering};

/// Staging windows. They are address space; a window takes memory only while pages lie in it.
pub const WINDOWS: usize = 4096;
/// A window that is never handed out; its first slot is for trying whether a page is there.
pub const SPARE_WINDOW: u16 = 0;
/// Bytes of a window.
pub const WINDOW_BYTES: usize = WINDOW_PAGES * PAGE_SIZE;
/// How often the kernel may request another attempt of a move.
pub const AGAIN_MAX: usize = 16;

/// A page's note while it lies in staging.
#[derive(Default)]
pub struct Note {
    /// Where the page belongs in the program; 0 when none lies here.
    pub address: AtomicU64,
    /// Its store handle if it is clean, else 0.
    pub handle: AtomicU64,
}

struct Order {
    free: Vec<u16>,
    /// Windows of the victim pool, oldest first, with the pages that each began with.
    pooled: std::collections::VecDeque<(u16, i64)>,
    pooled_pages: i64,
    /// The clock hand: the next address to check for victims.
    hand: usize,
}

/// The staging area and the order in which its windows are used.
pub struct Staging {
    base: usize,
    notes: &'static [Note],
    order: Lock<Order>,
}

/// The turn: the exclusive right to choose victims and take staging windows.
pub struct Turn<'a>(spillway_platform::lock::Guard<'a, Order>);

impl Staging {
    /// An empty staging area.
    ///
    /// # Errors
    /// When the kernel gives no address space.
    pub fn new() -> Result<Self, Errno> {
        let notes = map_native(WINDOWS * WINDOW_PAGES * size_of::<Note>())?;
        // SAFETY: a fresh zeroed mapping of that many notes, for which zeros do; it is never
        // unmapped.
        let notes =
            unsafe { std::slice::from_raw_parts(notes as *const Note, WINDOWS * WINDOW_PAGES) };
        let order = Order {
            free: (SPARE_WINDOW + 1..WINDOWS as u16).rev().collect(),
            pooled: std::collections::VecDeque::with_capacity(WINDOWS),
            pooled_pages: 0,
            hand: 0,
        };
        Ok(Self { base: map_native(WINDOWS * WINDOW_BYTES)?, notes, order: Lock::new(order) })
    }

    /// First address and length of the area.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        (self.base, WINDOWS * WINDOW_BYTES)
    }

    /// Address of a window.
    #[must_use]
    pub fn window_address(&self, window: u16) -> usize {
        self.base + usize::from(window) * WINDOW_BYTES
    }

    /// Address of a slot.
    #[must_use]
    pub fn slot_address(&self, slot: usize) -> usize {
        self.base + slot * PAGE_SIZE
    }

    /// Note of a slot.
    #[must_use]
    pub fn note(&self, slot: usize) -> &Note {
        &self.notes[slot]
    }

    /// Records where a slot's page belongs and under which handle the store holds it.
    pub fn write_note(&self, slot: usize, address: usize, handle: u64) {
        self.notes[slot].address.store(address as u64, Ordering::Relaxed);
        self.notes[slot].handle.store(handle, Ordering::Release);
    }

    /// Waits for the turn to choose victims.
    pub fn turn(&self) -> Turn<'_> {
        Turn(self.order.lock())
    }
}

impl Turn<'_> {
    /// Takes an empty window; if there is none, a pooled one must be written back first.
    pub fn take_free(&mut self) -> Option<u16> {
        self.0.free.pop()
    }

    /// Returns a window whose pages are gone.
    pub fn give_back(&mut self, window: u16) {
        self.0.free.push(window);
    }

    /// Puts a window with this many pages at the end of the victim pool.
    pub fn pool(&mut self, window: u16, pages: usize) {
        self.0.pooled.push_back((window, pages as i64));
        self.0.pooled_pages += pages as i64;
    }

    /// The pool's oldest window, when the pool holds more than `most_pages`. It leaves the pool.
    pub fn oldest(&mut self, most_pages: i64) -> Option<u16> {
        if self.0.pooled_pages <= most_pages {
            return None;
        }
        let (window, pages) = self.0.pooled.pop_front()?;
        self.0.pooled_pages -= pages;
        Some(window)
    }

    /// Where the hand stands.
    pub fn hand(&mut self) -> &mut usize {
        &mut self.0.hand
    }
}
