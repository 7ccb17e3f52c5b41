//! Starting a process's pager, and ending it.

use crate::error::Error;
use crate::pager::Pager;
use crate::places::HANDLERS_MAX;
use rustix::fd::{BorrowedFd, IntoRawFd};
use rustix::io::Errno;
use rustix::thread::futex;
use spillway_platform::process::{adopts_orphans, pin_to_core, usable_cores};
use spillway_platform::task::{
    SignalsBlocked, spawn_guest_process, spawn_guest_thread, spawn_thread,
};
use spillway_platform::uffd::{Uffd, feature, mode};
use std::sync::atomic::{AtomicI32, Ordering};

pub(crate) const FAILED: u32 = 2;

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
        self.processes
            .program
            .store(rustix::process::getpid().as_raw_pid() as u32, Ordering::Relaxed);
        let events = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP;
        let needed = feature::PAGEFAULT_FLAG_WP
            | feature::MOVE
            | feature::POISON
            | feature::THREAD_ID
            | events;
        let in_thread = self.is_in_thread();
        let features = if in_thread { needed | feature::SIGBUS } else { needed };
        let main = open_uffd(features).map_err(Error::Userfaultfd)?;
        let staging =
            open_uffd(feature::PAGEFAULT_FLAG_WP | feature::MOVE).map_err(Error::Userfaultfd)?;
        self.set_uffds(main, staging);
        let (base, bytes) = self.staging.range();
        staging.register(base, bytes, mode::MISSING | mode::WP).map_err(Error::Userfaultfd)?;
        self.register_regions(main).map_err(Error::Userfaultfd)?;
        self.protect_clean(main).map_err(Error::Userfaultfd)?;
        let pager = std::ptr::from_ref(self) as usize;
        let spawn = if self.choose_place() { spawn_guest_thread } else { spawn_guest_process };
        spawn(guest_main, pager).map_err(Error::Resources)?;
        while self.processes.ready.load(Ordering::Acquire) == 0 {
            let _ = futex::wait(&self.processes.ready, futex::Flags::PRIVATE, 0, None);
        }
        if !in_thread {
            close(main);
            close(staging);
        }
        if self.processes.ready.load(Ordering::Acquire) == FAILED {
            return Err(Error::Resources(Errno::AGAIN));
        }
        Ok(())
    }

    /// Whether the tasks are threads of the program, which no wait sees. They are where a program adopts
    /// orphans, for a pager that is a process would be one. Elsewhere they are a process of their own:
    /// what a program does to its descriptors and threads does not reach them (docs/adr/0005).
    fn choose_place(&self) -> bool {
        if adopts_orphans() {
            self.tree.adopts_orphans.store(1, Ordering::Release);
        }
        let in_program = self.tree.adopts_orphans.load(Ordering::Acquire);
        self.slot.in_program.store(in_program, Ordering::Release);
        in_program != 0
    }

    /// Whether they are threads of the program.
    pub(crate) fn is_in_program(&self) -> bool {
        self.slot.in_program.load(Ordering::Acquire) != 0
    }

    /// The program is about to adopt orphans: see `choose_place`.
    pub fn note_adopts_orphans(&self) {
        self.tree.adopts_orphans.store(1, Ordering::Release);
    }

    /// Registers what is managed already: a forked child has its parent's ranges.
    fn register_regions(&self, main: Uffd) -> Result<(), Errno> {
        let regions = self.regions.lock();
        for region in regions.all().iter().filter(|region| !region.dont_fork) {
            main.register(region.start, region.end - region.start, mode::MISSING | mode::WP)?;
        }
        Ok(())
    }

    pub(crate) fn tell_ready(&self, state: u32) {
        self.processes.ready.store(state, Ordering::Release);
        let _ = futex::wake(&self.processes.ready, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    pub(crate) fn spawn_tasks(&'static self) -> Result<(), Errno> {
        let mut cores = [0usize; HANDLERS_MAX];
        let in_thread = self.is_in_thread();
        let usable = usable_cores(&mut cores).max(1);
        self.crowding.cores.store(usable as u32, Ordering::Release);
        // In-thread mode has no faults to hand out: one reader of events will do.
        let count = if in_thread { 1 } else { usable };
        // Besides the handlers: main task, evictor and registrar.
        self.processes.tasks.store(count as u32 + 3, Ordering::Relaxed);
        let pager = std::ptr::from_ref(self) as usize;
        self.parking.open(&cores[..count]);
        for (number, &core) in cores[..count].iter().enumerate() {
            let seat = Seat { pager, number, core: if in_thread { None } else { Some(core) } };
            spawn_thread(handler_main, Box::into_raw(Box::new(seat)) as usize)?;
        }
        spawn_thread(evictor_main, pager)?;
        spawn_thread(registrar_main, pager)
    }
}

struct Seat {
    pager: usize,
    number: usize,
    core: Option<usize>,
}

/// The pager behind a task's argument.
pub(crate) fn pager_at(argument: usize) -> &'static Pager {
    // SAFETY: tasks are started with the address of a pager that lives for ever.
    unsafe { &*(argument as *const Pager) }
}

extern "C" fn guest_main(pager: usize) {
    pager_at(pager).run_main_task()
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
