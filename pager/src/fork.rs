//! Forks: the child gets a copy of pager and store, and a userfaultfd and tasks of its own.
//!
//! Managed ranges are excluded from children (MADV_DONTFORK), so that the child of an unprepared fork
//! faults and never reads zeros. The caller prepares a fork around the system call itself: all tasks
//! come to rest, the child gets the ranges, and before it runs any code of the program or of the C
//! library its ranges are registered again and its pager is up.

use crate::error::Error;
use crate::holds::Hold;
use crate::pager::Pager;
use crate::table::{Entry, PageState};
use crate::tree::Notice;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::thread::sched_yield;
use spillway_platform::PAGE_SIZE;
use spillway_platform::memory::advise;
use spillway_platform::process;
use spillway_platform::uffd::Uffd;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Most attempts to bring in memory that the kernel touches during a fork.
const TRIES: usize = 1000;
/// Most pages that the kernel touches during a fork.
pub const NEEDED_MAX: usize = 6;

/// Writes to a page without changing it. A page that is only read may stay clean, and what the kernel writes to
/// it in the child, where it is not protected yet, would be dropped with it.
///
/// # Safety
/// The page is writable memory.
unsafe fn touch_to_write(page: usize) {
    // SAFETY: a locked addition of zero, so nothing that another thread writes is lost.
    unsafe {
        std::arch::asm!("lock add dword ptr [{0}], 0", in(reg) page, options(nostack));
    }
}

/// The first things that an iterator gives.
fn first_of<T, const MAX: usize>(mut things: impl Iterator<Item = T>) -> [Option<T>; MAX] {
    std::array::from_fn(|_| things.next())
}

impl Pager {
    /// Before a fork, on the forking thread: brings all tasks to rest and passes the ranges to the
    /// child. From here to [`Pager::after_fork_in_parent`] or [`Pager::after_fork_in_child`] no task
    /// answers faults: the thread touches no managed memory, blocks all signals, and runs on a native
    /// stack. The kernel itself touches the pages of `needed`, such as the thread's control block; they
    /// are resident when this returns. Zeros there name no page.
    ///
    /// # Errors
    /// `AGAIN` if these pages do not stay: all tasks continue, and there must be no fork.
    pub fn before_fork(&self, needed: &[usize; NEEDED_MAX]) -> Result<(), Errno> {
        let page = |address: usize| address & !(PAGE_SIZE - 1);
        let needed = needed.iter().filter(|&&address| address != 0).map(|&address| page(address));
        for _ in 0..TRIES {
            // The kernel touches them at any moment, so they stay from before the rest begins.
            let held = needed.clone().map(|page| self.hold_off(page, page + PAGE_SIZE));
            let held: [Option<Hold<'_>>; NEEDED_MAX] = first_of(held);
            for page in needed.clone() {
                // SAFETY: memory of the forking thread that the kernel is about to write to.
                unsafe { touch_to_write(page) };
            }
            self.rest_between_moves();
            drop(held);
            let is_here = |page: usize| {
                matches!(self.entry(page).state(), PageState::Resident | PageState::Untouched)
            };
            if needed.clone().all(is_here) {
                self.publish_counters();
                self.store.seal_files();
                self.prepare_child_slot();
                self.advise_fork(Advice::LinuxDoFork);
                return Ok(());
            }
            self.rest.go_on();
        }
        Err(Errno::AGAIN)
    }

    /// Brings all tasks to rest at a moment without a remapping in progress: otherwise the kernel
    /// would have moved a range without the pager processing it.
    fn rest_between_moves(&self) {
        loop {
            self.rest.stop();
            if self.change.ranges.is_empty() {
                return;
            }
            self.rest.go_on();
            sched_yield();
        }
    }

    /// After a fork, in the parent: all tasks continue.
    pub fn after_fork_in_parent(&self) {
        self.advise_fork(Advice::LinuxDontFork);
        self.rest.go_on();
    }

    /// After a fork, in the child, before anything of the program runs there. `pid` is the child.
    ///
    /// # Errors
    /// The child can't be paged. It must end then: its far pages are out of reach.
    pub fn after_fork_in_child(&'static self, pid: u32) -> Result<(), Error> {
        self.begin_child(pid).inspect_err(|_| {
            // The supervisor removes what the child holds on the blade.
            if self.store.blade().is_none() {
                self.tree.take_back(self.slot, pid, |_| ());
            }
        })
    }

    fn begin_child(&'static self, pid: u32) -> Result<(), Error> {
        let parent_pager = self.slot.pager_pid.load(Ordering::Acquire);
        // SAFETY: the child has one thread, this one, and no task works on the pager yet.
        unsafe { (*std::ptr::from_ref(self).cast_mut()).become_child(pid)? };
        self.mark_inherited();
        let kept: Vec<_> = {
            let regions = self.regions.lock();
            let kept = regions.all().iter().filter(|region| region.dont_fork);
            kept.map(|region| (region.start, region.end)).collect()
        };
        for (start, end) in kept {
            self.regions.lock().remove(start, end);
            self.forget(start, end);
        }
        self.rest.go_on();
        self.start()?;
        self.advise_fork(Advice::LinuxDontFork);
        if !self.store.file_descriptors().is_empty() {
            let reopened = self.registrar_slot.ask(
                crate::registrar_slot::Task::Reopen,
                parent_pager as usize,
                0,
            );
            reopened.map_err(Error::Store)?;
        }
        Ok(())
    }

    /// Reports that a child could not be paged. The caller ends it, or leaves it without managed
    /// memory.
    pub fn refuse_fork(&self, errno: Errno) {
        let number = process::own_number();
        self.tree.notify(Notice::ForkRefused, number, errno.raw_os_error() as u64);
    }

    /// Reports that a fork failed with `errno`, for the child's pager has no room.
    pub fn say_no_room_for_child(&self, errno: Errno) {
        let number = process::own_number();
        self.tree.notify(Notice::NoRoomForChild, number, errno.raw_os_error() as u64);
    }

    fn advise_fork(&self, advice: Advice) {
        for region in self.regions.lock().all().iter().filter(|region| !region.dont_fork) {
            let _ = advise(region.start, region.end - region.start, advice);
        }
    }

    /// The parent counts the pages that the child inherited.
    fn mark_inherited(&self) {
        let regions = self.regions.lock().all().to_vec();
        let (mut resident, mut pooled) = (0, 0);
        for region in regions {
            self.table.for_each(region.start, region.end, |_, leaf, at| {
                let seen = leaf.load(at);
                match seen.state() {
                    PageState::Resident | PageState::Far => {
                        resident += i64::from(seen.state() == PageState::Resident);
                        let _ = leaf.exchange(at, seen, seen.with(Entry::INHERITED));
                    }
                    PageState::Pooled => pooled += 1,
                    _ => {}
                }
            });
        }
        self.inherited.pages.store(resident, Ordering::Relaxed);
        self.charge(pooled);
    }

    /// The kernel removes write protection in a child: only clean pages get it back. No task answers faults
    /// yet, and the kernel writes to the thread's control block whenever it was interrupted.
    pub(crate) fn protect_clean(&self, uffd: Uffd) -> Result<(), Errno> {
        let regions = self.regions.lock().all().to_vec();
        let mut result = Ok(());
        for region in regions {
            let mut run = region.start..region.start;
            // An unnoticed write would be dropped with the page.
            let mut protect = |run: &Range<usize>| {
                if !run.is_empty() {
                    result = result.and(uffd.protect(run.start, run.len()));
                }
            };
            self.table.for_each(region.start, region.end, |address, leaf, at| {
                if !leaf.load(at).has(Entry::CLEAN) {
                    return;
                }
                if address != run.end {
                    protect(&run);
                    run = address..address;
                }
                run.end += PAGE_SIZE;
            });
            protect(&run);
        }
        result
    }
}
