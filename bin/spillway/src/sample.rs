//! Measures the memory of a run's whole process tree, by the kernel's own accounting.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use spillway_pager::tree::Tree;

use spillway_host::field_kib;

/// Least time between two samples.
const INTERVAL: Duration = Duration::from_millis(200);
/// A sample walks page tables. Samples may take one part in this many of one core's time.
const SHARE: u32 = 50;

/// Memory of a process tree, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident; pages that processes share count once for each.
    pub rss_bytes: u64,
    /// Resident; pages that processes share count once in all.
    pub pss_bytes: u64,
    /// Of these, in shared memory: memfds, tmpfs, shared anonymous mappings, System V.
    pub pss_shared_bytes: u64,
    /// Of these, pages of files.
    pub pss_file_bytes: u64,
    /// Number of processes.
    pub processes: u64,
}

/// Takes samples, rarely enough not to slow the program.
pub struct Sampler {
    root: u32,
    next: Instant,
}

impl Sampler {
    /// Samples the processes below `root`. The first sample is due at once.
    pub fn new(root: u32) -> Self {
        Self { root, next: Instant::now() }
    }

    /// A sample if one is due: the memory of all processes except the pagers. A pager shares the address space of
    /// its program, which is counted already.
    pub fn sample(&mut self, tree: &Tree) -> Option<Usage> {
        if Instant::now() < self.next {
            return None;
        }
        let start = cpu_time();
        let pagers: HashSet<u32> =
            tree.slots.iter().map(|slot| slot.pager_pid.load(Relaxed)).collect();
        let mut usage = Usage::default();
        let counted = descendants_of(self.root).into_iter().filter(|pid| !pagers.contains(pid));
        for memory in counted.filter_map(memory_of) {
            usage.rss_bytes += memory.rss_bytes;
            usage.pss_bytes += memory.pss_bytes;
            usage.pss_shared_bytes += memory.pss_shared_bytes;
            usage.pss_file_bytes += memory.pss_file_bytes;
            usage.processes += 1;
        }
        let took = cpu_time().saturating_sub(start);
        self.next = Instant::now() + INTERVAL.max(took * SHARE);
        Some(usage)
    }
}

/// CPU time of this thread. Waiting for a core costs others nothing.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The memory of one process. A process of another user shows only its Rss, which is then used for
/// all.
fn memory_of(pid: u32) -> Option<Usage> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let text = rollup.or_else(|_| fs::read_to_string(format!("/proc/{pid}/status"))).ok()?;
    let field = |names: [&str; 2]| names.iter().find_map(|name| field_kib(&text, name));
    let rss_bytes = field(["Rss:", "VmRSS:"])?;
    Some(Usage {
        rss_bytes,
        pss_bytes: field(["Pss:", "VmRSS:"])?,
        pss_shared_bytes: field(["Pss_Shmem:", "RssShmem:"]).unwrap_or(0),
        pss_file_bytes: field(["Pss_File:", "RssFile:"]).unwrap_or(0),
        processes: 1,
    })
}

/// All processes below `root`, from one pass over /proc, which needs no kernel option.
pub fn descendants_of(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut at = 0;
    while at < found.len() {
        found.extend(children.remove(&found[at]).unwrap_or_default());
        at += 1;
    }
    found
}

pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::run::tests::settings;
    use crate::shared_tree::SharedTree;

    #[test]
    fn grandchildren_count_and_pagers_do_not() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let sleep: u32 = line.trim().parse().unwrap();
        let found = descendants_of(std::process::id());
        assert!(found.contains(&shell.id()) && found.contains(&sleep));

        // Below the shell, since other tests have children, too.
        let tree = SharedTree::new(&settings()).unwrap();
        let all = Sampler::new(shell.id()).sample(&tree).unwrap();
        assert!(all.processes == 1 && all.rss_bytes > 0);
        tree.slots[0].pager_pid.store(sleep, Relaxed);
        let mut sampler = Sampler::new(shell.id());
        let fewer = sampler.sample(&tree).unwrap();
        assert!(fewer.processes == 0 && fewer.rss_bytes == 0);
        assert!(sampler.sample(&tree).is_none(), "not due yet");

        shell.kill().unwrap();
        shell.wait().unwrap();
        let pid = rustix::process::Pid::from_raw(sleep.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
