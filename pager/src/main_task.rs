//! The main task is the first task of a pager: it starts the others, then watches program and
//! supervisor. It waits for no other task, so it can end all of them even while they rest.

use crate::pager::Pager;
use crate::places::MAIN_TASK_PLACE;
use crate::start::FAILED;
use crate::table::{Entry, PageState};
use crate::tree::SET_ASIDE;
use crate::watcher::Watch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use spillway_platform::process::{
    ProcFolder, Program, Stat, others_share_memory, own_number, own_thread_number,
};
use spillway_platform::task::leave_program;
use spillway_platform::{PAGE_SIZE, sys};
use std::sync::atomic::Ordering;

/// How often the main task checks the program, seconds / nanoseconds.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Ticks after which the main task gives up: on a move that does not end, and on processes that
/// share the memory of a program that has ended.
const LAST_TICKS: usize = 10;

impl Pager {
    /// Runs the main task.
    pub(crate) fn run_main_task(&'static self) -> ! {
        let in_program = self.is_in_program();
        self.leave_for(c"spillway-pager");
        let own = if in_program { own_thread_number() } else { own_number() };
        self.slot.pager_pid.store(own, Ordering::Release);
        let Ok(program) = self.begin_tasks() else {
            // So that the supervisor takes it for no pager that was killed.
            self.slot.pager_pid.store(0, Ordering::Release);
            self.tell_ready(FAILED);
            if in_program { sys::exit_thread() } else { sys::exit_process(1) }
        };
        self.counters().processes.fetch_add(1, Ordering::Relaxed);
        self.tell_ready(1);
        let settings = &self.settings;
        // None in a program that sees another /proc than its supervisor.
        let supervisor =
            ProcFolder::open(settings.supervisor_pid, settings.supervisor_start_ticks).ok();
        let mut watch = Watch::default();
        let mut slots = (0..self.tree.slots.len()).cycle();
        let (mut lost_ticks, mut outlived) = (0, false);
        loop {
            if in_program {
                let _ = poll(&mut [], Some(&TICK));
                self.end_with_last_thread(&mut outlived);
            } else if ended_within_tick(&program) || !program.shares_memory() {
                self.leave();
            }
            // More than once, for the clock also runs while all of this is frozen.
            lost_ticks = if self.is_lost_in_move() { lost_ticks + 1 } else { 0 };
            if lost_ticks > LAST_TICKS {
                self.broken();
            }
            // In this order: the supervisor says that it ends before it does.
            let is_gone = supervisor.as_ref().is_some_and(ProcFolder::has_ended);
            if self.is_unsupervised() {
                self.sweep(slots.by_ref());
            } else if is_gone {
                program.kill();
            }
            if !in_program && self.needs_watcher() {
                watch.keep(self);
            }
            self.count_inherited();
            self.call_parked();
            if let Some(blade) = self.store.blade()
                && let Some(_work) = self.rest.try_work(MAIN_TASK_PLACE)
            {
                blade.tend();
            }
        }
    }

    /// Detaches the calling task from the program, except for the userfaultfds.
    pub(crate) fn leave_for(&self, name: &std::ffi::CStr) {
        let mut keep = [self.main().number(), self.staging_uffd().number()];
        keep.sort_unstable();
        leave_program(&keep, name);
    }

    /// Unparks handlers if a message is unread: the awake ones may be waiting for a slow tier.
    fn call_parked(&self) {
        let uffd = self.main();
        let descriptor = uffd.as_fd();
        let mut readable = [PollFd::new(&descriptor, PollFlags::IN)];
        if self.parking.has_parked()
            && poll(&mut readable, Some(&Timespec::default())).is_ok_and(|count| count > 0)
        {
            self.parking.call_all();
        }
    }

    fn begin_tasks(&'static self) -> Result<Program, Errno> {
        let own = rustix::process::getpid().as_raw_pid() as u32;
        self.processes.pager.store(own, Ordering::Release);
        let program = Program::open(self.processes.program.load(Ordering::Relaxed))?;
        self.spawn_tasks()?;
        Ok(program)
    }

    /// Whether the supervisor has ended normally.
    pub(crate) fn is_unsupervised(&self) -> bool {
        self.tree.unsupervised.load(Ordering::Acquire) != 0
    }

    /// Whether the supervisor does not hold this pager's userfaultfds.
    fn needs_watcher(&self) -> bool {
        self.is_unsupervised() || self.tree.needs_watchers.load(Ordering::Acquire) != 0
    }

    /// The pager is a part of the program, whose own threads may all have ended by bare system calls: the
    /// C library ends a process with its last thread, and the kernel would. Its status is that of its last
    /// thread. What others than the first ended with is not to be had; the C library ends them with 0.
    fn end_with_last_thread(&self, outlived: &mut bool) {
        let Ok(stat) = Stat::of_caller() else { return };
        if stat.state != b'Z' {
            return;
        }
        // The first thread waits, ended, for the others.
        let others = stat.threads.saturating_sub(self.processes.tasks.load(Ordering::Relaxed));
        if others <= 1 {
            self.count_up();
            sys::exit_process(if *outlived { 0 } else { stat.exit_status >> 8 });
        }
        *outlived = true;
    }

    /// Publishes all counts if the pager will end with the program.
    pub fn count_up(&self) {
        if self.is_in_program() {
            let _work = self.program_work();
            self.publish();
        }
    }

    /// Without a supervisor the pagers look after each other: frees the next slot in use, if neither its
    /// process nor the pager of that lives.
    fn sweep(&self, slots: impl Iterator<Item = usize>) {
        let slots = slots.take(self.tree.slots.len()).map(|at| &self.tree.slots[at]);
        let mut taken = slots.filter_map(|slot| {
            let pid = slot.pid.load(Ordering::Acquire);
            (pid != 0 && !std::ptr::eq(slot, self.slot)).then_some((slot, pid))
        });
        let Some((slot, pid)) = taken.next() else { return };
        let pager = slot.pager_pid.load(Ordering::Acquire);
        let has_ended = |pid| ProcFolder::of(pid).is_ok_and(|folder| folder.has_ended());
        let is_gone = |pid| ProcFolder::of(pid).err() == Some(Errno::NOENT) || has_ended(pid);
        // A reserved slot, or one without a pager yet, belongs to a process that is starting.
        if pid & SET_ASIDE == 0 && pager != 0 && is_gone(pager) && is_gone(pid) {
            let blade = self.store.blade();
            let Some(_work) = self.rest.try_work(MAIN_TASK_PLACE) else { return };
            self.tree.take_back(slot, pid, |object| {
                if let Some(blade) = blade {
                    blade.flush_object(object);
                }
            });
        }
    }

    /// The program is gone: subtracts its part from the shared counts and ends the pager.
    fn leave(&self) -> ! {
        let watcher = self.processes.watcher.load(Ordering::Acquire);
        // Another process may share the memory: a spawned child that has not called exec yet.
        for _ in 0..LAST_TICKS {
            if !others_share_memory(watcher, false) {
                break;
            }
            let _ = poll(&mut [], Some(&TICK));
        }
        // It must not outlive the pager and read zeros.
        others_share_memory(watcher, true);
        self.publish_counters();
        self.leave_blade();
        let counters = self.counters();
        let take = |own: &std::sync::atomic::AtomicI64, all: &std::sync::atomic::AtomicI64| {
            all.fetch_sub(own.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        };
        take(&self.slot.resident_pages, &counters.resident_pages);
        take(&self.slot.far_pages, &counters.far_pages);
        take(&self.slot.store_bytes, &counters.store_bytes);
        self.slot.free();
        sys::exit_process(0)
    }

    /// The parent counts pages that came with a fork, until no other process has them: then this
    /// process counts them.
    fn count_inherited(&self) {
        const PRESENT: u64 = 1 << 63;
        const EXCLUSIVE: u64 = 1 << 56;
        if self.inherited.pages.load(Ordering::Relaxed) <= 0 {
            return;
        }
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let path = "/proc/self/pagemap";
        let Ok(pagemap) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else { return };
        let Some(work) = self.rest.try_work(MAIN_TASK_PLACE) else { return };
        let regions = self.regions.lock().all().to_vec();
        let mut left = 0;
        for region in regions {
            self.table.for_each(region.start, region.end, |address, leaf, at| {
                let seen = leaf.load(at);
                if seen.state() != PageState::Resident || !seen.has(Entry::INHERITED) {
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
        self.inherited.pages.store(left, Ordering::Relaxed);
        if self.excess(self.budget_pages()) > 0 {
            self.want_eviction();
        }
    }
}

/// Waits for the end of the program, at most a tick.
fn ended_within_tick(program: &Program) -> bool {
    let mut ended = [PollFd::from_borrowed_fd(program.ended(), PollFlags::IN)];
    poll(&mut ended, Some(&TICK)).is_ok_and(|count| count > 0)
}
