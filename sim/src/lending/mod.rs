//! Hosts that lend each other memory: the real state machines ([`spillway_lending::Machine`]) on virtual hosts.
//!
//! [`run`] makes a world out of a seed: 2 to 8 hosts or as many as are wanted, with settings, memory and racks drawn
//! from the seed; a network that loses, repeats, delays and reorders; drivers that take their time and fail;
//! and a model of the data plane that knows which version of each slab lies where (`data_plane`). For 90 virtual seconds
//! programs want more and less memory, hosts are cut off, stopped, crash and come back with their store or
//! without, and operators give orders. Then all is calm, and everything must be given back.
//!
//! After every step (`checks`):
//!
//! - No block has two owners: what a borrower uses, its lender has not taken back, unless by losing it.
//! - No lender is below its reserve, and no grant would take it above its upper threshold.
//! - No page is lost that had a copy which no fault has taken.
//! - Two copies of a slab never lie on one host.
//! - No host has two roles, where one is allowed.
//! - Every request is granted, refused or given up within its time.
//!
//! And in the end all are neutral, and nothing is reserved.
//!
//! Wall clocks do not appear: the machine is given monotonic time alone, so there is none that could jump.
//!
//! Injected bugs show that the checks work: [`InjectedBug`].

mod checks;
mod data_plane;
mod driver;
mod faults;
mod host;
mod injected_bug;
mod report;
mod world;

use core::time::Duration;
use std::collections::BTreeSet;

use spillway_lending::{Backup, LoanId, Mode, Roles, Settings, Shareable};

pub use injected_bug::InjectedBug;
pub use report::{Placement, placement};

use crate::random::Random;
use host::SLAB_BYTES;
use world::{What, World};

/// How a world is made, beside its seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How many hosts, 2 to 2000; drawn from the seed when none.
    pub hosts: Option<usize>,
    /// A bug.
    pub bug: Option<InjectedBug>,
    /// Prints every event and action.
    pub is_traced: bool,
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {at_us} µs, {host}: {what}")]
pub struct Violation {
    /// When.
    pub at_us: u64,
    /// Where.
    pub host: String,
    /// What.
    pub what: String,
}

/// What has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Things that happened.
    pub steps: u64,
    /// Messages sent.
    pub messages: u64,
    /// Faults.
    pub faults: u64,
    /// Loans that were asked for, and what came of it.
    pub asked: u64,
    /// Granted.
    pub granted: u64,
    /// Refused.
    pub refused: u64,
    /// Not answered in time.
    pub unanswered: u64,
    /// Times that nothing at all was found.
    pub given_up: u64,
    /// Devices attached.
    pub devices: u64,
    /// Slabs of them.
    pub borrowed_slabs: u64,
    /// Loans recalled.
    pub recalls: u64,
    /// Copies of slabs that were moved or made again.
    pub moved: u64,
    /// Loans lost.
    pub loans_lost: u64,
    /// Slabs of which faults took every copy, as the machine saw it.
    pub slabs_lost: u64,
    /// The same, with pages in them.
    pub excused: u64,
    /// Loans whose lease ran out with their lender.
    pub(crate) expired: BTreeSet<LoanId>,
}

/// How long things break, µs.
const FAULTS_US: u64 = 90_000_000;
/// How long it may take until all is given back, µs.
const CALM_US: u64 = 300_000_000;

/// Runs the world of `seed`.
///
/// # Errors
/// What must not be.
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
    world.calm_down();
    let mut until_us = FAULTS_US;
    loop {
        until_us += 5_000_000;
        while world.advance(until_us)? {}
        let rest = world.rest();
        // The operator's last orders have been heard by then.
        match rest {
            None if until_us > FAULTS_US + 60_000_000 => return Ok(world.summary),
            Some((at, what)) if until_us > FAULTS_US + CALM_US => {
                return Err(world.violation(at, what));
            }
            _ => {}
        }
    }
}

/// Settings drawn from a seed; short times, so that much happens.
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
        file_slabs: if has_file { 4096 } else { 0 },
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
