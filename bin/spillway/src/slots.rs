//! Watches the pagers of a run. When the last descriptor of a userfaultfd closes, the kernel serves
//! zeros for far pages. So the supervisor holds a second descriptor: a program whose pager died
//! waits at its next fault, and the supervisor kills it there. Where it may not hold one, it asks the
//! pagers for watchers, which hold them in its place. It also subtracts a dead process's counts from the
//! sums.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use spillway_pager::tree::{SET_ASIDE, Slot, Tree};

use crate::sample::descendants_of;

/// What /proc/PID/fd says of a userfaultfd.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";

/// How long a slot may be held by a dead process, or reserved for one that has not started.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long a pager may take to make a watcher.
const WATCHER_DUE: Duration = Duration::from_secs(5);

/// A pager that is watched.
struct Watched {
    /// Readable when the pager has ended.
    process: OwnedFd,
    /// Its userfaultfds, held open so that faults wait when it ends. Empty until it has some, and
    /// if they can't be copied.
    faults: Vec<OwnedFd>,
    /// Why they can't be copied, and since when its watcher is awaited.
    refused: Option<(Errno, Instant)>,
}

/// The pagers of a run that have been seen.
#[derive(Default)]
pub struct Pagers {
    by_pid: HashMap<u32, Watched>,
    /// Slots without a pager: what they hold in place of a process, and since when.
    waiting: HashMap<u32, Instant>,
    /// Objects on the blade whose holders were all killed.
    unheld: Vec<u64>,
    /// Why nobody holds the userfaultfds of a pager.
    refused: Option<Refused>,
}

/// Why nobody holds the userfaultfds of a pager, until that is reported.
enum Refused {
    New(Errno),
    Told,
}

impl Pagers {
    /// Descriptors to poll: readable when a pager ended.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.by_pid.values().map(|watched| watched.process.as_fd())
    }

    /// Checks every slot: starts watching new pagers, kills programs whose pager died, frees the
    /// slots of dead processes. Returns the processes that it killed.
    pub fn watch(&mut self, tree: &Tree) -> Vec<u32> {
        let mut killed = Vec::new();
        let mut live = HashMap::new();
        let mut ended = Vec::new();
        for slot in &tree.slots {
            let (pid, pager) = (slot.pid.load(Relaxed), slot.pager_pid.load(Relaxed));
            if pid == 0 {
                continue;
            }
            if pager == 0 {
                // It is still being filled, or never will be.
                let since = *self.waiting.entry(pid).or_insert_with(Instant::now);
                if since.elapsed() > LONGEST_WAIT && !is_alive(pid) {
                    self.waiting.remove(&pid);
                    tree.take_back(slot, pid, |object| self.unheld.push(object));
                }
                continue;
            }
            self.waiting.remove(&pid);
            let known = self.by_pid.remove(&pager);
            let alive = known.as_ref().map_or_else(|| is_alive(pager), |known| !known.has_ended());
            if alive {
                if let Some(mut watched) = known.or_else(|| Watched::new(pager)) {
                    watched.hold_faults(pager);
                    if let Some((error, since)) = watched.refused {
                        self.ask_for_watcher(tree, slot, error, since);
                    }
                    live.insert(pager, watched);
                }
                continue;
            }
            // Until the program is killed its faults must wait.
            ended.extend(known);
            // The pager of a process that ends frees the slot itself: check again after it has
            // ended.
            if slot.pid.load(Relaxed) != pid || slot.pager_pid.load(Relaxed) != pager {
                continue;
            }
            // A pager that is part of its process ends alone only by exec.
            let alone = slot.in_program.load(Relaxed) == 0 && !has_other_pager(tree, slot, pid);
            if alone && is_alive(pid) && kill(pid) {
                killed.push(pid);
            }
            tree.release(slot, |object| self.unheld.push(object));
        }
        self.by_pid = live;
        drop(ended);
        killed
    }

    /// Has a watcher hold what can't be held here since `since`; notes the reason if none has come in time.
    fn ask_for_watcher(&mut self, tree: &Tree, slot: &Slot, error: Errno, since: Instant) {
        tree.needs_watchers.store(1, Release);
        // A pager that is part of its process needs none.
        let is_held = [&slot.watcher_pid, &slot.in_program].iter().any(|it| it.load(Relaxed) != 0);
        if !is_held && since.elapsed() > WATCHER_DUE {
            self.refused.get_or_insert(Refused::New(error));
        }
    }

    /// Why the program of a killed pager would read zeros. Returned only the first time.
    pub fn take_refused(&mut self) -> Option<Errno> {
        match self.refused {
            Some(Refused::New(error)) => {
                self.refused = Some(Refused::Told);
                Some(error)
            }
            _ => None,
        }
    }

    /// Objects on the blade that lost their last holder since the last call.
    pub fn take_unheld(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unheld)
    }
}

/// Slots of ended processes whose pagers are still adding up their counters, and slots reserved for children
/// that have not started.
fn unsettled(tree: &Tree) -> impl Iterator<Item = &Slot> {
    tree.slots.iter().filter(|slot| {
        let pid = slot.pid.load(Relaxed);
        pid != 0 && !is_alive(pid)
    })
}

/// Whether the pager of an ended process is still adding up its counters, or a child has not started yet: a
/// program may end right after its fork.
pub fn any_unsettled(tree: &Tree) -> bool {
    unsettled(tree).next().is_some()
}

/// Ends the pagers that should have ended with their process, and frees their slots. Also frees reserved
/// slots whose children are overdue. Returns the objects on the blade that have no holder any more.
pub fn end_stragglers(tree: &Tree, set_aside: bool) -> Vec<u64> {
    let mut unheld = Vec::new();
    for slot in unsettled(tree) {
        if slot.pid.load(Relaxed) & SET_ASIDE != 0 && !set_aside {
            continue;
        }
        kill(slot.pager_pid.load(Relaxed));
        tree.release(slot, |object| unheld.push(object));
    }
    unheld
}

/// Whether some process still has no watcher: nothing would notice the death of its pager.
pub fn any_unwatched(tree: &Tree) -> bool {
    tree.slots.iter().any(|slot| {
        let [pid, pager, watcher, in_program] =
            [&slot.pid, &slot.pager_pid, &slot.watcher_pid, &slot.in_program]
                .map(|number| number.load(Relaxed));
        pid != 0 && pager != 0 && watcher == 0 && in_program == 0 && is_alive(pid)
    })
}

/// The process still has a pager in another slot: it ran exec, and this slot is from before.
fn has_other_pager(tree: &Tree, slot: &Slot, pid: u32) -> bool {
    tree.slots.iter().any(|other| {
        !std::ptr::eq(other, slot)
            && other.pid.load(Relaxed) == pid
            && is_alive(other.pager_pid.load(Relaxed))
    })
}

/// Kills a process, after checking that it belongs to this run. Programs can write to the slots,
/// even those that dropped privileges after they started, so a process id from there is not
/// trusted.
fn kill(pid: u32) -> bool {
    let ours = descendants_of(std::process::id()).contains(&pid);
    ours && process(pid).is_some_and(|process| kill_process(process, Signal::KILL).is_ok())
}

fn process(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

impl Watched {
    fn new(pid: u32) -> Option<Self> {
        let process = pidfd_open(process(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self { process, faults: Vec::new(), refused: None })
    }

    /// Checks the descriptor, which is faster than /proc and can't refer to another process.
    fn has_ended(&self) -> bool {
        let mut waker = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut waker, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Copies the pager's userfaultfds, once it has opened them.
    fn hold_faults(&mut self, pid: u32) {
        if !self.faults.is_empty() || self.refused.is_some() {
            return;
        }
        let copy = |process: &_, number| pidfd_getfd(process, number, PidfdGetfdFlags::empty());
        if let Err(error) = self.copy_faults(pid, copy) {
            self.refused = Some((error, Instant::now()));
        }
    }

    fn copy_faults(
        &mut self,
        pid: u32,
        copy: impl Fn(&OwnedFd, i32) -> rustix::io::Result<OwnedFd>,
    ) -> Result<(), Errno> {
        let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(Errno::ACCESS),
            // It has ended just now.
            Err(_) => return Ok(()),
        };
        let numbers = entries.flatten().filter(|entry| {
            fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == USERFAULTFD)
        });
        for number in numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            match copy(&self.process, number) {
                Ok(fault) => self.faults.push(fault),
                // The pager or the descriptor is gone by now.
                Err(Errno::SRCH | Errno::BADF) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether the process runs; one that ended and waits to be reaped does not.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        !matches!(state, None | Some('Z' | 'X' | 'x'))
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use spillway_platform::uffd::Uffd;

    use super::*;
    use crate::run::tests::settings;
    use crate::shared_tree::SharedTree;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn fill(slot: &Slot, pid: u32, pager: u32) {
        slot.resident_pages.store(10, Relaxed);
        slot.far_pages.store(20, Relaxed);
        slot.store_bytes.store(30, Relaxed);
        slot.pid.store(pid, Relaxed);
        slot.pager_pid.store(pager, Relaxed);
    }

    fn full_tree() -> SharedTree {
        let tree = SharedTree::new(&settings()).unwrap();
        tree.counters.resident_pages.store(100, Relaxed);
        tree.counters.far_pages.store(100, Relaxed);
        tree.counters.store_bytes.store(100, Relaxed);
        tree
    }

    #[test]
    fn a_program_whose_pager_died_is_killed_and_its_pages_come_off_the_sums() {
        let tree = full_tree();
        let (mut program, mut pager) = (sleeper(), sleeper());
        fill(&tree.slots[3], program.id(), pager.id());
        let mut pagers = Pagers::default();
        assert!(pagers.watch(&tree).is_empty());
        assert_eq!(pagers.descriptors().count(), 1);
        pager.kill().unwrap();
        pager.wait().unwrap();
        assert_eq!(pagers.watch(&tree), [program.id()]);
        assert!(!program.wait().unwrap().success());
        assert_eq!(tree.counters.resident_pages.load(Relaxed), 90);
        assert_eq!(tree.counters.far_pages.load(Relaxed), 80);
        assert_eq!(tree.counters.store_bytes.load(Relaxed), 70);
        assert_eq!(tree.slots[3].pid.load(Relaxed), 0);
        assert!(pagers.watch(&tree).is_empty());
    }

    #[test]
    fn a_program_that_has_a_new_pager_after_exec_lives_on() {
        let tree = full_tree();
        let (mut program, mut new, mut old) = (sleeper(), sleeper(), sleeper());
        old.kill().unwrap();
        old.wait().unwrap();
        fill(&tree.slots[0], program.id(), old.id());
        fill(&tree.slots[1], program.id(), new.id());
        assert!(Pagers::default().watch(&tree).is_empty());
        assert_eq!(tree.slots[0].pid.load(Relaxed), 0);
        assert_eq!(tree.slots[1].pid.load(Relaxed), program.id());
        assert!(program.try_wait().unwrap().is_none());
        for child in [&mut program, &mut new] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_program_that_is_paged_by_its_own_threads_lives_on_when_exec_ends_them() {
        let tree = full_tree();
        let (mut program, mut pager) = (sleeper(), sleeper());
        pager.kill().unwrap();
        pager.wait().unwrap();
        fill(&tree.slots[2], program.id(), pager.id());
        tree.slots[2].in_program.store(1, Relaxed);
        assert!(Pagers::default().watch(&tree).is_empty());
        assert_eq!(tree.counters.resident_pages.load(Relaxed), 90);
        for number in [&tree.slots[2].pid, &tree.slots[2].pager_pid, &tree.slots[2].in_program] {
            assert_eq!(number.load(Relaxed), 0);
        }
        assert!(program.try_wait().unwrap().is_none());
        program.kill().unwrap();
        program.wait().unwrap();
    }

    #[test]
    fn a_process_that_goes_on_needs_a_watcher_unless_its_pager_can_not_end_alone() {
        let tree = full_tree();
        let (mut program, mut pager) = (sleeper(), sleeper());
        assert!(!any_unwatched(&tree));
        let slot = &tree.slots[1];
        fill(slot, program.id(), pager.id());
        assert!(any_unwatched(&tree));
        slot.watcher_pid.store(1, Relaxed);
        assert!(!any_unwatched(&tree));
        slot.watcher_pid.store(0, Relaxed);
        slot.in_program.store(1, Relaxed);
        assert!(!any_unwatched(&tree));
        slot.in_program.store(0, Relaxed);
        for child in [&mut program, &mut pager] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!any_unwatched(&tree), "it has ended");
    }

    #[test]
    fn a_pagers_userfaultfd_is_held() {
        // This process stands for a pager; it needs no more than the descriptor.
        let Ok(uffd) = Uffd::open(None, 0) else { return };
        let mut watched = Watched::new(std::process::id()).unwrap();
        watched.hold_faults(std::process::id());
        assert!(!watched.faults.is_empty());
        let held = watched.faults.len();
        watched.hold_faults(std::process::id());
        assert_eq!(watched.faults.len(), held, "once is enough");
        assert!(uffd.number() >= 0);
    }

    #[test]
    fn userfaultfds_that_can_not_be_held_are_told_once() {
        let Ok(_uffd) = Uffd::open(None, 0) else { return };
        let pid = std::process::id();
        let mut watched = Watched::new(pid).unwrap();
        assert_eq!(watched.copy_faults(pid, |_, _| Err(Errno::BADF)), Ok(()));
        assert_eq!(watched.copy_faults(pid, |_, _| Err(Errno::PERM)), Err(Errno::PERM));
        assert!(watched.faults.is_empty());
        let mut pagers = Pagers { refused: Some(Refused::New(Errno::PERM)), ..Pagers::default() };
        assert_eq!(pagers.take_refused(), Some(Errno::PERM));
        pagers.refused.get_or_insert(Refused::New(Errno::PERM));
        assert_eq!(pagers.take_refused(), None);
    }

    #[test]
    fn nobody_elses_process_is_killed() {
        assert!(!kill(1));
        assert!(!kill(0));
        assert!(!kill(u32::MAX));
    }

    #[test]
    fn a_pager_that_outlives_its_program_is_ended() {
        let tree = full_tree();
        let (mut program, mut pager) = (sleeper(), sleeper());
        fill(&tree.slots[5], program.id(), pager.id());
        assert!(!any_unsettled(&tree));
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(any_unsettled(&tree));
        end_stragglers(&tree, true);
        assert!(!any_unsettled(&tree));
        assert!(!pager.wait().unwrap().success());
        assert_eq!(tree.counters.far_pages.load(Relaxed), 80);
    }

    #[test]
    fn a_zombie_counts_as_dead() {
        let mut child = Command::new("true").spawn().unwrap();
        let gone = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            !is_alive(child.id())
        });
        assert!(gone);
        child.wait().unwrap();
    }
}
