//! What the process does about itself: no core dumps, locked memory, enough descriptors.

use anyhow::Context;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, configure_io_flusher_behavior, getrlimit,
    set_dumpable_behavior, setrlimit,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::config::{Error, MemoryLock};

/// Clients' bytes must not end in a core file, nor be read by a debugger of the same user.
///
/// # Errors
/// The kernel refused.
pub fn no_dumps() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .context("can't switch core dumps off")
}

/// Has this process, and threads that it starts, taken for one that serves page-out (prctl(2), PR_SET_IO_FLUSHER): when
/// it allocates memory, the kernel does not wait for I/O that it would have to serve itself. And lets its threads take the
/// real-time priority later by which they get at the kernel's reserve.
pub fn serve_page_out() {
    let least = Some(1);
    let limit = getrlimit(Resource::Rtprio);
    if limit.current < least && limit.current.is_some() {
        // Whether it may is seen when it does.
        let _ = setrlimit(Resource::Rtprio, Rlimit { current: least, maximum: least });
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        tracing::warn!(
            "this process can't be marked as one that serves page-out ({error}): it needs CAP_SYS_RESOURCE; \
             under pressure it may wait for itself"
        );
    }
}

/// Each connection takes descriptors: as many as the administrator allows.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // With fewer, connections beyond them are refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Locks memory that is there and that will be, as it is touched. Tells whether it is locked.
///
/// # Errors
/// It must be locked and can't be.
pub fn lock_memory(wanted: MemoryLock) -> anyhow::Result<bool> {
    if wanted == MemoryLock::Off {
        return Ok(false);
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let Err(error) = mlockall(flags) else { return Ok(true) };
    let limit = getrlimit(Resource::Memlock).current;
    let line = format!(
        "can't lock memory ({error}): the limit on locked memory is {}; raise it with LimitMEMLOCK=infinity \
         in the unit or ulimit -l unlimited, or set process.lock_memory = \"off\"",
        limit.map_or_else(|| "none".to_owned(), |bytes| spillway_types::Size(bytes).to_string())
    );
    if wanted == MemoryLock::On {
        return Err(Error::new(line).into());
    }
    tracing::warn!("{line}");
    Ok(false)
}

/// Gives up the administrator's rights that the helper keeps, but for those of marking threads as such that serve
/// page-out and of locking memory. Where the daemon has none, nothing happens.
///
/// # Errors
/// The kernel refused.
pub fn drop_capabilities() -> anyhow::Result<()> {
    let has = capabilities(None).context("can't read this process's capabilities")?;
    let kept = has.permitted & (CapabilitySet::SYS_RESOURCE | CapabilitySet::IPC_LOCK);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("can't give capabilities up")
}
