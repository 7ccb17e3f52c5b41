//! Starting a process's pager, and ending it.

use crate::pager::{Error, HANDLERS_MAX, Pager};
use crate::table::{Entry, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, IntoRawFd};
use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::process::{
    Program, others_share_memory, own_number, pin_to_core, usable_cores,
};
use spillway_platform::task::{SignalsBlocked, leave_program, spawn_guest_process, spawn_thread};
use spillway_platform::uffd::{Uffd, feature, mode};
use spillway_platform::{PAGE_SIZE, sys};
use std::sync::atomic::{AtomicI32, Ordering};

/// How often the warden looks whether the program still is what it was, seconds / nanoseconds.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Ticks after which there is no more hope: for a move that does not end, and for processes that
/// share the memory of a program that has ended.
const LAST_TICKS: usize = 10;
const FAILED: u32 = 2;

/// Descriptor of /dev/userfaultfd in the program's own table, or -1. A child that has dropped
/// privileges gets its userfaultfd from here, if the program has not closed it.
static DEVICE: AtomicI32 = AtomicI32::new(-1);

impl Pager {
    /// Starts the tasks that page this process. When it returns, faults are answered.
    ///
    /// # Errors
    /// When userfaultfd is refused or there is no memory for the tasks; nothing is managed then.
    pub fn start(&'static self) -> Result<(), Error> {
        let _blocked = SignalsBlocked::new();
        self.program.store(rustix::process::getpid().as_raw_pid() as u32, Ordering::Relaxed);
        let events = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP;
        let needed = feature::PAGEFAULT_FLAG_WP | feature::MOVE | feature::POISON | events;
        let in_thread = self.is_in_thread();
        let features = if in_thread { needed | feature::SIGBUS } else { needed };
        let main = open_uffd(features).map_err(Error::Userfaultfd)?;
        let staging =
            open_uffd(feature::PAGEFAULT_FLAG_WP | feature::MOVE).map_err(Error::Userfaultfd)?;
        self.set_uffds(main, staging);
        let (base, bytes) = self.staging.range();
        staging.register(base, bytes, mode::MISSING | mode::WP).map_err(Error::Userfaultfd)?;
        self.register_regions(main).map_err(Error::Userfaultfd)?;
        self.protect_clean(main);
        spawn_guest_process(guest_main, std::ptr::from_ref(self) as usize)
            .map_err(Error::Resources)?;
        while self.ready.load(Ordering::Acquire) == 0 {
            let _ = futex::wait(&self.ready, futex::Flags::PRIVATE, 0, None);
        }
        if !in_thread {
            close(main);
            close(staging);
        }
        if self.ready.load(Ordering::Acquire) == FAILED {
            return Err(Error::Resources(Errno::AGAIN));
        }
        Ok(())
    }

    /// Registers what is managed already: a forked child has its parent's ranges.
    fn register_regions(&self, main: Uffd) -> Result<(), Errno> {
        let regions = self.regions.lock();
        for region in regions.all().iter().filter(|region| !region.dont_fork) {
            main.register(region.start, region.end - region.start, mode::MISSING | mode::WP)?;
        }
        Ok(())
    }

    /// First task of the guest process: makes the others, then watches over the program.
    fn run_warden(&'static self) -> ! {
        let mut keep = [self.main().number(), self.staging_uffd().number()];
        keep.sort_unstable();
        leave_program(&keep);
        let pid = self.program.load(Ordering::Relaxed);
        self.slot.pager_pid.store(own_number(), Ordering::Release);
        let Ok(program) = Program::open(pid).map_err(|_| ()).and_then(|program| {
            self.spawn_tasks().map_err(|_| ())?;
            Ok(program)
        }) else {
            self.tell_ready(FAILED);
            sys::exit_process(1)
        };
        self.counters().processes.fetch_add(1, Ordering::Relaxed);
        self.tell_ready(1);
        let mut lost_ticks = 0;
        loop {
            let descriptor = program.ended();
            let mut ended = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            let woken = poll(&mut ended, Some(&TICK));
            if woken.is_ok_and(|n| n > 0) || !program.shares_memory() {
                self.leave();
            }
            // More than once, for the clock also runs while all of this is frozen.
            lost_ticks = if self.is_lost_in_move() { lost_ticks + 1 } else { 0 };
            if lost_ticks > LAST_TICKS {
                self.broken(line!());
            }
            self.count_inherited();
            if let Some(blade) = self.store.blade() {
                let _work = self.rest.work(crate::pager::WARDEN_PLACE);
                blade.tend();
            }
        }
    }

    fn tell_ready(&self, state: u32) {
        self.ready.store(state, Ordering::Release);
        let _ = futex::wake(&self.ready, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    fn spawn_tasks(&'static self) -> Result<(), Errno> {
        let mut cores = [0usize; HANDLERS_MAX];
        let in_thread = self.is_in_thread();
        let usable = usable_cores(&mut cores).max(1);
        self.cores.store(usable as u32, Ordering::Release);
        // In-thread mode has no faults to hand out: one reader of events will do.
        let count = if in_thread { 1 } else { usable };
        let pager = std::ptr::from_ref(self) as usize;
        for (number, &core) in cores[..count].iter().enumerate() {
            let seat = Seat { pager, number, core: if in_thread { None } else { Some(core) } };
            spawn_thread(handler_main, Box::into_raw(Box::new(seat)) as usize)?;
        }
        spawn_thread(evictor_main, pager)?;
        spawn_thread(registrar_main, pager)
    }

    /// The program is gone: takes its part out of the shared counts and ends the pager.
    fn leave(&self) -> ! {
        // Another process may share the memory: a spawned child that has not called exec yet.
        for _ in 0..LAST_TICKS {
            if !others_share_memory(false) {
                break;
            }
            let _ = poll(&mut [], Some(&TICK));
        }
        // It must not outlive the pager and read zeros.
        others_share_memory(true);
        self.deal();
        self.leave_blade();
        let counters = self.counters();
        let take = |own: &std::sync::atomic::AtomicI64, all: &std::sync::atomic::AtomicI64| {
            all.fetch_sub(own.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        };
        take(&self.slot.resident_pages, &counters.resident_pages);
        take(&self.slot.far_pages, &counters.far_pages);
        take(&self.slot.store_bytes, &counters.store_bytes);
        self.slot.pager_pid.store(0, Ordering::Release);
        self.slot.pid.store(0, Ordering::Release);
        sys::exit_process(0)
    }

    /// Pages that came with a fork are counted by the process they came from, until nobody else
    /// has them: then they are this process's own.
    fn count_inherited(&self) {
        const PRESENT: u64 = 1 << 63;
        const EXCLUSIVE: u64 = 1 << 56;
        if self.inherited.load(Ordering::Relaxed) <= 0 {
            return;
        }
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let path = "/proc/self/pagemap";
        let Ok(pagemap) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else { return };
        let work = self.rest.work(crate::pager::EVICTOR_PLACE);
        let regions = self.regions.lock().all().to_vec();
        let mut left = 0;
        for region in regions {
            self.table.for_each(region.start, region.end, |address, leaf, at| {
                let seen = leaf.load(at);
                if seen.state() != State::Resident || !seen.has(Entry::INHERITED) {
                    return;
                }
                left += 1;
                let mut word = [0u8; 8];
                let place = (address / PAGE_SIZE * word.len()) as u64;
                let read = rustix::io::pread(&pagemap, &mut word, place);
                let page = u64::from_ne_bytes(word);
                let own = page & PRESENT != 0 && page & EXCLUSIVE != 0;
                if read == Ok(8) && own && leaf.exchange(at, seen, seen.without(Entry::INHERITED)) {
                    left -= 1;
                    self.charge(1);
                }
            });
        }
        drop(work);
        self.inherited.store(left, Ordering::Relaxed);
        if self.excess(self.budget_pages()) > 0 {
            self.want_eviction();
        }
    }
}

struct Seat {
    pager: usize,
    number: usize,
    core: Option<usize>,
}

/// The pager behind a task's argument.
fn pager_at(argument: usize) -> &'static Pager {
    // SAFETY: tasks are started with the address of a pager that lives for ever.
    unsafe { &*(argument as *const Pager) }
}

extern "C" fn guest_main(pager: usize) {
    pager_at(pager).run_warden()
}

extern "C" fn handler_main(seat: usize) {
    // SAFETY: the seat was boxed for this task alone; it is never freed.
    let seat = unsafe { &*(seat as *const Seat) };
    if let Some(core) = seat.core {
        pin_to_core(core);
    }
    pager_at(seat.pager).run_handler(seat.number)
}

extern "C" fn evictor_main(pager: usize) {
    pager_at(pager).run_evictor()
}

extern "C" fn registrar_main(pager: usize) {
    pager_at(pager).run_registrar()
}

fn open_uffd(features: u64) -> Result<Uffd, Errno> {
    let known = DEVICE.load(Ordering::Relaxed);
    if known >= 0 {
        // SAFETY: if the program closed or replaced the descriptor the call below just fails.
        let device = unsafe { BorrowedFd::borrow_raw(known) };
        if let Ok(uffd) = Uffd::open(Some(device), features) {
            return Ok(uffd);
        }
    }
    Uffd::open(None, features)
}

/// Keeps /dev/userfaultfd open, high up in the program's table, for children without privileges.
pub fn keep_device() {
    if let Ok(device) = Uffd::device() {
        let high = rustix::io::fcntl_dupfd_cloexec(&device, 900);
        DEVICE.store(high.map_or(-1, IntoRawFd::into_raw_fd), Ordering::Relaxed);
    }
}

fn close(uffd: Uffd) {
    // SAFETY: the number was opened by `start` in this table and nothing here uses it any more.
    unsafe { rustix::io::close(uffd.number()) }
}
