//! The connections of a ring. Each call has one to itself.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex;

use super::RingOptions;
use super::connect::Peer;
use super::fork::Owner;
use super::lane::Lane;
use crate::Error;

/// Most connections of one ring.
const LANES_MAX: usize = 8;
/// The one whose data area holds values of any length.
const FIRST: u32 = 1;

/// Connections, opened as they are needed.
#[derive(Debug)]
pub struct Lanes {
    peer: Peer,
    options: RingOptions,
    owner: Owner,
    /// The daemon's number for this run of it.
    instance: u64,
    /// A bit for each lane in use.
    taken: AtomicU32,
    /// A bit for each usable lane; fewer if the daemon grants no more.
    usable: AtomicU32,
    /// Threads that wait for a lane.
    waiting: AtomicU32,
    lost: AtomicBool,
    lanes: [UnsafeCell<Option<Lane>>; LANES_MAX],
}

// SAFETY: only the thread that set a lane's bit in `taken` accesses the lane, one thread at a time.
unsafe impl Sync for Lanes {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Lanes {}

/// A lane in use; returned when dropped.
struct Taken<'a> {
    lanes: &'a Lanes,
    number: u32,
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lanes.taken.fetch_and(!(1 << self.number), Ordering::SeqCst);
        if self.lanes.waiting.load(Ordering::SeqCst) != 0 {
            // All of them: they may want different lanes, and one that finds the connection lost wakes no other. The
            // kernel takes the number as signed. Waking can't fail for a valid address.
            let _ = futex::wake(&self.lanes.taken, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

impl Lanes {
    /// Opens the first one.
    pub fn open(peer: Peer, options: RingOptions) -> Result<Self, Error> {
        let first = Lane::open(&peer, &options, true)?;
        let count = options.connections_max.clamp(1, LANES_MAX as u32);
        let lanes = [const { UnsafeCell::new(None) }; LANES_MAX];
        let this = Self {
            peer,
            options,
            owner: Owner::new()?,
            instance: first.instance(),
            taken: AtomicU32::new(0),
            usable: AtomicU32::new((1 << count) - 1),
            waiting: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            lanes,
        };
        // SAFETY: no other thread has this yet.
        unsafe { *this.lanes[0].get() = Some(first) };
        Ok(this)
    }

    /// Calls `work` with any lane.
    #[inline]
    pub fn any<T>(&self, mut work: impl FnMut(&mut Lane) -> Result<T, Error>) -> Result<T, Error> {
        self.with(u32::MAX, &mut work)
    }

    /// Calls `work` with the lane whose data area holds values of any length.
    pub fn first<T>(
        &self,
        mut work: impl FnMut(&mut Lane) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.with(FIRST, &mut work)
    }

    /// Calls `work` with one of `wanted` lanes.
    #[inline]
    fn with<T>(
        &self,
        wanted: u32,
        work: &mut impl FnMut(&mut Lane) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            if !self.owner.is_here() {
                return Err(Error::Forked);
            }
            if self.lost.load(Ordering::Relaxed) {
                return Err(Error::Lost);
            }
            let Some(taken) = self.take(wanted) else { continue };
            // SAFETY: the bit is this thread's.
            let place = unsafe { &mut *self.lanes[taken.number as usize].get() };
            let lane = match place {
                Some(lane) => lane,
                None => match self.open_another(taken.number) {
                    Some(opened) => place.insert(opened),
                    None => continue,
                },
            };
            let done = work(lane);
            if lane.is_lost() {
                self.lost.store(true, Ordering::Relaxed);
                *place = None;
            }
            return done;
        }
    }

    /// Takes the lowest free lane, so that the same ones stay in the caches. `None` after a wait.
    #[inline]
    fn take(&self, wanted: u32) -> Option<Taken<'_>> {
        let taken = self.taken.load(Ordering::Relaxed);
        let free = wanted & self.usable.load(Ordering::Relaxed) & !taken;
        if free == 0 {
            self.wait(wanted);
            return None;
        }
        let number = free.trailing_zeros();
        let with = taken | 1 << number;
        let order = (Ordering::Acquire, Ordering::Relaxed);
        self.taken.compare_exchange_weak(taken, with, order.0, order.1).ok()?;
        Some(Taken { lanes: self, number })
    }

    /// Sleeps until a lane is returned.
    #[cold]
    fn wait(&self, wanted: u32) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = self.taken.load(Ordering::SeqCst);
        if wanted & self.usable.load(Ordering::SeqCst) & !taken == 0 {
            // After an interrupted or outdated wait, the lanes are only checked again.
            let _ = futex::wait(&self.taken, futex::Flags::PRIVATE, taken, None);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Opens lane `number`. If that fails, the open ones have to suffice.
    #[cold]
    fn open_another(&self, number: u32) -> Option<Lane> {
        let opened = Lane::open(&self.peer, &self.options, false);
        match opened {
            Ok(lane) if lane.instance() == self.instance => Some(lane),
            // Another daemon listens there now: the one to which this is connected has ended.
            Ok(_) => {
                self.lost.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => {
                self.usable.fetch_and((1 << number) - 1, Ordering::SeqCst);
                None
            }
        }
    }
}
