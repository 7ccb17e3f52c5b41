//! Hosts that lend each other memory: the real state machines ([`spillway_lending::Machine`]) on virtual hosts.
//!
//! [`run`] creates a world from a seed. It has 2 to 8 hosts, or a given number; settings, memory and racks come from
//! the seed. The network loses, repeats, delays and reorders messages. Drivers take time and fail. A model of the data
//! plane knows where each version of each slab lies (`data_plane`). For 90 virtual seconds the memory demand of
//! programs changes, operators give orders, and hosts are cut off in one direction or both, stopped, and crash and
//! return with or without their store, and their local files fail. Clocks begin anywhere and differ in speed. Then all faults end, and lost copies must be back. Then the demand ends, and everything must be given back.
//!
//! Invariants after every step (`checks`):
//!
//! - No block has two owners: a lender has not taken back memory that a borrower uses, unless it has lost it.
//! - No lender is below its reserve, and no grant would take it above its upper threshold.
//! - No page is lost while a copy of it exists that no fault has taken. A fault takes the copies of the loans that it
//!   struck, and no others.
//! - A slab that lacks a copy has it back within a bound of calm time.
//! - What the machine says of copies is what the data plane has.
//! - Two copies of a slab never lie on one host.
//! - No host has two roles, if the settings allow only one.
//! - Every request is granted, refused or given up in time.
//!
//! In the end all hosts are neutral, and nothing is reserved.
//!
//! There are no wall clocks: the machine gets only monotonic time, which can't jump.
//!
//! Injected bugs show that the checks work: [`InjectedBug`].

mod checks;
mod clock;
mod data_plane;
mod driver;
mod faults;
mod host;
mod injected_bug;
mod report;
mod strikes;
mod world;

use core::time::Duration;
use std::collections::BTreeSet;

use spillway_lending::{Backup, LoanId, Mode, Roles, Settings, Shareable};

pub use injected_bug::InjectedBug;
pub use report::{Placement, placement};

use crate::random::Random;
use host::SLAB_BYTES;
use world::{What, World};

/// Parameters of a world beside its seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The number of hosts, 2 to 2000; `None` draws it from the seed.
    pub hosts: Option<usize>,
    /// The bug to inject.
    pub bug: Option<InjectedBug>,
    /// Prints every event and action.
    pub is_traced: bool,
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {at_us} µs, {host}: {what}")]
pub struct Violation {
    /// The virtual time.
    pub at_us: u64,
    /// The host.
    pub host: String,
    /// The violated invariant.
    pub what: String,
}

/// Counts of what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events.
    pub steps: u64,
    /// Messages sent.
    pub messages: u64,
    /// Faults.
    pub faults: u64,
    /// Loans requested.
    pub asked: u64,
    /// Granted.
    pub granted: u64,
    /// Refused.
    pub refused: u64,
    /// Not answered in time.
    pub unanswered: u64,
    /// Times that no loan was found at all.
    pub given_up: u64,
    /// Devices attached.
    pub devices: u64,
    /// Slabs of those devices.
    pub borrowed_slabs: u64,
    /// Loans recalled.
    pub recalls: u64,
    /// Copies of slabs that were moved or made again.
    pub moved: u64,
    /// Loans lost.
    pub loans_lost: u64,
    /// Slabs that lost every copy by faults, as the machine counts them.
    pub slabs_lost: u64,
    /// Those of them that had content.
    pub excused: u64,
    /// Loans whose lease ran out with their lender.
    pub(crate) expired: BTreeSet<LoanId>,
}

/// How long faults occur, µs.
const FAULTS_US: u64 = 90_000_000;
/// How long the demand lasts after the last fault, µs.
const MENDS_US: u64 = 45_000_000;
/// Limit of the time until everything is given back, µs.
const CALM_US: u64 = 300_000_000;

/// Runs the world of `seed`.
///
/// # Errors
/// The first violation.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Violation> {
    let mut random = Random::new(seed);
    let settings = settings(&mut random);
    let hosts = options.hosts.unwrap_or_else(|| random.between(2, 9) as usize);
    let racks = random.between(1, 5);
    let mut world = World::new(random, settings, options);
    (world.loss_permille, world.late_permille) =
        [(0, 0), (5, 20), (20, 80)][world.random.below(3) as usize];
    world.delay_us = world.random.between(50, 20_000);
    for at in 0..hosts {
        let slabs = world.random.between(24, 96);
        let demand = slabs * SLAB_BYTES / 10 * world.random.between(1, 9);
        world.add_host(slabs, at as u64 % racks, demand);
    }
    world.schedule(2_000_000, 0, None, What::Demand);
    if world.random.below(8) != 0 {
        world.schedule(5_000_000, 0, None, What::Fault);
    }
    while world.advance(FAULTS_US)? {}
    world.mend();
    let mended_us = FAULTS_US + MENDS_US;
    while world.advance(mended_us)? {}
    world.calm_down();
    let mut until_us = mended_us;
    loop {
        until_us += 5_000_000;
        while world.advance(until_us)? {}
        let rest = world.rest();
        // The operator's last orders have been handled by then.
        match rest {
            None if until_us > mended_us + 60_000_000 => return Ok(world.summary),
            Some((at, what)) if until_us > mended_us + CALM_US => {
                return Err(world.violation(at, what));
            }
            _ => {}
        }
    }
}

/// Settings from a seed, with short times, so that much happens.
fn settings(random: &mut Random) -> Settings {
    let mode = if random.one_in(8) { Mode::Direct } else { Mode::FanOut };
    let backup = match random.below(4) {
        _ if mode == Mode::Direct => Backup::None,
        0 => Backup::None,
        1 => Backup::File,
        _ => Backup::Mirror,
    };
    let has_file = mode == Mode::FanOut && (backup != Backup::None || random.one_in(2));
    let settings = Settings {
        dwell: Duration::from_millis(random.between(0, 3_000)),
        shareable: if random.one_in(2) {
            Shareable::Reserve(random.between(4, 24) * SLAB_BYTES)
        } else {
            Shareable::Dynamic
        },
        roles: if random.below(3) == 0 { Roles::Both } else { Roles::Single },
        backup,
        mode,
        slab_bytes: SLAB_BYTES,
        file_slabs: match has_file {
            true if random.one_in(3) => random.between(1, 16),
            true => 4096,
            false => 0,
        },
        device_slabs_min: random.between(1, 8) as u32,
        device_slabs_max: 32,
        answer_timeout: Duration::from_millis(random.between(300, 1_000)),
        retry: Duration::from_millis(random.between(500, 5_000)),
        lease: Duration::from_millis(random.between(4_000, 12_000)),
        lease_margin: Duration::from_millis(random.between(100, 1_000)),
        recall_deadline: Duration::from_millis(random.between(14_000, 25_000)),
        // Moves take at most 100 ms here, and at most a second where the driver is slow.
        slow_move: Duration::from_millis(random.between(50, 2_000)),
        ..Settings::default()
    };
    settings.check().expect("settings that hold together");
    settings
}
