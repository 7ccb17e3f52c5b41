//! The memory manager of SmarTmem: at the end of each interval it computes the differences of the
//! clients' counters, asks the policy, and returns the changed targets.
//!
//! It reads no clock and does no I/O. Its driver samples the store, calls [`Manager::interval`], and sets the
//! returned targets.

#![forbid(unsafe_code)]

mod frames;
mod room;

use std::collections::HashMap;

use frames::{Claim, bounded};
pub use room::Room;

use spillway_policy::{Outcome, Sample, Standing};
pub use spillway_policy::{Percent, PercentError, Policy, SmartAlloc, UNLIMITED, Utility, hull};
pub use spillway_reuse::Curve;
use spillway_types::{ClientId, Statistics};

/// A client's state at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub struct ManagedClient {
    /// Its id in the store.
    pub id: ClientId,
    /// Its cap, pages; [`UNLIMITED`] means no cap.
    pub cap_pages: u64,
    /// Its floor, pages.
    pub floor_pages: u64,
    /// Its weight.
    pub weight: u32,
    /// Its counters.
    pub statistics: Statistics,
    /// Its reuse distances, if the policy needs them ([`Policy::wants_curves`]).
    pub curve: Option<Curve>,
}

impl ManagedClient {
    /// A client without settings of the operator.
    pub const fn new(id: ClientId, statistics: Statistics) -> Self {
        Self { id, cap_pages: UNLIMITED, floor_pages: 0, weight: 1, statistics, curve: None }
    }
}

/// A changed target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The client.
    pub id: ClientId,
    /// The new target, pages.
    pub target_pages: u64,
}

/// A client's state between intervals.
#[derive(Clone, Copy, Debug)]
struct Seen {
    statistics: Statistics,
    target_pages: u64,
    standing: Standing,
    /// The counters are from an interval of another length.
    is_stale: bool,
}

/// The kind of pages that are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pages {
    /// Pages of a store, which refuses puts when it is full.
    #[default]
    Store,
    /// Local frames of programs, which are never refused: the sum of targets never exceeds the
    /// available frames.
    Frames,
}

/// The memory manager.
#[derive(Debug, Default)]
pub struct Manager {
    pages: Pages,
    policy: Policy,
    /// Length of an interval; none means the policy's default.
    interval_us: Option<u64>,
    seen: HashMap<ClientId, Seen>,
}

impl Manager {
    /// A manager that has seen no client.
    pub fn new(policy: Policy) -> Self {
        Self { pages: Pages::Store, policy, interval_us: None, seen: HashMap::new() }
    }

    /// A manager of programs' local frames. [`ManagedClient::floor_pages`] applies there under every policy. Programs'
    /// reuse distances, which utility needs, are not sampled: smart-alloc replaces it.
    pub fn of_frames(policy: Policy) -> Self {
        Self { pages: Pages::Frames, ..Self::new(Self::for_frames(policy)) }
    }

    fn for_frames(policy: Policy) -> Policy {
        match policy {
            Policy::Utility(_) => Policy::SmartAlloc(SmartAlloc::default()),
            policy => policy,
        }
    }

    /// The present policy.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Changes the policy from the next interval on. It starts without state of the previous policy.
    pub fn set_policy(&mut self, policy: Policy) {
        let policy = match self.pages {
            Pages::Store => policy,
            Pages::Frames => Self::for_frames(policy),
        };
        if self.policy != policy {
            self.policy = policy;
            self.seen.clear();
        }
    }

    /// Sets the length of intervals. A change invalidates the data of past intervals, and the first new one does
    /// not count, because part of it had the old length.
    pub fn set_interval_us(&mut self, interval_us: u64) {
        if self.interval_us.replace(interval_us).is_some_and(|before| before != interval_us) {
            for seen in self.seen.values_mut() {
                seen.standing = Standing::default();
                seen.is_stale = true;
            }
        }
    }

    /// The target of a client that appears before the next interval ends, pages; for a node of
    /// `total_pages`.
    pub fn first_target_pages(&self, total_pages: u64) -> u64 {
        match (self.pages, self.policy) {
            // An initial 0 suits a store, whose clients have put nothing yet. A program is running already.
            (Pages::Frames, Policy::ReconfStatic) => total_pages / (self.seen.len() as u64 + 1),
            (_, policy) => policy.first_target_pages(total_pages, self.seen.len()),
        }
    }

    /// Processes the end of an interval, and returns the changed targets, for a node of `total_pages`. A new
    /// client counts from now on; one that is gone is forgotten.
    pub fn interval(&mut self, total_pages: u64, clients: &[ManagedClient]) -> Vec<Change> {
        let samples: Vec<_> = clients.iter().map(|client| self.sample(client)).collect();
        let policy = match (self.policy, self.interval_us) {
            (Policy::Utility(utility), Some(interval_us)) => {
                Policy::Utility(Utility { interval_us, ..utility })
            }
            (policy, _) => policy,
        };
        let mut outcomes = policy.outcomes(total_pages, &samples);
        if self.pages == Pages::Frames {
            bound(total_pages, clients, &mut outcomes);
        }
        self.seen.clear();
        let mut changes = Vec::new();
        for (client, Outcome { target_pages, standing }) in clients.iter().zip(outcomes) {
            let ManagedClient { id, statistics, .. } = *client;
            self.seen.insert(id, Seen { statistics, target_pages, standing, is_stale: false });
            if target_pages != statistics.target_pages {
                changes.push(Change { id, target_pages });
            }
        }
        changes
    }

    fn sample<'a>(&self, client: &'a ManagedClient) -> Sample<'a> {
        let now = &client.statistics;
        let seen = self.seen.get(&client.id);
        // The past activity of a new client has no known time. A counter that decreased is ignored.
        let was = seen.filter(|seen| !seen.is_stale).map_or(*now, |seen| seen.statistics);
        Sample {
            puts_refused: refused(now).saturating_sub(refused(&was)),
            puts_ever: now.puts,
            puts: now.puts.saturating_sub(was.puts),
            hits: now.hits.saturating_sub(was.hits),
            misses: now.misses.saturating_sub(was.misses),
            used_pages: now.used_pages,
            cap_pages: client.cap_pages,
            floor_pages: client.floor_pages,
            weight: client.weight,
            target_pages: seen.map(|seen| seen.target_pages),
            curve: client.curve.as_ref(),
            standing: seen.map_or_else(Standing::default, |seen| seen.standing),
        }
    }
}

/// Reduces targets whose sum exceeds the available pages.
fn bound(total_pages: u64, clients: &[ManagedClient], outcomes: &mut [Outcome]) {
    let claims = clients.iter().zip(outcomes.iter()).map(|(client, outcome)| Claim {
        floor: client.floor_pages.min(client.cap_pages),
        used: client.statistics.used_pages,
        wanted: outcome.target_pages,
    });
    let given = bounded(total_pages, &claims.collect::<Vec<_>>());
    for (outcome, target_pages) in outcomes.iter_mut().zip(given) {
        outcome.target_pages = target_pages;
    }
}

/// Puts that were refused for lack of memory.
const fn refused(statistics: &Statistics) -> u64 {
    statistics.puts_refused_at_target + statistics.puts_refused_node_full
}
