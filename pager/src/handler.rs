//! The tasks that answer faults, and process the other messages of the kernel.
//!
//! Each core has a handler. It waits until the userfaultfd is readable and reads one message. If
//! that is a fault, the handler answers it. Any other message is an event: a thread has just
//! changed a mapping, and that thread continues as soon as the message is *read*. If it then
//! touches the range or changes it again, another handler could read that message before this one
//! has processed the first change. So a handler reads messages under the event lock, and holds it
//! until it has processed an event.

use crate::buffers::Buffers;
use crate::fault::Fault;
use crate::pager::Pager;
use crate::table::{Entry, PageState, place};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::is_mapped;
use spillway_platform::process::core_of_thread;
use spillway_platform::uffd::Message;
use std::sync::atomic::Ordering;

impl Pager {
    /// Runs a handler.
    pub(crate) fn run_handler(&'static self, number: usize) -> ! {
        let starting = self.rest.work(number);
        let mut buffers = Buffers::new(&self.task_counters[number]);
        drop(starting);
        let uffd = self.main();
        let mut seat = self.parking.seat(number);
        loop {
            let descriptor = uffd.as_fd();
            let mut readable = [PollFd::new(&descriptor, PollFlags::IN)];
            if poll(&mut readable, None).is_err() {
                continue;
            }
            let work = self.rest.work(number);
            let taken = self.take_message(&mut buffers);
            if let Some((thread, now_ns)) = taken {
                seat.answered(thread, now_ns, || self.core_of(thread));
                self.choose_eviction(now_ns);
            }
            drop(work);
            seat.park_if_useless();
        }
    }

    /// The core on which a thread of the program ran last.
    fn core_of(&self, thread: u32) -> Option<usize> {
        core_of_thread(self.processes.program.load(Ordering::Relaxed), thread)
    }

    /// Reads the next message, unless another handler did. Returns the thread whose fault it
    /// answered, and when.
    fn take_message(&self, buffers: &mut Buffers) -> Option<(u32, u64)> {
        let began_ns = crate::link::now_ns();
        let event_lock = self.event_lock.lock.lock();
        self.event_lock.reading.fetch_add(1, Ordering::SeqCst);
        let message = self.main().read();
        if let Ok(event) = message {
            self.follow(event);
        }
        self.event_lock.reading.fetch_add(1, Ordering::SeqCst);
        drop(event_lock);
        let Ok(Message::Fault { address, write, protected, thread }) = message else {
            return None;
        };
        self.quiesce.sleep();
        self.answer(Fault { address, write, protected }, buffers);
        let now_ns = crate::link::now_ns();
        buffers.counters.count_fault(now_ns - began_ns);
        Some((thread, now_ns))
    }

    /// For threads that answer their own faults: waits until an event that was read before now is
    /// processed.
    pub(crate) fn wait_for_events(&self) {
        let seen = self.event_lock.reading.load(Ordering::SeqCst);
        while seen % 2 == 1 && self.event_lock.reading.load(Ordering::SeqCst) == seen {
            sched_yield();
        }
    }

    /// Processes an event: the change of a mapping.
    fn follow(&self, message: Message) {
        match message {
            Message::Remap { from, to, bytes } => self.moved(from, to, bytes),
            Message::Remove { start, end } => self.dropped(start, end),
            Message::Unmap { start, end } => self.unmapped_by_others(start, end),
            Message::Fault { .. } | Message::Other => {}
        }
    }

    /// A range was remapped: its entries go with it.
    fn moved(&self, from: usize, to: usize, bytes: usize) {
        let keeps_source = self.clear_target(to, bytes);
        self.table.for_each(from, from + bytes, |address, leaf, at| {
            let target = to + (address - from);
            let Some(new_leaf) = self.table.leaf(target) else { self.broken() };
            // Marked while it is in both places: who finds the mark waits.
            let seen = loop {
                let seen = leaf.load(at);
                match seen.state() {
                    PageState::Untouched => return,
                    PageState::Filling | PageState::Leaving => sched_yield(),
                    _ if leaf.exchange(at, seen, seen.to(PageState::Filling)) => break seen,
                    _ => {}
                }
            };
            new_leaf.entry(place(target)).store(seen.0, Ordering::SeqCst);
            if seen.state() == PageState::Pooled {
                let note = self.staging.note(seen.handle() as usize);
                note.address.store(target as u64, Ordering::SeqCst);
            }
            if seen.state() == PageState::Resident {
                leaf.resident.fetch_sub(1, Ordering::Relaxed);
                new_leaf.resident.fetch_add(1, Ordering::Relaxed);
            }
            leaf.settle(at, Entry::NONE);
        });
        self.regions.lock().move_range(from, to, bytes, keeps_source);
    }

    /// The contents of a range are about to be dropped. Pages that are resident may stay (advice
    /// FREE) or go: their entries say resident until [`Self::dropped_now`], a fault or the evictor finds out.
    fn dropped(&self, start: usize, end: usize) {
        self.table.for_each(start, end, |_, leaf, at| {
            loop {
                let seen = leaf.load(at);
                let new = match seen.state() {
                    PageState::Filling | PageState::Leaving => {
                        sched_yield();
                        continue;
                    }
                    PageState::Untouched => return,
                    PageState::Resident => Entry::new(PageState::Resident, 0),
                    _ => Entry::NONE,
                };
                if leaf.exchange(at, seen, new) {
                    if seen.state() == PageState::Resident && seen.has(Entry::INHERITED) {
                        self.charge(1);
                    }
                    self.free_copies(seen);
                    return;
                }
            }
        });
    }

    /// A range was unmapped, or the kernel refused that. The range may be in use again, then whoever
    /// mapped it has already forgotten what was known of it.
    pub(crate) fn forget_unmapped(&self, start: usize, end: usize) {
        let parts: Vec<_> = self.regions.lock().overlaps(start, end).collect();
        // Protecting a page does no harm, and fails where nothing is registered.
        let registered = |page| self.main().protect(page, PAGE_SIZE) != Err(Errno::NOENT);
        for (start, end) in parts {
            if is_mapped(start, end - start) && registered(start) {
                continue;
            }
            let gone = |&page: &usize| !is_mapped(page, PAGE_SIZE) || !registered(page);
            let mut left = (start..end).step_by(PAGE_SIZE).peekable();
            while let Some(from) = left.find(gone) {
                let mut to = from + PAGE_SIZE;
                while left.next_if(gone).is_some() {
                    to += PAGE_SIZE;
                }
                self.regions.lock().remove(from, to);
                self.forget(from, to);
            }
        }
    }

    /// Forgets what is known of a range that no longer is what it was, and frees its copies.
    pub(crate) fn forget(&self, start: usize, end: usize) {
        self.table.for_each(start, end, |_, leaf, at| {
            loop {
                let seen = leaf.load(at);
                match seen.state() {
                    PageState::Untouched => return,
                    PageState::Filling | PageState::Leaving => {
                        sched_yield();
                        continue;
                    }
                    _ => {}
                }
                if leaf.exchange(at, seen, Entry::NONE) {
                    if seen.state() == PageState::Resident {
                        leaf.resident.fetch_sub(1, Ordering::Relaxed);
                        self.uncharge(i64::from(!seen.has(Entry::INHERITED)));
                    }
                    self.free_copies(seen);
                    return;
                }
            }
        });
    }

    /// Frees what the store holds of a page that was just forgotten.
    pub(crate) fn free_copies(&self, seen: Entry) {
        match seen.state() {
            PageState::Far => {
                self.count_far(-i64::from(!seen.has(Entry::INHERITED)));
                self.flush(seen.handle());
            }
            PageState::Resident if seen.has(Entry::CLEAN) => self.flush(seen.handle()),
            PageState::Pooled => {
                let note = self.staging.note(seen.handle() as usize);
                let handle = note.handle.swap(0, Ordering::AcqRel);
                if handle != 0 {
                    self.flush(handle);
                }
            }
            _ => {}
        }
    }
}
