//! What the process does about itself: no core dumps, locked memory, enough descriptors.

use anyhow::Context;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

use crate::config::{Error, Lock};

/// Clients' bytes must not end in a core file, nor be read by a debugger of the same user.
///
/// # Errors
/// The kernel refused.
pub fn no_dumps() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .context("can't switch core dumps off")
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
pub fn lock_memory(wanted: Lock) -> anyhow::Result<bool> {
    if wanted == Lock::Off {
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
    if wanted == Lock::On {
        return Err(Error::new(line).into());
    }
    tracing::warn!("{line}");
    Ok(false)
}
