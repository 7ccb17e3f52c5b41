//! Decides which handlers wait for faults: those on whose cores threads fault.
//!
//! The kernel wakes every handler that waits on the userfaultfd, for each fault. The one on the core of the
//! faulting thread takes over from it by a switch. One on another core has to be woken from idleness, its
//! answer has to wake the thread from there, and while it is awake each flush of an eviction interrupts its
//! core. So handlers on whose cores no thread faults are *parked*: they sleep until they are unparked.
//!
//! Messages name the faulting thread. From time to time a handler checks on which core that thread
//! runs.

use rustix::thread::futex;
use spillway_platform::lock::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::places::HANDLERS_MAX;

/// How often a handler checks where a thread runs, ns: a check takes some 10 µs.
const LOOK_NS: u64 = 2_000_000;
/// How long a checked thread counts as one that faults, ns.
const FRESH_NS: u64 = 4 * LOOK_NS;
/// Most recorded threads.
const THREADS: usize = HANDLERS_MAX;

/// The waiting and the parked handlers.
pub(crate) struct Parking {
    handlers: AtomicU32,
    /// Handlers that are not parked; never 0.
    awake: AtomicU32,
    places: [HandlerSlot; HANDLERS_MAX],
    seen: Lock<[Seen; THREADS]>,
}

/// The place of one handler.
struct HandlerSlot {
    core: AtomicU32,
    /// Whether a thread faults on its core.
    is_needed: AtomicBool,
    /// 1 while the handler is parked; it sleeps on this.
    parked: AtomicU32,
}

/// A thread that faulted, where it was, and when; its number is 0 in an entry that is not in use.
#[derive(Clone, Copy)]
struct Seen {
    thread: u32,
    core: u32,
    at_ns: u64,
}

impl HandlerSlot {
    const fn new() -> Self {
        Self {
            core: AtomicU32::new(0),
            is_needed: AtomicBool::new(true),
            parked: AtomicU32::new(0),
        }
    }
}

impl Parking {
    pub(crate) const fn new() -> Self {
        Self {
            handlers: AtomicU32::new(0),
            awake: AtomicU32::new(0),
            places: [const { HandlerSlot::new() }; HANDLERS_MAX],
            seen: Lock::new([Seen { thread: 0, core: 0, at_ns: 0 }; THREADS]),
        }
    }

    /// There are going to be handlers on these cores, all of them awake.
    pub(crate) fn open(&self, cores: &[usize]) {
        for (place, &core) in self.places.iter().zip(cores) {
            place.core.store(core as u32, Ordering::Relaxed);
            place.is_needed.store(true, Ordering::Relaxed);
            place.parked.store(0, Ordering::Relaxed);
        }
        self.handlers.store(cores.len() as u32, Ordering::Relaxed);
        self.awake.store(cores.len() as u32, Ordering::Release);
    }

    /// The seat of a handler.
    pub(crate) fn seat(&self, number: usize) -> Seat<'_> {
        Seat { parking: self, place: &self.places[number], next_look_ns: 0 }
    }

    /// Whether a handler is parked.
    pub(crate) fn has_parked(&self) -> bool {
        self.awake.load(Ordering::Relaxed) < self.handlers.load(Ordering::Relaxed)
    }

    /// Handlers that wait for faults or answer one.
    pub(crate) fn awake(&self) -> u32 {
        self.awake.load(Ordering::Relaxed)
    }

    /// Calls back every handler that is parked.
    pub(crate) fn call_all(&self) {
        self.all().iter().for_each(|place| self.call(place));
    }

    fn all(&self) -> &[HandlerSlot] {
        &self.places[..self.handlers.load(Ordering::Relaxed) as usize]
    }

    fn call(&self, place: &HandlerSlot) {
        place.is_needed.store(true, Ordering::SeqCst);
        if place.parked.swap(0, Ordering::SeqCst) == 1 {
            self.awake.fetch_add(1, Ordering::AcqRel);
            let _ = futex::wake(&place.parked, futex::Flags::PRIVATE, 1);
        }
    }

    /// Records a fault on this core, and computes which handlers are needed.
    fn note(&self, thread: u32, core: u32, now_ns: u64) {
        let mut seen = self.seen.lock();
        // The thread's own entry, else the oldest.
        let place = seen.iter_mut().min_by_key(|seen| (seen.thread != thread, seen.at_ns));
        if let Some(place) = place {
            *place = Seen { thread, core, at_ns: now_ns };
        }
        let fresh = |seen: &&Seen| seen.thread != 0 && now_ns.saturating_sub(seen.at_ns) < FRESH_NS;
        let is_at =
            |place: &HandlerSlot, seen: &Seen| place.core.load(Ordering::Relaxed) == seen.core;
        // There are more cores than handlers, or the program may use other cores now: each handler is as good.
        let is_elsewhere = |seen: &Seen| !self.all().iter().any(|place| is_at(place, seen));
        if seen.iter().filter(fresh).any(is_elsewhere) {
            return self.call_all();
        }
        for place in self.all() {
            if seen.iter().filter(fresh).any(|seen| is_at(place, seen)) {
                self.call(place);
            } else {
                place.is_needed.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// A handler's own view of the parking.
pub(crate) struct Seat<'a> {
    parking: &'a Parking,
    place: &'a HandlerSlot,
    next_look_ns: u64,
}

impl Seat<'_> {
    /// Records that the handler has answered a fault of this thread. `core_of` returns the core on
    /// which it ran last.
    pub(crate) fn answered(
        &mut self,
        thread: u32,
        now_ns: u64,
        core_of: impl FnOnce() -> Option<usize>,
    ) {
        // A single handler has nobody to park.
        let handlers = self.parking.handlers.load(Ordering::Relaxed);
        if handlers < 2 || now_ns < self.next_look_ns {
            return;
        }
        self.next_look_ns = now_ns + LOOK_NS;
        match core_of() {
            Some(core) => self.parking.note(thread, core as u32, now_ns),
            None => self.parking.call_all(),
        }
    }

    /// Parks the handler until it is called back, if it is not needed and not the last that is awake.
    pub(crate) fn park_if_useless(&self) {
        let less = |awake: u32| (awake > 1).then(|| awake - 1);
        let awake = &self.parking.awake;
        if self.place.is_needed.load(Ordering::Relaxed)
            || awake.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_err()
        {
            return;
        }
        let parked = &self.place.parked;
        parked.store(1, Ordering::SeqCst);
        // A task that unparked handlers a moment ago found none parked.
        if self.place.is_needed.load(Ordering::SeqCst) {
            self.parking.call(self.place);
        }
        while parked.load(Ordering::Acquire) == 1 {
            let _ = futex::wait(parked, futex::Flags::PRIVATE, 1, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(30);

    fn of_two() -> &'static Parking {
        let parking = Box::leak(Box::new(Parking::new()));
        parking.open(&[0, 1]);
        parking
    }

    /// A handler that comes by. What it gives is sent when the handler goes on.
    fn come_by(parking: &'static Parking, number: usize) -> Receiver<()> {
        let (went_on, goes_on) = channel();
        std::thread::spawn(move || {
            parking.seat(number).park_if_useless();
            let _ = went_on.send(());
        });
        goes_on
    }

    fn wait_until_parked(parking: &Parking, number: usize) {
        let began = std::time::Instant::now();
        while parking.places[number].parked.load(Ordering::Acquire) == 0 {
            assert!(began.elapsed() < DEADLINE, "it does not park");
            std::thread::yield_now();
        }
    }

    fn needed(parking: &Parking) -> [bool; 2] {
        [0, 1].map(|number: usize| parking.places[number].is_needed.load(Ordering::Relaxed))
    }

    #[test]
    fn at_first_all_are_awake() {
        let parking = of_two();
        assert!(!parking.has_parked());
        for number in [0, 1] {
            come_by(parking, number).recv_timeout(DEADLINE).unwrap();
        }
    }

    #[test]
    fn who_is_on_no_faulting_threads_core_parks_until_one_comes_there() {
        let parking = of_two();
        let mut seat = parking.seat(0);
        seat.answered(7, LOOK_NS, || Some(0));
        come_by(parking, 0).recv_timeout(DEADLINE).unwrap();
        let goes_on = come_by(parking, 1);
        wait_until_parked(parking, 1);
        assert!(parking.has_parked());
        seat.answered(7, 2 * LOOK_NS, || Some(1));
        goes_on.recv_timeout(DEADLINE).unwrap();
        assert!(!parking.has_parked());
        assert_eq!(needed(parking), [false, true], "a thread is where it was last");
    }

    #[test]
    fn the_last_one_stays_awake() {
        let parking = of_two();
        for place in parking.all() {
            place.is_needed.store(false, Ordering::Relaxed);
        }
        let goes_on = come_by(parking, 1);
        wait_until_parked(parking, 1);
        come_by(parking, 0).recv_timeout(DEADLINE).unwrap();
        parking.call_all();
        goes_on.recv_timeout(DEADLINE).unwrap();
        assert_eq!(parking.awake.load(Ordering::Relaxed), 2);
        parking.call_all();
        assert_eq!(parking.awake.load(Ordering::Relaxed), 2, "none is called twice");
    }

    #[test]
    fn as_many_are_needed_as_there_are_cores_with_threads_that_fault_now() {
        let parking = of_two();
        let mut seat = parking.seat(0);
        seat.answered(7, 10 * LOOK_NS, || Some(0));
        seat.answered(8, 11 * LOOK_NS, || Some(1));
        assert_eq!(needed(parking), [true, true]);
        seat.answered(8, 12 * LOOK_NS - 1, || panic!("it looked a moment ago"));
        seat.answered(8, 10 * LOOK_NS + FRESH_NS, || Some(1));
        assert_eq!(needed(parking), [false, true], "thread 7 has not faulted for long");
    }

    #[test]
    fn more_threads_than_are_remembered_take_the_oldest_ones_place() {
        let parking = of_two();
        for thread in 0..THREADS as u32 {
            parking.note(thread + 1, 0, 100 + u64::from(thread));
        }
        parking.note(1000, 1, 200);
        assert_eq!(needed(parking), [true, true]);
        for thread in 0..THREADS as u32 - 1 {
            parking.note(2000 + thread, 1, 300);
        }
        assert_eq!(needed(parking), [false, true]);
    }

    #[test]
    fn where_nobody_knows_where_threads_run_all_are_called_back() {
        let parking = of_two();
        let mut seat = parking.seat(0);
        seat.answered(7, LOOK_NS, || Some(0));
        let goes_on = come_by(parking, 1);
        wait_until_parked(parking, 1);
        seat.answered(7, 2 * LOOK_NS, || None);
        goes_on.recv_timeout(DEADLINE).unwrap();
        assert_eq!(needed(parking), [true, true]);
    }

    #[test]
    fn a_thread_on_a_core_without_a_handler_needs_all_of_them() {
        let parking = of_two();
        let mut seat = parking.seat(0);
        seat.answered(7, LOOK_NS, || Some(0));
        let goes_on = come_by(parking, 1);
        wait_until_parked(parking, 1);
        seat.answered(8, 2 * LOOK_NS, || Some(5));
        goes_on.recv_timeout(DEADLINE).unwrap();
        assert_eq!(needed(parking), [true, true]);
    }

    #[test]
    fn who_is_called_while_it_parks_goes_on() {
        let parking = of_two();
        let (left, deadline) = (std::time::Instant::now(), Duration::from_secs(2));
        let calls = std::thread::spawn(move || {
            while left.elapsed() < deadline {
                parking.call_all();
            }
        });
        for number in 0..2 {
            std::thread::spawn(move || {
                loop {
                    parking.places[number].is_needed.store(false, Ordering::SeqCst);
                    parking.seat(number).park_if_useless();
                }
            });
        }
        calls.join().unwrap();
        assert!((1..=2).contains(&parking.awake.load(Ordering::SeqCst)));
    }

    #[test]
    fn a_fork_wakes_all_of_the_childs() {
        let parking = of_two();
        parking.seat(0).answered(7, LOOK_NS, || Some(0));
        let _ = come_by(parking, 1);
        wait_until_parked(parking, 1);
        parking.open(&[0, 1]);
        assert!(!parking.has_parked());
        assert_eq!(needed(parking), [true, true]);
    }
}
