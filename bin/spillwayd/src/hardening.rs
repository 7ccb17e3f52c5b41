//! Hardens the process: no core dumps, locked memory, few capabilities.

use anyhow::Context;
use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, configure_io_flusher_behavior, getrlimit,
    set_dumpable_behavior, setrlimit,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use spillway_platform::priority::PREFERENCE;

use crate::config::{Config, Error, MemoryLock};

/// Disables core dumps and debuggers of the same user, so that neither exposes clients' bytes.
///
/// # Errors
/// The kernel refused.
pub fn no_dumps() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .context("can't disable core dumps")
}

/// Marks this process and its threads as serving page-out (prctl(2), PR_SET_IO_FLUSHER): when they allocate memory, the
/// kernel does not wait for I/O that this process itself has to serve. Also permits its threads to take a real-time
/// priority later, which gives them access to the kernel's reserve.
pub fn serve_page_out() {
    let least = Some(1);
    let limit = getrlimit(Resource::Rtprio);
    if limit.current < least && limit.current.is_some() {
        // If this is not permitted, taking the priority fails later.
        let _ = setrlimit(Resource::Rtprio, Rlimit { current: least, maximum: least });
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        tracing::warn!(
            "can't mark this process as serving page-out ({error}): it needs CAP_SYS_RESOURCE; \
             under pressure it may wait for itself"
        );
    }
}

/// What RLIMIT_NICE must be: 20 less the lowest nice value, see getrlimit(2).
const NICE_LIMIT: u64 = (20 + PREFERENCE) as u64;

/// Permits the threads of this process to lower their nice values by as much as those do that accept connections
/// ([`spillway_platform::priority::prefer`]), also after the process has dropped its capabilities.
pub fn permit_preference() {
    let least = Some(NICE_LIMIT);
    let limit = getrlimit(Resource::Nice);
    if limit.current < least && limit.current.is_some() {
        // If this is not permitted, the threads keep their nice values.
        let _ = setrlimit(Resource::Nice, Rlimit { current: least, maximum: least });
    }
}

/// Locks present memory, and future memory when it is touched. Returns whether it is locked.
///
/// # Errors
/// The configuration requires locked memory, but locking failed.
pub fn lock_memory(wanted: MemoryLock) -> anyhow::Result<bool> {
    if wanted == MemoryLock::Off {
        return Ok(false);
    }
    let Err(line) = try_lock(MlockAllFlags::ONFAULT) else { return Ok(true) };
    let line = format!("{line}, or set process.lock_memory = \"off\"");
    if wanted == MemoryLock::On {
        return Err(Error::new(line).into());
    }
    tracing::warn!("{line}");
    Ok(false)
}

/// Locks present and future memory; with `ONFAULT` only what is touched.
///
/// # Errors
/// One line that says which limit to raise.
pub fn try_lock(how: MlockAllFlags) -> Result<(), String> {
    // Without a limit, memory that is mapped later is locked without CAP_IPC_LOCK. Where this is not permitted, the
    // present limit applies.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | how) else {
        return Ok(());
    };
    Err(cant_lock(&error.to_string(), getrlimit(Resource::Memlock).current))
}

fn cant_lock(why: &str, limit: Option<u64>) -> String {
    let limit =
        limit.map_or_else(|| "none".to_owned(), |bytes| spillway_types::Size(bytes).to_string());
    format!(
        "can't lock memory ({why}): the limit on locked memory is {limit}; raise it with LimitMEMLOCK=infinity \
         in the unit or ulimit -l unlimited"
    )
}

/// Why a daemon that this process starts can't lock `bytes` and its own memory, as far as that is known before.
pub fn lock_refused(bytes: u64) -> Option<String> {
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
    // Either it needs no limit, or it raises it.
    if has.intersects(CapabilitySet::IPC_LOCK | CapabilitySet::SYS_RESOURCE) {
        return None;
    }
    let limit = getrlimit(Resource::Memlock).maximum?;
    (limit < bytes).then(|| cant_lock(&Errno::NOMEM.to_string(), Some(limit)))
}

/// Drops the capabilities that the running daemon does not need, and returns those that it keeps. A daemon without
/// capabilities keeps none.
///
/// # Errors
/// The kernel refused.
pub fn drop_capabilities(config: &Config, memory_locked: bool) -> anyhow::Result<CapabilitySet> {
    let has = capabilities(None).context("can't read this process's capabilities")?;
    let kept = has.permitted & needed(config, memory_locked);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    // A service manager that gives no capabilities may forbid capset(2) too.
    if has != sets {
        set_capabilities(None, sets).context("can't drop capabilities")?;
    }
    Ok(kept)
}

/// The capabilities that the daemon needs while it runs, if it has them.
fn needed(config: &Config, memory_locked: bool) -> CapabilitySet {
    let mut needed = CapabilitySet::empty();
    if memory_locked && getrlimit(Resource::Memlock).current.is_some() {
        needed |= CapabilitySet::IPC_LOCK;
    }
    if config.lend.borrows() {
        // Marks further threads as serving page-out.
        needed |= CapabilitySet::SYS_RESOURCE;
    }
    if !config.vms.is_empty() {
        // Connects to monitors of other users' guests, and gives memory files to their groups.
        needed |= CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN;
    }
    needed
}

/// Capabilities as capabilities(7) names them.
pub fn names(set: CapabilitySet) -> String {
    let names: Vec<_> =
        set.iter_names().map(|(name, _)| format!("cap_{}", name.to_ascii_lowercase())).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LendRoles, Vm, read};

    #[test]
    fn each_capability_is_kept_only_where_the_configuration_needs_it() {
        let needed_with = |change: &dyn Fn(&mut Config)| {
            let mut config = read(None, &[]).unwrap();
            change(&mut config);
            needed(&config, false)
        };
        assert_eq!(needed_with(&|_| {}), CapabilitySet::empty());
        for (roles, kept) in [
            (LendRoles::Lend, CapabilitySet::empty()),
            (LendRoles::Borrow, CapabilitySet::SYS_RESOURCE),
            (LendRoles::Single, CapabilitySet::SYS_RESOURCE),
            (LendRoles::Both, CapabilitySet::SYS_RESOURCE),
        ] {
            assert_eq!(needed_with(&|config| config.lend.roles = roles), kept, "{roles:?}");
        }
        let of_guests = CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN;
        assert_eq!(needed_with(&|config| config.vms.push(Vm::default())), of_guests);
    }

    #[test]
    fn the_limit_lets_accepting_threads_go_first() {
        // getrlimit(2): "The useful range for this limit is thus from 1 (corresponding to a nice value of 19) to 40
        // (corresponding to a nice value of -20)."
        assert_eq!((PREFERENCE, NICE_LIMIT), (10, 30));
    }
}
