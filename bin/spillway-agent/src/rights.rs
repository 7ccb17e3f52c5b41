//! What the agent takes for itself at its start, and gives up: it must run when memory is short, and needs no rights once
//! its files are open.

use std::fs;
use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// Never chosen when the kernel kills for want of memory.
const NEVER_KILLED: &str = "-1000";
/// Runs before everything else of its class.
const FIRST: i32 = -20;

/// Locks the process in memory and puts it first. What is not allowed is said, and done without.
pub fn take(root: &Path) {
    let said = |what: &str, error: &dyn std::fmt::Display| {
        eprintln!("spillway-agent: {what}: {error}; goes on without");
    };
    // Windows are mapped while they are pinned, and count as locked.
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

/// Gives all capabilities up, for good: what is written later belongs to root, and needs none.
pub fn give_up() {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let done = set_no_new_privs(true).and_then(|()| set_capabilities(None, sets));
    if let Err(error) = done {
        eprintln!("spillway-agent: giving up capabilities: {error}");
    }
}
