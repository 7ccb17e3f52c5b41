//! The memory manager of SmarTmem: at the end of each interval it takes the differences of the clients'
//! counters, asks the policy, and says which targets have changed.
//!
//! It reads no clock and does no I/O. Whoever drives it samples the store, calls [`Manager::interval`], and sets
//! the targets that it gives.

mod room;

use std::collections::HashMap;

pub use room::Room;

use spillway_policy::Sample;
pub use spillway_policy::{Percent, PercentError, Policy, SmartAlloc, UNLIMITED};
use spillway_types::{ClientId, Statistics};

/// A client, as it is at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its id in the store.
    pub id: ClientId,
    /// The most that the operator lets it hold, pages; [`UNLIMITED`] is no cap.
    pub cap_pages: u64,
    /// Its counters.
    pub statistics: Statistics,
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
    refused: u64,
    target_pages: u64,
}

/// The memory manager.
#[derive(Debug, Default)]
pub struct Manager {
    policy: Policy,
    seen: HashMap<ClientId, Seen>,
}

impl Manager {
    /// A manager that has seen no client.
    pub fn new(policy: Policy) -> Self {
        Self { policy, seen: HashMap::new() }
    }

    /// The policy of now.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Takes another policy from the next interval on. It begins anew: what the one before gave is no part
    /// of it.
    pub fn set_policy(&mut self, policy: Policy) {
        if self.policy != policy {
            *self = Self::new(policy);
        }
    }

    /// What a client may hold that comes before the next interval ends, pages; for a node of `total_pages`.
    pub fn first_target_pages(&self, total_pages: u64) -> u64 {
        self.policy.first_target_pages(total_pages, self.seen.len())
    }

    /// Ends an interval: which clients' targets change, for a node of `total_pages`. A client that was not there
    /// before counts from now on; one that has gone is forgotten.
    pub fn interval(&mut self, total_pages: u64, clients: &[Client]) -> Vec<Change> {
        let samples: Vec<_> = clients.iter().map(|client| self.sample(client)).collect();
        let targets = self.policy.targets(total_pages, &samples);
        self.seen.clear();
        let mut changes = Vec::new();
        for (client, target_pages) in clients.iter().zip(targets) {
            let refused = refused(&client.statistics);
            self.seen.insert(client.id, Seen { refused, target_pages });
            if target_pages != client.statistics.target_pages {
                changes.push(Change { id: client.id, target_pages });
            }
        }
        changes
    }

    fn sample(&self, client: &Client) -> Sample {
        let Statistics { puts, used_pages, .. } = client.statistics;
        let seen = self.seen.get(&client.id);
        let refused = refused(&client.statistics);
        Sample {
            // Of a client that is new here nobody knows when it was refused.
            puts_refused: seen.map_or(0, |seen| refused.saturating_sub(seen.refused)),
            puts_ever: puts,
            used_pages,
            cap_pages: client.cap_pages,
            target_pages: seen.map(|seen| seen.target_pages),
        }
    }
}

/// Puts that were refused for want of room.
const fn refused(statistics: &Statistics) -> u64 {
    statistics.puts_refused_at_target + statistics.puts_refused_node_full
}
