//! The agent's privileges: it gives itself priority at its start, because it must run when memory is short, and drops
//! its capabilities once its files are open.

use std::fs;
use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// The OOM score that excludes a process from OOM kills.
const NEVER_KILLED: &str = "-1000";
/// The highest priority of its scheduling class.
const FIRST: i32 = -20;

/// Locks the process in memory and raises its priority. Logs each step that is not permitted, and
/// continues.
pub fn take(root: &Path) {
    let said = |what: &str, error: &dyn std::fmt::Display| {
        eprintln!("spillway-agent: {what}: {error}; continuing without it");
    };
    // Windows are mapped while they are pinned, so they count as locked memory.
    let unlimited = Rlimit { current: None, maximum: None };
    if let Err(error) = setrlimit(Resource::Memlock, unlimited) {
        said("the limit of locked memory", &error);
    }
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        said("locking itself in memory", &error);
    }
    if let Err(error) = fs::write(root.join("proc/self/oom_score_adj"), NEVER_KILLED) {
        said("oom_score_adj", &error);
    }
    if let Err(error) = setpriority_process(None, FIRST) {
        said("nice", &error);
    }
}

/// Drops all capabilities for good: files written later belong to root, which needs none.
pub fn give_up() {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let done = set_no_new_privs(true).and_then(|()| set_capabilities(None, sets));
    if let Err(error) = done {
        eprintln!("spillway-agent: dropping capabilities: {error}");
    }
}
