//! The clients of all samples: their names and last counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use spillway_types::{ClientId, Statistics};

use crate::{ClientSample, ObservedClient};

#[derive(Debug)]
struct Last {
    name: Arc<str>,
    statistics: Statistics,
    /// The number of its last sample.
    number: u64,
}

/// The clients of all samples. A tree, because it frees what a client took; a hash table keeps the size that it needed
/// once, and with clients that come and go it needs twice that of those that are there.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<ClientId, Last>);

impl Seen {
    pub(crate) fn name(&self, id: ClientId) -> Option<&Arc<str>> {
        self.0.get(&id).map(|last| &last.name)
    }

    /// A client's activity since its last sample, for sample `number`. All activity of a new client belongs to this
    /// interval, except in the first sample of all, whose counters have an unknown start.
    pub(crate) fn sample(
        &mut self,
        client: &ObservedClient<'_>,
        number: u64,
        first: bool,
    ) -> ClientSample {
        let now = client.statistics;
        let new = || Last {
            name: client.name.into(),
            statistics: if first { now } else { Statistics::default() },
            number,
        };
        let last = self.0.entry(client.id).or_insert_with(new);
        let before = std::mem::replace(&mut last.statistics, now);
        last.number = number;
        let grown =
            |now: u64, before: u64| u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
        ClientSample {
            id: client.id,
            used_pages: now.used_pages,
            target_pages: now.target_pages,
            puts: grown(now.puts, before.puts),
            refused_at_target: grown(now.puts_refused_at_target, before.puts_refused_at_target),
            refused_node_full: grown(now.puts_refused_node_full, before.puts_refused_node_full),
            hits: grown(now.hits, before.hits),
            misses: grown(now.misses, before.misses),
        }
    }

    /// Drops sample `number`: forgets the client if it was its last.
    pub(crate) fn forget(&mut self, id: ClientId, number: u64) {
        if self.0.get(&id).is_some_and(|last| last.number == number) {
            self.0.remove(&id);
        }
    }
}
