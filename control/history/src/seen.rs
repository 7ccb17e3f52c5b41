//! Which clients are in some sample: their names, and where their counters stood.

use std::collections::HashMap;
use std::sync::Arc;

use spillway_types::{ClientId, Statistics};

use crate::{ClientSample, ObservedClient};

#[derive(Debug)]
struct Last {
    name: Arc<str>,
    statistics: Statistics,
    /// The number of the last sample that it is in.
    number: u64,
}

/// The clients of all samples.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashMap<ClientId, Last>);

impl Seen {
    pub(crate) fn name(&self, id: ClientId) -> Option<&Arc<str>> {
        self.0.get(&id).map(|last| &last.name)
    }

    /// What a client has done since it was seen last, for sample `number`. All that a client did that was not there
    /// before is of this interval, but for the first sample of all: nobody knows since when those counted.
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

    /// Sample `number` goes: forgets the client if it was in none after.
    pub(crate) fn forget(&mut self, id: ClientId, number: u64) {
        if self.0.get(&id).is_some_and(|last| last.number == number) {
            self.0.remove(&id);
        }
    }
}
