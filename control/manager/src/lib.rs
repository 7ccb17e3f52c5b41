//! The memory manager of SmarTmem: at the end of each interval it takes the differences of the clients'
//! counters, asks the policy, and says which targets have changed.
//!
//! It reads no clock and does no I/O. Whoever drives it samples the store, calls [`Manager::interval`], and sets
//! the targets that it gives.

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

/// A client, as it is at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub struct ManagedClient {
    /// Its id in the store.
    pub id: ClientId,
    /// The most that the operator lets it hold, pages; [`UNLIMITED`] is no cap.
    pub cap_pages: u64,
    /// What the operator lets it hold at any time, pages.
    pub floor_pages: u64,
    /// What its stalls count, beside 1 for others.
    pub weight: u32,
    /// Its counters.
    pub statistics: Statistics,
    /// How soon its pages are wanted back, where the policy wants to know ([`Policy::wants_curves`]).
    pub curve: Option<Curve>,
}

impl ManagedClient {
    /// A client for which the operator has said nothing.
    pub const fn new(id: ClientId, statistics: Statistics) -> Self {
        Self { id, cap_pages: UNLIMITED, floor_pages: 0, weight: 1, statistics, curve: None }
    }
}

/// A target that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The client.
    pub id: ClientId,
    /// What it may hold from now on, pages.
    pub target_pages: u64,
}

/// What is kept of a client from one interval to the next.
#[derive(Clone, Copy, Debug)]
struct Seen {
    statistics: Statistics,
    target_pages: u64,
    standing: Standing,
    /// The counters are of an interval of another length.
    is_stale: bool,
}

/// What is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pages {
    /// Those of a store, which refuses puts when it is full.
    #[default]
    Store,
    /// Local frames of programs, which nobody refuses: targets never add up to more than there is.
    Frames,
}

/// The memory manager.
#[derive(Debug, Default)]
pub struct Manager {
    pages: Pages,
    policy: Policy,
    /// Length of an interval; none is as the policy says.
    interval_us: Option<u64>,
    seen: HashMap<ClientId, Seen>,
}

impl Manager {
    /// A manager that has seen no client.
    pub fn new(policy: Policy) -> Self {
        Self { pages: Pages::Store, policy, interval_us: None, seen: HashMap::new() }
    }

    /// A manager of programs' local frames. [`ManagedClient::floor_pages`] holds there under every policy. Nobody samples how
    /// soon a program wants its pages back, which utility needs: in its place there is smart-alloc.
    pub fn of_frames(policy: Policy) -> Self {
        Self { pages: Pages::Frames, ..Self::new(Self::for_frames(policy)) }
    }

    fn for_frames(policy: Policy) -> Policy {
        match policy {
            Policy::Utility(_) => Policy::SmartAlloc(SmartAlloc::default()),
            policy => policy,
        }
    }

    /// The policy of now.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Takes another policy from the next interval on. It begins anew: what the one before gave is no part
    /// of it.
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

    /// Says how long the intervals are that are ended from now on. When that changes, what is known of intervals is
    /// of no use, and the first counts for nothing: part of it was of the old length.
    pub fn set_interval_us(&mut self, interval_us: u64) {
        if self.interval_us.replace(interval_us).is_some_and(|before| before != interval_us) {
            for seen in self.seen.values_mut() {
                seen.standing = Standing::default();
                seen.is_stale = true;
            }
        }
    }

    /// What a client may hold that comes before the next interval ends, pages; for a node of `total_pages`.
    pub fn first_target_pages(&self, total_pages: u64) -> u64 {
        match (self.pages, self.policy) {
            // Nothing at first is fit for a store, whose clients have put nothing yet. A program runs already.
            (Pages::Frames, Policy::ReconfStatic) => total_pages / (self.seen.len() as u64 + 1),
            (_, policy) => policy.first_target_pages(total_pages, self.seen.len()),
        }
    }

    /// Ends an interval: which clients' targets change, for a node of `total_pages`. A client that was not there
    /// before counts from now on; one that has gone is forgotten.
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
        // Of a client that is new here nobody knows when it did what it has done. A counter that went back is no news.
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

/// Cuts targets that add up to more than there is.
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

/// Puts that were refused for want of room.
const fn refused(statistics: &Statistics) -> u64 {
    statistics.puts_refused_at_target + statistics.puts_refused_node_full
}
