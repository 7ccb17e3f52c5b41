//! The manager: the process that answers faults, and may be killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use spillway_guest_memory::{Descriptors, Ending, Fatal, Guest, Manager, Map, Settings};

use super::plan::{Plan, adopt};
use super::{say, tiers};

/// Threads that answer faults. With slow tiers, this many pages are in flight.
const HANDLERS: usize = 8;

/// How a manager tells the supervisor why it ended.
pub const MONITOR_ENDED: i32 = 80;
pub const LEFT: i32 = 81;
pub const CAN_NOT: i32 = 82;

/// Opens what the plan names and answers faults until the guest, the supervisor or an error ends
/// it.
///
/// # Errors
/// What can't be opened.
pub fn run(plan_number: i32, supervisor: i32) -> anyhow::Result<ExitCode> {
    let plan = Plan::read(plan_number)?;
    let supervisor = adopt(supervisor)?;
    let monitor = adopt(plan.monitor)?;
    let map = Map::adopt(adopt(plan.map)?, plan.layout.units()).context("no map of this guest")?;
    let far = tiers::reopen(plan.tiers.as_ref())?;
    let descriptors = Descriptors {
        uffd: adopt(plan.uffd)?,
        files: plan.files.iter().map(|&file| adopt(file)).collect::<anyhow::Result<_>>()?,
        source: plan.source.map(adopt).transpose()?,
    };
    let guest = Guest::new(descriptors, plan.layout, map, far)?;
    let settings = Settings { local_bytes: plan.local_bytes, handlers: HANDLERS };
    let manager = Manager::new(guest, settings, say);
    let code = match manager.run(&monitor, &supervisor) {
        Ending::Monitor | Ending::Fatal(Fatal::Gone) => MONITOR_ENDED,
        Ending::Left => LEFT,
        Ending::Fatal(fatal) => {
            say(&fatal.to_string());
            CAN_NOT
        }
        Ending::Orphaned => return Err(inherit(plan_number)),
    };
    let _ = std::io::stderr().flush();
    std::process::exit(code)
}

/// The supervisor was killed: this process becomes the supervisor and starts another manager.
fn inherit(plan: i32) -> anyhow::Error {
    say("the supervisor was killed: its manager takes its place");
    let mut command = Command::new("/proc/self/exe");
    command.args(["guest-memory-part", "successor", &plan.to_string()]);
    anyhow::Error::new(command.exec()).context("can't take the supervisor's place")
}
